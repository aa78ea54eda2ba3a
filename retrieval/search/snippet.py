"""A glimpse of a text: about 120 characters around what was found, on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from apsw import unicode

WIDTH: Final = 120
CUT: Final = "…"
_CERTAIN_BREAK: Final = re.compile("[ -~\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]{2}")
"""Two characters that never are one grapheme: counting graphemes may begin between them."""


def snippet(text: str, wanted: Sequence[str]) -> str:
    """Show the first place of the first wanted text that is there; the text's beginning when none is.

    White space is collapsed on both sides, case ignored; no grapheme is split, and a cut end shows `CUT`.
    """
    flat = " ".join(text.split())
    start, length = _first_match(flat, wanted)
    begin = max(0, min(start - max(0, WIDTH - length) // 2, len(flat) - WIDTH))
    begin, end = _break_at(flat, begin), _break_at(flat, begin + WIDTH)
    return f"{CUT if begin else ''}{flat[begin:end]}{CUT if end < len(flat) else ''}"


def whole_graphemes(text: str, n_chars: int) -> str:
    """Give the beginning of a text, at most so many characters, without splitting a grapheme."""
    return text[: _break_at(text, n_chars)]


def _first_match(flat: str, wanted: Sequence[str]) -> tuple[int, int]:
    """Tell where, and over how many characters, the first of the wanted texts that is there stands."""
    lowered = flat.lower()
    for text in wanted:
        part = " ".join(text.lower().split())
        at = lowered.find(part) if part else -1
        if at >= 0:
            first, last = _origin(flat, lowered, at), _origin(flat, lowered, at + len(part))
            return first, last - first
    return 0, 0


def _origin(flat: str, lowered: str, at: int) -> int:
    """Give the place in a text of a place in its lower case, which may be longer (İ)."""
    if len(flat) == len(lowered):
        return at
    n_before = 0
    for place, character in enumerate(flat):
        if n_before >= at:
            return place
        n_before += len(character.lower())
    return len(flat)


def _break_at(text: str, place: int) -> int:
    """Give the last place up to this one where a grapheme ends."""
    if place >= len(text):
        return len(text)
    certain = 0
    for size in (64, 1_024, place):  # nearly always among the few characters before
        found = list(_CERTAIN_BREAK.finditer(text, max(0, place - size), place + 1))
        if found:
            certain = found[-1].start() + 1
            break
    while (following := unicode.grapheme_next_break(text, certain)) <= place:
        certain = following
    return certain
