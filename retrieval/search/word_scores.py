"""How well words answer a question: BM25 over stems, turn by turn and session by session.

Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond"; the usual constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import apsw
import numpy as np

from retrieval.search.index import Part
from retrieval.search.segment import Numbers
from retrieval.search.stems import Asked, Stemmer, prefix_of

_SATURATION: Final = 1.2
_LENGTH_OF_TURN: Final = 0.75
_LENGTH_OF_SESSION: Final = 0.5
_WHOLE: Final = 1.5
"""What it counts, in BM25's terms, that a turn holds the whole question as it stands."""


class WordScores:
    """The scores of one question; ``of_turns`` has an array ``(n,)`` for each part.

    Args:
        parts: the turns, and which of them still exist.
        n_numbers: one more than the greatest session number.
    """

    def __init__(self, parts: Sequence[Part], n_numbers: int) -> None:
        self._parts = [part.turns for part in parts]
        self._alive = [part.is_alive for part in parts]
        self.of_turns: list[Numbers] = [np.zeros(len(turns)) for turns in self._parts]
        self._n_turns = sum(len(turns) for turns in self._parts)
        self._n_words = sum(int(turns.n_words.sum()) for turns in self._parts) or 1
        self._lengths = np.zeros(n_numbers)
        for turns in self._parts:
            order = turns.in_order()
            self._lengths[order.sessions] += order.n_words
        self._n_sessions = int(np.count_nonzero(self._lengths)) or 1
        self._of_sessions = np.zeros(n_numbers)

    def add_question(self, asked: Asked, needle: str, stemmer: Stemmer, connection: apsw.Connection) -> None:
        """Score what is asked for: stems, what stands for itself, and the question as it was written."""
        unknown = [
            stem for stem in asked.stems if not self._add([turns.n_times(stem, stemmer) for turns in self._parts])
        ]
        for part in (*asked.parts, *map(prefix_of, unknown)):  # what no word begins with may be the middle of one
            self._add([turns.holding(part, connection) for turns in self._parts])
        if needle:
            self._add_whole([turns.holding(needle, connection) for turns in self._parts])

    def of_sessions(self) -> Numbers:
        """Give the score of each session as a whole, by its number."""
        return self._of_sessions

    def _add(self, counts: Sequence[Numbers | None]) -> bool:
        """Add what one term scores, given how often each turn has it; tell whether any has."""
        counts = [
            times if times is None or alive is None else times * alive
            for times, alive in zip(counts, self._alive, strict=True)
        ]
        found = [None if times is None else np.flatnonzero(times) for times in counts]
        n_found = sum(len(rows) for rows in found if rows is not None)
        if not n_found:
            return False
        rarity = _rarity(n_found, self._n_turns)
        mean = self._n_words / self._n_turns
        in_sessions = np.zeros(len(self._lengths))
        for turns, scores, times, rows in zip(self._parts, self.of_turns, counts, found, strict=True):
            if times is not None and rows is not None:
                some = times[rows].astype(np.float64)
                length = 1 - _LENGTH_OF_TURN + _LENGTH_OF_TURN / mean * turns.n_words[rows]
                scores[rows] += rarity * some * (_SATURATION + 1) / (some + _SATURATION * length)
                in_sessions += np.bincount(turns.sessions[rows], weights=some, minlength=len(in_sessions))
        self._add_to_sessions(in_sessions)
        return True

    def _add_to_sessions(self, times: Numbers) -> None:
        numbers = np.flatnonzero(times)
        some = times[numbers]
        mean = self._n_words / self._n_sessions
        length = 1 - _LENGTH_OF_SESSION + _LENGTH_OF_SESSION / mean * self._lengths[numbers]
        rarity = _rarity(len(numbers), self._n_sessions)
        self._of_sessions[numbers] += rarity * some * (_SATURATION + 1) / (some + _SATURATION * length)

    def _add_whole(self, flags: Sequence[Numbers | None]) -> None:
        n_found = sum(int(held.sum()) for held in flags if held is not None)
        for scores, held in zip(self.of_turns, flags, strict=True):
            if held is not None:
                scores[held] += _WHOLE * _rarity(n_found, self._n_turns)


def _rarity(n_with: int, n: int) -> float:
    return math.log(1 + (n - n_with + 0.5) / (n_with + 0.5))
