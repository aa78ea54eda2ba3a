"""Whether a summary says only what its source says, as far as that can be told without understanding either.

Looked for are the things that a model that writes well gets wrong: numbers, dates, addresses, paths, code and
quotations. Each must stand in the source. A date may be written otherwise ("5 March", "2026-03-05"), a number too
("1,000", "twelve"). Everything else is free.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTH_NUMBERS: Final = {name[:length]: i for i, name in enumerate(_MONTHS, 1) for length in (3, len(name))}
_WORDS: Final = re.findall(
    "[a-z]+",
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
    " nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million",
)
_VALUES: Final = dict(
    zip(_WORDS, map(str, [*range(2, 21), 30, 40, 50, 60, 70, 80, 90, 100, 1_000, 1_000_000]), strict=True)
)
_URL: Final = re.compile(r"\b(?:https?://|www\.)[^\s<>\"'”’）)\]]+", re.IGNORECASE)
_MAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PATH: Final = re.compile(
    r"(?<![\w/.])(?:~|\.{1,2})?/[\w.@+-]+(?:/[\w.@+-]+)*|\b[A-Za-z]:\\[\w.\\-]+|\b[\w.-]+/[\w./-]*\w\.\w+"
)
_CODE: Final = re.compile(
    r"`([^`\n]+)`"
    r"|\b([A-Za-z]\w*_\w+|[a-z]+[A-Z]\w*|[A-Za-z_]\w*\(\)|[a-z_]\w*\.(?:[a-z_]\w*\.)*[a-z]{1,4}(?=\s|$|[,;:)]))"
)
_QUOTES: Final = re.compile(r"\"([^\"\n]{2,})\"|“([^”\n]{2,})”|«([^»\n]{2,})»|「([^」\n]{2,})」|『([^』\n]{2,})』")
_MONTH: Final = "|".join(sorted(_MONTH_NUMBERS, key=len, reverse=True))
_TH: Final = r"(?:st|nd|rd|th)?"
_DATES: Final = (
    re.compile(r"\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})\b"),
    re.compile(r"(?:(?P<y>\d{4})年)?(?P<m>\d{1,2})月(?:(?P<d>\d{1,2})[日号])?"),
    re.compile(rf"\b(?P<d>\d{{1,2}}){_TH}\.?\s+(?:of )?(?P<m>{_MONTH})\b\.?(?:,?\s+(?P<y>\d{{4}}))?", re.IGNORECASE),
    re.compile(rf"\b(?P<m>{_MONTH})\b\.?\s+(?P<d>\d{{1,2}}){_TH}\b(?:,?\s+(?P<y>\d{{4}}))?", re.IGNORECASE),
    re.compile(rf"\b(?P<m>{_MONTH})\b\.?,?\s+(?P<y>\d{{4}})\b", re.IGNORECASE),
)  # fmt: skip
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_NUMBER_WORD: Final = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_GROUPED: Final = re.compile(r"\d{1,3}(?:,\d{3})+")

Date = tuple[int | None, int, int | None]


def unfounded(summary: str, source: str) -> list[str]:
    """List what a summary states and its source does not: numbers, dates, URLs, paths, code and quotations."""
    told, known = _Read(_folded(summary)), _Read(_folded(source))
    found = [f"quotation {text!r}" for text in told.quotations if _flat(text) not in known.flat]
    found += [f"{kind} {text!r}" for kind, text in told.exact if not _stands_in(text, known.text)]
    found += [
        f"date {text!r}" for date, text in told.dates if not any(_agrees(date, other) for other, _ in known.dates)
    ]
    return found + [f"number {number!r}" for number in sorted(told.numbers - known.all_numbers)]


def is_faithful(summary: str, source: str) -> bool:
    """Tell whether a summary states nothing that its source does not."""
    return not unfounded(summary, source)


class _Read:
    """What a text states."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.flat = _flat(text)
        self.quotations = [next(filter(None, match.groups())) for match in _QUOTES.finditer(text)]
        rest, self.exact = text, list[tuple[str, str]]()
        for kind, pattern in (("URL", _URL), ("address", _MAIL), ("path", _PATH), ("code", _CODE)):
            for match in pattern.finditer(rest):
                self.exact.append((kind, next(filter(None, match.groups()), match[0]).rstrip(".,;:!?")))
            rest = pattern.sub(" ", rest)
        self.dates = list(_dates(rest))
        for _, written in self.dates:
            rest = rest.replace(written, " ")
        self.numbers = set(_numbers(rest))
        self.all_numbers = set(_numbers(text))


def _stands_in(written: str, text: str) -> bool:
    """Tell whether something stands in a text as it is, and not as the beginning or end of something longer."""
    return re.search(rf"(?<![\w/]){re.escape(written)}(?![\w/?&=#-]|\.\w)", text) is not None


def _dates(text: str) -> Iterator[tuple[Date, str]]:
    for pattern in _DATES:
        for match in pattern.finditer(text):
            named = match.groupdict()
            month = _MONTH_NUMBERS.get(named["m"].casefold()) or (int(named["m"]) if named["m"].isdigit() else 0)
            year, day = (int(named[part]) if named.get(part) else None for part in ("y", "d"))
            yield (year, month, day), match[0]


def _agrees(told: Date, known: Date) -> bool:
    return all(mine is None or mine == theirs for mine, theirs in zip(told, known, strict=True))


def _numbers(text: str) -> Iterator[str]:
    for match in _NUMBER.finditer(text):
        number = match[0]
        yield number.replace(",", "") if _GROUPED.fullmatch(number) else number
    for match in _NUMBER_WORD.finditer(text):
        yield _VALUES[match[0].casefold()]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("’", "'")


def _flat(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .,;:!?")
