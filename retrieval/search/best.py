"""Ranking profile `best`: people ask questions, not keywords.

A turn's score adds up how well its words answer (BM25 over stems, and the whole query as it stands), and how near its
meaning is (the vectors of its traces). A third of each neighbour's score is added, because an answer stands beside its
question. A session's score adds up its three best turns, the second counting half and the third a quarter, and BM25
over the session as a whole. Words count from the commit on, meaning once the turn is embedded. A query none of whose
words occurs, and that means nothing to the vectors, is ranked as profile `keyword` does.

Weights were chosen on LoCoMo's conversations 1–5, where words alone find the evidence session among the first five in
92 of 100 questions, and one more with vectors.

Why neighbours are sought inside a segment only: sorting all turns would take longer than all the rest, and a segment's
edge stands between few neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import apsw
import numpy as np

from retrieval.search import keyword, reading
from retrieval.search.cards import Cards
from retrieval.search.index import State
from retrieval.search.protocol import Limits
from retrieval.search.reading import Row
from retrieval.search.segment import Numbers, Segment
from retrieval.search.stems import Stemmer
from retrieval.search.tail import Tail
from retrieval.search.word_scores import WordScores

_NEIGHBOUR: Final = 0.3
_MEANING: Final = 0.5
_SESSION: Final = 0.3
_BEST_TURNS: Final = (1.0, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class Near:
    """The turns nearest in meaning, by offset ascending, with their cosine."""

    offsets: Numbers
    similarities: Numbers


class BestRanking:
    """The ranking of profile `best`; without a session when neither words nor meaning find one.

    Args:
        connection: the scope's, in the state's transaction.
        state: the scope's words.
        query: what is asked.
        limits: which turns count.
        near: the turns nearest in meaning; None when the scope has no vectors.
    """

    def __init__(
        self, connection: apsw.Connection, state: State, query: str, limits: Limits, near: Near | None
    ) -> None:
        stemmer = Stemmer(connection)
        asked = stemmer.asked(query)
        needle = query.strip().lower()
        parts = [part for part in state.parts if len(part.turns)]
        self._turns = [part.turns for part in parts]
        words = WordScores(parts, len(state.cards.ranks))
        words.add_question(asked, needle, stemmer, connection)
        self._scores = _added(
            _as_shares([spread(turns, scores) for turns, scores in zip(self._turns, words.of_turns, strict=True)], 1),
            _as_shares([spread(turns, _nearness(turns, near)) for turns in self._turns], _MEANING) if near else None,
        )
        for part, scores in zip(parts, self._scores, strict=True):
            is_allowed = keyword.allowed(part, limits, state.cards)
            if is_allowed is not None:
                scores *= is_allowed
        self.sessions = self._ranked(words.of_sessions(), state.cards)
        self.wanted: Sequence[str] = [needle, *asked.parts, *sorted(asked.stems, key=len, reverse=True)]

    def anchor(self, connection: apsw.Connection, session_no: int) -> tuple[int, Row]:
        """Give the session's best turn, and its index."""
        found = [keyword.Scored(*pair) for pair in zip(self._turns, self._scores, strict=True)]
        return reading.earliest(connection, keyword.best_of(found, session_no))

    def _ranked(self, of_sessions: Numbers, cards: Cards) -> list[tuple[int, float]]:
        """Rank sessions by their best turns and as a whole."""
        best = [_best_turns(turns, scores) for turns, scores in zip(self._turns, self._scores, strict=True)]
        numbers, scores = _per_session(best)
        if not numbers.size:
            return []
        whole = of_sessions[numbers]
        total = (scores / scores.max() + _SESSION * whole / (whole.max() or 1.0)) / (1 + _SESSION)
        return keyword.in_order(
            numbers, np.round(total * np.where(cards.is_automated[numbers], keyword.DEMOTION, 1.0), 6), cards
        )


def spread(turns: Segment | Tail, scores: Numbers) -> Numbers:
    """Add to each turn's score, ``(n,)``, a share of its neighbours'."""
    rows, is_next = turns.in_order()
    ordered = scores[rows]
    wider = ordered.copy()
    wider[1:] += _NEIGHBOUR * ordered[:-1] * is_next
    wider[:-1] += _NEIGHBOUR * ordered[1:] * is_next
    spread_out = np.empty_like(scores)
    spread_out[rows] = wider
    return spread_out


def _nearness(turns: Segment | Tail, near: Near) -> Numbers:
    scores = np.zeros(len(turns))
    rows = np.searchsorted(turns.offsets, near.offsets).clip(max=len(turns) - 1)
    is_here = turns.offsets[rows] == near.offsets
    scores[rows[is_here]] = near.similarities[is_here]
    return scores


def _as_shares(parts: list[Numbers], weight: float) -> list[Numbers]:
    """Scale scores so that the greatest of all is the weight."""
    greatest = max((float(scores.max()) for scores in parts), default=0.0)
    return [scores * (weight / greatest) for scores in parts] if greatest > 0 else parts


def _added(some: list[Numbers], others: list[Numbers] | None) -> list[Numbers]:
    return some if others is None else [a + b for a, b in zip(some, others, strict=True)]


def _best_turns(turns: Segment | Tail, scores: Numbers) -> tuple[Numbers, Numbers]:
    """Give the three best scores of each session in one part: session numbers, and scores greater than zero."""
    rows = turns.in_order()[0]
    rows = rows[scores[rows] > 0]
    numbers, values = turns.sessions[rows], scores[rows].copy()
    found_numbers, found_values = [numbers[:0]], [values[:0]]
    for _ in _BEST_TURNS:
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        if not firsts.size:
            break
        greatest = np.maximum.reduceat(values, firsts)
        found_numbers.append(numbers[firsts])
        found_values.append(greatest)
        is_greatest = np.flatnonzero(values == np.repeat(greatest, np.diff(firsts, append=len(numbers))))
        first_greatest = is_greatest[np.flatnonzero(np.diff(numbers[is_greatest], prepend=-1))]
        numbers, values = np.delete(numbers, first_greatest), np.delete(values, first_greatest)
    return np.concatenate(found_numbers), np.concatenate(found_values)


def _per_session(parts: list[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """Weigh the best turns of each session over all parts."""
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0)
    numbers, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((-scores, numbers))
    numbers, scores = numbers[order], scores[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    if not firsts.size:
        return numbers, scores
    nth = np.arange(len(numbers)) - np.repeat(firsts, np.diff(firsts, append=len(numbers)))
    weights = np.append(_BEST_TURNS, 0.0)[np.minimum(nth, len(_BEST_TURNS))]
    return numbers[firsts], np.add.reduceat(scores * weights, firsts)
