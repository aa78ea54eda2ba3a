"""What a terminal shows of a text and of the parts of a score."""

from __future__ import annotations

from workers import shown


def test_a_long_text_is_cut_to_one_line_of_the_asked_length() -> None:
    """Line breaks in what was said must not break a table."""
    assert shown.shortened("one\n two", 7) == "one two"
    assert shown.shortened("one\n two three", 8) == "one two…"


def test_the_reasons_come_greatest_first_without_those_that_would_read_as_nothing() -> None:
    """A column of 0.00 explains nothing; a negative part takes score away, which does explain something."""
    assert shown.why({"mood": -0.2, "importance": 0.004, "similarity": 0.91}) == "similarity 0.91 mood -0.20"
