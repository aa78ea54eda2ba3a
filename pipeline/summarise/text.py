"""A session as one text, and a text too long for the model as several that fit.

Token counts come from the caller's counter, which is taken to be about additive: the count of two joined texts is
about the sum of both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

CountTokens = Callable[[str], int]

CONTINUATION: Final = "  "
"""Begins a line that goes on with the turn above it, so that no line of a turn looks like a new speaker."""

_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")


def session_text(turns: Iterable[tuple[str, str]]) -> str:
    """Write (speaker or role, content) pairs in order, one turn per line; blank turns are left out."""
    return "\n".join(
        f"{' '.join(who.split())}: {f'{chr(10)}{CONTINUATION}'.join(content.strip().splitlines())}"
        for who, content in turns
        if content.strip()
    )


def split_text(text: str, max_tokens: int, count_tokens: CountTokens) -> list[str]:
    """Cut a text into parts of at most ``max_tokens``: between lines, else between sentences, else anywhere.

    Parts are stripped and never blank; a single character is never cut.
    """
    pieces = _pieces(text, max_tokens, count_tokens, (_lines, _sentences, _halves))
    parts = (part.strip() for part in _packed(pieces, max_tokens))
    return [part for part in parts if part]


def clip_text(text: str, max_tokens: int, count_tokens: CountTokens) -> str:
    """Keep the beginning of a text, at most ``max_tokens`` of it."""
    if count_tokens(text) <= max_tokens:
        return text
    return next(iter(split_text(text, max_tokens, count_tokens)), "")


_Cut = Callable[[str], list[str]]


def _pieces(text: str, limit: int, count: CountTokens, cuts: tuple[_Cut, ...]) -> Iterator[tuple[str, int]]:
    """Yield consecutive pieces with their token counts, each within the limit, as large as the cuts allow."""
    n_tokens = count(text)
    if n_tokens <= limit or len(text) <= 1:
        yield text, n_tokens
        return
    cut, *finer = cuts
    for piece in cut(text):
        # The last cut halves, so it is applied again until the halves fit.
        yield from _pieces(piece, limit, count, tuple(finer) or cuts)


def _packed(pieces: Iterable[tuple[str, int]], limit: int) -> Iterator[str]:
    held: list[str] = []
    n_held = 0
    for piece, n_tokens in pieces:
        if held and n_held + n_tokens > limit:
            yield "".join(held)
            held, n_held = [], 0
        held.append(piece)
        n_held += n_tokens
    yield "".join(held)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _sentences(text: str) -> list[str]:
    ends = [0, *(found.end() for found in _SENTENCE.finditer(text)), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(ends) if stop > start]


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    space = text.rfind(" ", middle // 2, middle) + 1  # rather between words than inside one
    at = space or middle
    return [text[:at], text[at:]]
