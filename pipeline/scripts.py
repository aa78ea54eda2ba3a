"""Scripts that are written without spaces: which characters are theirs, for whoever tells words apart."""

from __future__ import annotations

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
