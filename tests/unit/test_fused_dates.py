"""Dates in a question are found, and fit times as people tell of them."""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pytest

from retrieval.fused.dates import Grain, Span, match, spans_in

ASKED = datetime(2023, 6, 14, 12, tzinfo=UTC)  # a Wednesday


def at(*days: str) -> np.ndarray:
    """Give noons in epoch milliseconds."""
    return np.array([int(datetime.fromisoformat(f"{day}T12:00+00:00").timestamp() * 1000) for day in days])


def day(text: str, *, year_known: bool = True) -> Span:
    """Give the span of one day."""
    return Span(Grain.DAY, date.fromisoformat(text), date.fromisoformat(text), year_known)


def month(first: str, last: str, *, year_known: bool = True) -> Span:
    """Give a span of days."""
    return Span(Grain.MONTH, date.fromisoformat(first), date.fromisoformat(last), year_known)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on 16 March, 2022?", [day("2022-03-16")]),
        ("on the 16th of March 2022", [day("2022-03-16")]),
        ("on March 16th, 2022", [day("2022-03-16")]),
        ("on Sept 3", [day("2000-09-03", year_known=False)]),
        ("on 2022-03-16", [day("2022-03-16")]),
        ("2022年3月16日去了哪里", [day("2022-03-16")]),
        ("on 31 February 2022", [month("2022-02-01", "2022-02-28")]),
        ("in February 2024", [month("2024-02-01", "2024-02-29")]),
        ("in August", [month("2000-08-01", "2000-08-31", year_known=False)]),
        ("2022年3月", [month("2022-03-01", "2022-03-31")]),
        ("the winter of 2022", [month("2022-12-01", "2023-02-28")]),
        ("in early 2023", [month("2023-01-01", "2023-04-30")]),
        ("in 2022", [Span(Grain.YEAR, date(2022, 1, 1), date(2022, 12, 31))]),
        ("between 3 May 2022 and 5 May 2022", [day("2022-05-03"), day("2022-05-05")]),
        ("May I march in second place, or may I not?", []),
        ("room 2022b, or 20223", []),
    ],
)
def test_dates_are_found(text: str, expected: list[Span]) -> None:
    """In the forms people write, and not in words that only look like one."""
    assert spans_in(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yesterday", day("2023-06-13")),
        ("3 days ago", day("2023-06-11")),
        ("last week", month("2023-06-05", "2023-06-11")),
        ("two weeks ago", month("2023-05-27", "2023-06-04")),
        ("next month", month("2023-07-01", "2023-07-31")),
        ("last month", month("2023-05-01", "2023-05-31")),
        ("a couple of months ago", month("2023-04-01", "2023-04-30")),
        ("last May", month("2023-05-01", "2023-05-31")),
        ("last June", month("2022-06-01", "2022-06-30")),
        ("last year", Span(Grain.YEAR, date(2022, 1, 1), date(2022, 12, 31))),
        ("three years ago", Span(Grain.YEAR, date(2020, 1, 1), date(2020, 12, 31))),
    ],
)
def test_relative_dates_are_seen_from_the_time_of_asking(text: str, expected: Span) -> None:
    """Without it they say nothing."""
    assert spans_in(text, int(ASKED.timestamp() * 1000)) == [expected]
    assert spans_in(text) == []


def test_a_day_is_told_of_on_it_and_for_a_while_after() -> None:
    """1 from a day before to two after, 0.6 to ten, 0.2 to a month."""
    times = at("2022-03-14", "2022-03-15", "2022-03-18", "2022-03-19", "2022-03-26", "2022-03-27", "2022-04-17")
    assert match([day("2022-03-16")], times, Grain.DAY) == pytest.approx([0, 1, 1, 0.6, 0.6, 0.2, 0])


def test_a_month_is_told_of_inside_and_shortly_after() -> None:
    """1 inside, 0.4 for 15 days."""
    times = at("2022-02-28", "2022-03-01", "2022-03-31", "2022-04-01", "2022-04-15", "2022-04-16")
    assert match(spans_in("in March 2022"), times, Grain.MONTH) == pytest.approx([0, 1, 1, 0.4, 0.4, 0])


def test_a_date_without_a_year_is_any_years() -> None:
    """The passages' own years, and the one before: January tells of December."""
    times = at("2021-12-24", "2022-12-25", "2023-01-05", "2023-06-01")
    assert match(spans_in("on 24 December"), times, Grain.DAY) == pytest.approx([1, 1, 0.2, 0])
    assert match(spans_in("in December"), times, Grain.MONTH) == pytest.approx([1, 1, 0.4, 0])


def test_29_february_fits_leap_years_alone() -> None:
    """Other years have no such day."""
    times = at("2023-02-28", "2024-02-29")
    assert match(spans_in("on 29 February"), times, Grain.DAY).tolist() == [0, 1]


def test_a_year_counts_inside_and_grains_are_kept_apart() -> None:
    """Each grain has a weight of its own."""
    times = at("2021-12-31", "2022-01-01", "2022-12-31")
    spans = spans_in("in 2022")
    assert match(spans, times, Grain.YEAR).tolist() == [0, 1, 1]
    assert match(spans, times, Grain.DAY).tolist() == [0, 0, 0]
