"""What ranking wants to know of a text beside its vectors: its words in order, and a few marks.

Words are those of the full text, by SQLite's own tokenizer, so that what one finds the other can count. A word is
kept as a 32-bit number, in four bytes; two words rarely share one (for a word of a question and a scope that has
100 000 different ones, the chance is 1 in 40 000).

Why the order is kept: two words that stand together in a question and in a turn say more than both apart.
"""

from __future__ import annotations

import re
import threading
import zlib
from enum import IntFlag
from typing import Any, Final

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.ledger.fulltext import index_form
from pipeline.scripts import UNSPACED

TOKENIZER: Final = ("porter", "unicode61", "remove_diacritics", "2")
"""As the table ``fulltext`` names it."""

WordIds = npt.NDArray[np.uint32]

_NUMBER_WORDS: Final = (
    "one|two|three|four|five|six|seven|eight|nine|ten|couple|few|several|dozen|hundred|thousand|million"
    "|once|twice|first|second|third"
)
_TIME_WORDS: Final = (
    "yesterday|today|tomorrow|tonight|last|next|ago|week|weekend|month|year|years|since|recently|soon|morning"
    "|monday|tuesday|wednesday|thursday|friday|saturday|sunday"
    "|january|february|march|april|may|june|july|august|september|october|november|december"
)
_NUMBER: Final = re.compile(rf"\d|\b(?:{_NUMBER_WORDS})\b|[一二三四五六七八九十百千万两几]", re.IGNORECASE)
_TIME: Final = re.compile(
    rf"\b(?:{_TIME_WORDS})\b|\b(?:19|20)\d\d\b|[今明昨前去]天|[今明去前]年|上周|下周|上个月|下个月|星期|周末|月|年",
    re.IGNORECASE,
)
_QUESTION: Final = re.compile(r"[?？؟]")

_PIECE: Final = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})[^\W_])+")

_tokenizers = threading.local()


class Mark(IntFlag):
    """What a text has that a question may be after."""

    ASKS = 1
    TELLS_TIME = 2
    TELLS_NUMBER = 4


def words(text: str) -> list[str]:
    """List a text's words in order, as the full text indexes them (folded, stemmed)."""
    return list(
        _tokenizer()(
            index_form(text).encode("utf-8", "surrogatepass"),
            apsw.FTS5_TOKENIZE_DOCUMENT,
            None,
            include_offsets=False,
            include_colocated=False,
        )
    )


def placed_words(text: str) -> list[tuple[int, int, str]]:
    """List a text's words with the characters ``[start, stop)`` each was made of."""
    found = ((piece.start(), piece.end(), words(piece[0])) for piece in _PIECE.finditer(text))
    return [(start, stop, listed[0]) for start, stop, listed in found if listed]


def word_ids(text: str) -> WordIds:
    """Give a text's words in order, as ``(n,) uint32``."""
    return ids_of(words(text))


def ids_of(listed: list[str]) -> WordIds:
    """Give each word's number."""
    return np.fromiter((zlib.crc32(word.encode()) for word in listed), dtype=np.uint32, count=len(listed))


def marks(text: str) -> Mark:
    """Tell what a text has."""
    found = Mark(0)
    for mark, pattern in ((Mark.ASKS, _QUESTION), (Mark.TELLS_TIME, _TIME), (Mark.TELLS_NUMBER, _NUMBER)):
        if pattern.search(text):
            found |= mark
    return found


def _tokenizer() -> Any:
    """Give this thread's tokenizer: SQLite's are not shared between threads."""
    try:
        return _tokenizers.tokenizer
    except AttributeError:
        _tokenizers.connection = apsw.Connection(":memory:")
        name, *arguments = TOKENIZER
        _tokenizers.tokenizer = _tokenizers.connection.fts5_tokenizer(name, arguments)
        return _tokenizers.tokenizer
