"""Dates that a question names, and how well the time of a passage fits them.

Understood: a day ("16 March 2022", "March 16th", "2022-03-16"), a month ("in March", "March 2022"), a season or a
part of a year ("summer 2022", "early 2023"), a year, and from the time of asking: yesterday, last week, last May,
three months ago. English, and Chinese dates in digits.

Why not a date library: dateparser's search gives one moment instead of a span ("in May 2022" is the 30th of May, as
today is a 30th; "summer 2022" a day in November), and takes 1 ms of a question, at times 5, where this takes 0.03.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Final

import numpy as np

from retrieval.fused.passages import Floats, Ints


class Grain(Enum):
    """How closely a date is named."""

    DAY = "day"
    MONTH = "month"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class Span:
    """Days from ``first`` to ``last``, both included; ``year_known`` is False when it may be any year's."""

    grain: Grain
    first: date
    last: date
    year_known: bool = True


_MONTH_NAMES: Final = (
    "january jan, february feb, march mar, april apr, may, june jun, july jul, august aug, september sept sep,"
    " october oct, november nov, december dec"
)
_NUMBER_NAMES: Final = "a an one, two couple, three few, four, five, six, seven, eight, nine, ten"


def _numbered(listed: str) -> dict[str, int]:
    """Number names from 1; those that mean the same stand together, without a comma."""
    return {name: number for number, names in enumerate(listed.split(","), start=1) for name in names.split()}


_MONTHS: Final = _numbered(_MONTH_NAMES)
_NUMBERS: Final = _numbered(_NUMBER_NAMES)
_SEASONS: Final = {"spring": (3, 5), "summer": (6, 8), "autumn": (9, 11), "fall": (9, 11), "winter": (12, 2)}
_PARTS: Final = {"early": (1, 4), "mid": (5, 8), "late": (9, 12)}
_MONTH: Final = "(?P<month>" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + ")"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)"
_ANY_YEAR: Final = 2000  # a leap year: 29 February exists

_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_YEAR}-(?P<number>\d\d?)-(?P<day>\d\d?)\b",
        rf"(?:{_YEAR}\s*年\s*)?(?P<number>\d\d?)\s*月\s*(?P<day>\d\d?)\s*[日号]",
        rf"{_YEAR}\s*年\s*(?P<number>\d\d?)\s*月",
        rf"\b(?P<day>\d\d?)(?:st|nd|rd|th)?(?:\s+of)?\s+{_MONTH}\b\.?,?(?:\s+(?:of\s+)?{_YEAR})?",
        rf"\b{_MONTH}\.?\s+(?P<day>\d\d?)(?:st|nd|rd|th)?\b(?!\d),?(?:\s+{_YEAR})?",
        rf"\b{_MONTH}\b\.?,?(?:\s+of)?\s+{_YEAR}",
        rf"\b(?P<season>{'|'.join(_SEASONS)})\s+(?:of\s+)?{_YEAR}",
        rf"\b(?P<part>{'|'.join(_PARTS)})[\s-]+{_YEAR}",
        rf"\b(?:last|past)\s+{_MONTH}\b".replace("month>", "last>"),
        rf"\b(?:in|during|of|early|late|mid|since|by|before|after|until|this|next|from)[\s-]+{_MONTH}\b",
        rf"\b{_MONTH}['’]s",
        r"\b(?P<near>yesterday|today|(?:last|this|next)\s+(?:week|month|year))\b",
        r"\b(?P<count>\d\d?|" + "|".join(_NUMBERS) + r")(?:\s+of)?\s+(?P<unit>day|week|month|year)s?\s+ago\b",
        rf"\b{_YEAR}\b|{_YEAR}年".replace("|(?P<year>", "|(?P<year2>"),
    )
)
"""The closest first: what one has read, no later one reads again."""
_MAY_NAME_ONE: Final = re.compile(rf"\d|\b{_MONTH}\b|\bago\b|day\b|(?:last|past|this|next)\s", re.IGNORECASE)
"""What every date has some of. Why: most questions name none, and are then done with in a fifth of the time."""

_DAY_SCORES: Final = ((-1, 2, 1.0), (-1, 10, 0.6), (-1, 31, 0.2))
"""Days after a named day, and what they score: people tell of a day on it, and for a while after it."""
_AFTER_MONTH_DAYS: Final = 15
_AFTER_MONTH_SCORE: Final = 0.4


def spans_in(text: str, asked_ms: int | None = None) -> list[Span]:
    """Find the dates a question names; relative ones only when the time of asking is known."""
    if not _MAY_NAME_ONE.search(text):
        return []
    today = None if asked_ms is None else datetime.fromtimestamp(asked_ms / 1000, UTC).date()
    left, found = text, []
    for pattern in _PATTERNS:
        for named in pattern.finditer(left):
            if span := _span({k: v.lower() for k, v in named.groupdict().items() if v}, today):
                found.append(span)
                left = left[: named.start()] + " " * len(named[0]) + left[named.end() :]
    return found


