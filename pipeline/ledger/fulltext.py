"""What full text sees of a text: scripts written without spaces are given some, one character a word.

Knows the characters of such scripts, for whoever tells words apart.

Why: FTS5's unicode61 takes a run of Chinese as a single word, which no query for a part of it finds.
"""

from __future__ import annotations

import re
from typing import Final

UNSPACED: Final = (
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\uac00-\ud7af"  # Hangul
    "]"
)
"""A character of a script that is written without spaces, as a regular expression."""
CJK: Final = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Kana and the usual Han, to stand in a set of a regular expression: what summaries and themes are told apart by.

Why not all of `UNSPACED`: with others, stored summaries and themes would no longer be what is made today.
"""
_UNSPACED: Final = re.compile(UNSPACED)


def index_form(text: str) -> str:
    """Put spaces around each character of a script that is written without them."""
    return _UNSPACED.sub(r" \g<0> ", text)
