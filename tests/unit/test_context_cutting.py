"""Ages in words, and texts cut where a reader would cut them."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from retrieval.context.layout.ages import age
from retrieval.context.layout.cutting import ELLIPSIS, cut

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ago_ms", "words"),
    [
        (0, "just now"),
        (59 * SECOND, "just now"),
        (MINUTE, "1 minute ago"),
        (2 * MINUTE - 1, "1 minute ago"),
        (2 * MINUTE, "2 minutes ago"),
        (HOUR - 1, "59 minutes ago"),
        (HOUR, "1 hour ago"),
        (2 * HOUR, "2 hours ago"),
        (DAY - 1, "23 hours ago"),
        (DAY, "1 day ago"),
        (400 * DAY, "400 days ago"),
        (-DAY, "just now"),
    ],
)
def test_an_age_is_told_in_its_largest_whole_unit(ago_ms: int, words: str) -> None:
    """Singular and plural are right, and a publisher's clock that runs ahead says "just now"."""
    assert age(1_700_000_000_000, 1_700_000_000_000 + ago_ms) == words


@pytest.mark.parametrize(
    ("text", "n", "kept"),
    [
        ("hello brave new world", 21, "hello brave new world"),
        ("hello brave new world", 16, "hello brave new…"),
        ("hello brave new world", 15, "hello brave…"),
        ("hello brave new world", 12, "hello brave…"),
        ("we met - and left", 9, "we met -…"),
        ("x" * 30, 10, "x" * 9 + "…"),
        ("https://example.org/a/long/path is here", 20, "https://example.org…"),
        ("我们想去北京看长城", 6, "我们想去北…"),
        ("xxxxxxxxe\u0301e\u0301", 10, "xxxxxxxx…"),
        ("cafe\u0301 cafe\u0301", 9, "cafe\u0301…"),
        ("👨‍👩‍👧‍👦👨‍👩‍👧‍👦", 10, "👨‍👩‍👧‍👦…"),
        ("🇩🇪🇫🇷🇮🇹", 4, "🇩🇪…"),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165", 7, "\u1112\u1161\u11ab\u1100\u116e\u11a8…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
        ("", 0, ""),
    ],
)
def test_a_text_is_cut_between_words_and_never_in_a_character(text: str, n: int, kept: str) -> None:
    """A cut word misleads; half an emoji or a letter without its accent is another character."""
    assert cut(text, n) == kept


TEXTS = st.text(st.sampled_from("ab  \n-.é́👨‍👩🇩🇪北京한ก็\u0301\u200d\r"), max_size=60)


@given(TEXTS, st.integers(0, 40))
def test_what_is_cut_ends_where_a_character_ends(text: str, n: int) -> None:
    """Whatever the text: never longer than allowed, a beginning of it, and whole characters."""
    found = cut(text, n)
    assert len(found) <= n or found == text
    if found != text and found:
        kept = found.removesuffix(ELLIPSIS)
        assert text.startswith(kept)
        boundaries = {match.start() for match in regex.finditer(r"\X", text)}
        rest = text[len(kept) :]
        n_spaces = len(rest) - len(rest.lstrip())  # spaces before the cut go as well
        assert any(len(kept) + skipped in boundaries for skipped in range(n_spaces + 1))
