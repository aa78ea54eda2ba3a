"""Who a question is about, when that is somebody who speaks in the scope.

Why the names leave the words of a search: turns name whom they are addressed to, so the name of a speaker finds above
all what was said to him, not by him.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from retrieval.fused.lexical import STOP_WORDS
from retrieval.fused.passages import Floats

ROLES: Final = frozenset({"user", "assistant", "system", "tool"})
"""Speakers without a name; a question that says "user" does not name one."""

_SHORTEST_NICKNAME: Final = 3
_WORD: Final = re.compile(r"[^\W_]+")


def named_in(text: str, speakers: Collection[str]) -> frozenset[str]:
    """Find the speakers a question names: by any word of the name, or a nickname that begins it (Mel for Melanie)."""
    said = _WORD.findall(text)
    return frozenset(name for name in speakers if any(_names(word, name) for word in said))


def without_names(text: str, speakers: Collection[str]) -> str:
    """Take speakers' names, and the ``'s`` that hangs on them, out of a question, unless nothing else is left."""
    kept, place = [], 0
    for found in _WORD.finditer(text):
        if any(_names(found[0], name) for name in speakers):
            kept.append(text[place : found.start()])
            place = found.end()
            if text[place : place + 2] in {"'s", "’s"}:
                place += 2
    left = " ".join("".join((*kept, text[place:])).split())
    return left if _WORD.search(left) else text


def match(speakers: Sequence[str], named: frozenset[str]) -> Floats:
    """Tell for each passage whether the one whom the question names says it: ``(n,) float32``.

    1: he does; 0: somebody else does; one half: nobody is named, or more than one.
    """
    if len(named) != 1:
        return np.full(len(speakers), 0.5, np.float32)
    return np.fromiter((speaker in named for speaker in speakers), np.float32, count=len(speakers))


def _names(word: str, name: str) -> bool:
    if name in ROLES or not word[:1].isupper() or word.casefold() in STOP_WORDS:
        return _is_unspaced(word) and name in word
    folded = word.casefold()
    parts = [part.casefold() for part in _WORD.findall(name)]
    is_nickname = len(parts) > 0 and len(folded) >= _SHORTEST_NICKNAME and parts[0].startswith(folded)
    return folded in parts or is_nickname


def _is_unspaced(word: str) -> bool:
    """Tell whether a word is of a script without capitals: there it is found anywhere in the run of characters."""
    return word[:1].upper() == word[:1].lower() and not word[:1].isdigit()
