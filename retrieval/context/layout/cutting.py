"""Cut a text to a length where a reader would: between words, and never inside a character as people see it.

Why `regex`: what looks like one character (a flag, a family, a letter with its accents, a Korean syllable) may be
many code points; the standard library does not know where it ends.
"""

from __future__ import annotations

from typing import Final

import regex

from pipeline.scripts import UNSPACED

ELLIPSIS: Final = "…"
_GRAPHEME: Final = regex.compile(r"\X")
_WORD_START: Final = regex.compile(rf"(?<=\s)\S|(?<={UNSPACED}|[、。，！？：；])\S|{UNSPACED}")
_LEAST_KEPT: Final = 0.5
"""Of the room: a word that is longer than the rest of it is cut between characters."""


def cut(text: str, max_chars: int) -> str:
    """Shorten a text to at most so many code points, the ellipsis among them; one that fits stays as it is."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(ELLIPSIS)
    if room < 0:
        return ""
    seen = text[: room + 1]  # one more: only where the next character begins is a boundary told
    end = seen.rfind(" ") if seen.isascii() else 0
    if end >= _LEAST_KEPT * room and end:
        return text[:end].rstrip() + ELLIPSIS
    boundaries = [found.start() for found in _GRAPHEME.finditer(seen)]
    end = boundaries[-1]
    starts = {found.start() for found in _WORD_START.finditer(seen)}
    between_words = [place for place in boundaries if place in starts or seen[place].isspace()]
    if between_words and between_words[-1] >= _LEAST_KEPT * room:
        end = between_words[-1]
    return text[:end].rstrip() + ELLIPSIS