def match(spans: list[Span], time_ms: Ints, grain: Grain) -> Floats:
    """Score how well times fit the dates of one grain: ``(n,) float32`` in [0, 1], 0 when none is named.

    Day: 1 from one day before to two after, 0.6 up to ten days after, 0.2 up to a month. Month, season or part of a
    year: 1 inside, 0.4 up to 15 days after. Year: 1 inside.
    """
    best = np.zeros(len(time_ms), np.float32)
    days = time_ms // 86_400_000
    for span in spans:
        if span.grain is grain:
            for placed in _placed(span, days):
                best = np.maximum(best, _score(placed, days))
    return best


def _score(span: Span, days: Ints) -> Floats:
    first, last = _day_number(span.first), _day_number(span.last)
    if span.grain is Grain.DAY:
        late = days - first
        steps = [np.where((late >= low) & (late <= high), score, 0) for low, high, score in _DAY_SCORES]
        return np.asarray(np.max(steps, axis=0), np.float32)
    inside = (days >= first) & (days <= last)
    if span.grain is Grain.YEAR:
        return inside.astype(np.float32)
    soon_after = (days > last) & (days <= last + _AFTER_MONTH_DAYS)
    return np.where(inside, 1, np.where(soon_after, _AFTER_MONTH_SCORE, 0)).astype(np.float32)


def _placed(span: Span, days: Ints) -> Iterator[Span]:
    """Put a date without a year into each year the times lie in, and the one before."""
    if span.year_known or not days.size:
        yield span
        return
    years = np.unique((days.astype("datetime64[D]")).astype("datetime64[Y]").astype(int) + 1970)
    for year in {int(y) - back for y in years for back in (0, 1)}:
        if named := _whole_month(year, span.first.month) if span.grain is Grain.MONTH else _on(year, span.first):
            yield named


def _span(named: dict[str, str], today: date | None) -> Span | None:
    year = int(named.get("year") or named.get("year2") or 0)
    month = _MONTHS.get(named.get("month", "")) or int(named.get("number", 0))
    if "day" in named:
        return _day(year, month, int(named["day"]))
    if month:
        return _whole_month(year or _ANY_YEAR, month, year_known=bool(year))
    if "season" in named or "part" in named:
        first, last = _SEASONS[named["season"]] if "season" in named else _PARTS[named["part"]]
        return Span(Grain.MONTH, date(year, first, 1), _month_end(year + (last < first), last))
    if year:
        return Span(Grain.YEAR, date(year, 1, 1), date(year, 12, 31))
    return _relative(named, today) if today else None


def _relative(named: dict[str, str], today: date) -> Span | None:
    if "last" in named:
        month = _MONTHS[named["last"]]
        return _whole_month(today.year - (month >= today.month), month)
    if "unit" in named:
        count = _NUMBERS.get(named["count"]) or int(named["count"])
        return _ago(count, named["unit"], today)
    return _near(" ".join(named["near"].split()), today)


def _near(words: str, today: date) -> Span:
    if words in {"today", "yesterday"}:
        day = today - timedelta(days=words == "yesterday")
        return Span(Grain.DAY, day, day)
    which, unit = words.split()
    back = {"last": 1, "this": 0, "next": -1}[which]
    if unit == "week":
        monday = today - timedelta(days=today.weekday() + 7 * back)
        return Span(Grain.MONTH, monday, monday + timedelta(days=6))
    if unit == "month":
        first = _month_before(today, back)
        return Span(Grain.MONTH, first, _month_end(first.year, first.month))
    return Span(Grain.YEAR, date(today.year - back, 1, 1), date(today.year - back, 12, 31))


def _ago(count: int, unit: str, today: date) -> Span:
    if unit == "day":
        day = today - timedelta(days=count)
        return Span(Grain.DAY, day, day)
    if unit == "week":
        middle = today - timedelta(weeks=count)
        return Span(Grain.MONTH, middle - timedelta(days=4), middle + timedelta(days=4))
    if unit == "month":
        first = _month_before(today, count)
        return Span(Grain.MONTH, first, _month_end(first.year, first.month))
    year = today.year - count
    return Span(Grain.YEAR, date(year, 1, 1), date(year, 12, 31))


def _day(year: int, month: int, day: int) -> Span | None:
    try:
        named = date(year or _ANY_YEAR, month, day)
    except ValueError:
        return None
    return Span(Grain.DAY, named, named, year_known=bool(year))


def _on(year: int, day: date) -> Span | None:
    return _day(year, day.month, day.day)


def _whole_month(year: int, month: int, *, year_known: bool = True) -> Span | None:
    if not 1 <= month <= 12:  # noqa: PLR2004 - months of a year
        return None
    return Span(Grain.MONTH, date(year, month, 1), _month_end(year, month), year_known)


def _month_end(year: int, month: int) -> date:
    return date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)


def _month_before(today: date, count: int) -> date:
    number = today.year * 12 + today.month - 1 - count
    return date(number // 12, number % 12 + 1, 1)


def _day_number(day: date) -> int:
    return (day - date(1970, 1, 1)).days
