"""A question as the stems that tell sessions apart: "What did Caroline research?" asks for `carolin` and `research`.

Stems are those of SQLite's porter tokenizer, as in the ledger's full text. Scripts written without spaces give pairs
of characters instead, looked for as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import apsw

from pipeline.scripts import UNSPACED

_STOP: Final[frozenset[str]] = frozenset(
    re.findall(
        "[a-z]+",
        "a about ani an and are as at be been but by can could did do doe done ha had have he her hi him how i if in"
        " into is it me my no not of on or our she should so some than that the their them then there these thei this"
        " those to us wa we were what when where which who whi will with would you your d ll m re s t ve",
    )
)
"""Stems, not words."""
_UNSPACED_RUN: Final = re.compile(f"{UNSPACED}+")
_LEAST_PREFIX: Final = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question asks for: stems, and parts of words that are looked for as they are."""

    stems: tuple[str, ...]
    parts: tuple[str, ...]


class Stemmer:
    """SQLite's porter stemmer, for one connection's thread."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._tokenize = connection.fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])

    def asked(self, question: str) -> Asked:
        """Read a question; its stop words count only when it has no others."""
        runs = _UNSPACED_RUN.findall(question)
        parts = [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]
        stems = [stem for stem, _ in self.placed(_UNSPACED_RUN.sub(" ", question))]
        telling = [stem for stem in stems if stem not in _STOP]
        return Asked(tuple(dict.fromkeys(telling or ([] if parts else stems))), tuple(dict.fromkeys(parts)))

    def placed(self, text: str) -> list[tuple[str, int]]:
        """Give the stems of a text, each with the byte it begins at."""
        found: Any = self._tokenize(
            text.encode("utf-8", "replace"), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_colocated=False
        )
        return [(stem, start) for start, _, stem in found]


def prefix_of(stem: str) -> str:
    """Give what every word of a stem begins with: the stem, or all but its last letter, which endings may change."""
    return stem[:-1] if len(stem) > _LEAST_PREFIX else stem
