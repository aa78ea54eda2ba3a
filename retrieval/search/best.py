"""Ranking profile `best`: people ask questions, not keywords. `evidence` goes on from it where turns are embedded.

A turn's score adds up how well its words answer (BM25 over stems, and the whole query as it stands), and how near
its meaning is (the vectors of its traces). A third of each neighbour's score is added, because an answer stands
beside its question. A session's score adds up its three best turns, the second counting half and the third a
quarter, and BM25 over the session as a whole. Words count from the commit on, meaning once the turn is embedded. A
query none of whose words occurs, and that means nothing to the vectors, is ranked as profile `keyword` does.

Weights were chosen on LoCoMo's conversations 1–5, where words alone find the evidence session among the first
five in 92 of 100 questions, and one more with vectors.

Why neighbours are sought inside a segment only: sorting all turns would take longer than all the rest, and the edge
of a segment stands between few neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_LOOKED_AT: Final = 256
"""Sessions whose three best turns are added up: those that could come first; of the others the best one counts."""


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
        masks = [keyword.allowed(part, limits, state.cards) for part in parts]
        self._scores = [
            scores if mask is None else scores * mask for scores, mask in zip(self._scores, masks, strict=True)
        ]
        self._best = _greatest(self._turns, self._scores, len(state.cards.ranks))
        self.numbers, self.totals = self._ranked(words.of_sessions())
        """The sessions that anything speaks for, and how much does, from 0 to 1; in no order."""
        self.sessions = in_order_of(self.numbers, self.totals, state.cards)
        self.wanted: Sequence[str] = [needle, *asked.parts, *sorted(asked.stems, key=len, reverse=True)]

    def anchor(self, connection: apsw.Connection, session_no: int) -> tuple[int, Row]:
        """Give the session's best turn, and its index."""
        found = [keyword.Scored(*pair) for pair in zip(self._turns, self._scores, strict=True)]
        return reading.earliest(connection, keyword.best_of(found, session_no))

    def finds_any(self) -> bool:
        """Tell whether there is any session."""
        return bool(self._best.any())

    def best_turns(self, n: int) -> list[int]:
        """List the offsets of the ``n`` best turns."""
        offsets = np.concatenate([turns.offsets for turns in self._turns] or [np.empty(0, np.int64)])
        scores = np.concatenate(self._scores or [np.empty(0)])
        first = np.argpartition(-scores, n)[:n] if len(scores) > n else np.arange(len(scores))
        return [int(offset) for offset in offsets[first[scores[first] > 0]]]

    def _ranked(self, of_sessions: Numbers) -> tuple[Numbers, Numbers]:
        """Weigh sessions by their best turns and as a whole."""
        best = self._best
        numbers = np.flatnonzero(best)
        if not numbers.size:
            return numbers, np.empty(0)
        whole = of_sessions[numbers] / (of_sessions[numbers].max() or 1.0)
        bound = sum(_BEST_TURNS) * best[numbers]
        if len(numbers) > _LOOKED_AT:
            first = np.argpartition(-(bound / bound.max() + _SESSION * whole), _LOOKED_AT)[:_LOOKED_AT]
        else:
            first = np.arange(len(numbers))
        best[numbers[first]] = _sums(self._turns, self._scores, numbers[first], len(best))[numbers[first]]
        return numbers, (best[numbers] / best.max() + _SESSION * whole) / (1 + _SESSION)


def in_order_of(numbers: Numbers, totals: Numbers, cards: Cards) -> Iterator[tuple[int, float]]:
    """Yield sessions, the greatest total first, automated ones demoted."""
    demoted = np.where(cards.is_automated[numbers], keyword.DEMOTION, 1.0)
    return keyword.in_order(numbers, np.round(totals * demoted, 6), cards)


def spread(turns: Segment | Tail, scores: Numbers) -> Numbers:
    """Add to each turn's score, ``(n,)``, a share of its neighbours'."""
    rows, is_next, *_ = turns.in_order()
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


def _greatest(parts: Sequence[Segment | Tail], scores: Sequence[Numbers], n_numbers: int) -> Numbers:
    """Give the best score of each session, by its number."""
    best = np.zeros(n_numbers)
    for turns, values in zip(parts, scores, strict=True):
        order = turns.in_order()
        here = np.maximum.reduceat(values[order.rows], order.firsts)
        best[order.sessions] = np.maximum(best[order.sessions], here)
    return best


def _sums(parts: Sequence[Segment | Tail], scores: Sequence[Numbers], wanted: Numbers, n_numbers: int) -> Numbers:
    """Weigh and add up the best turns of some sessions, by number; the others are left at zero."""
    is_wanted = np.zeros(n_numbers, dtype=np.bool_)
    is_wanted[wanted] = True
    rows = [
        np.flatnonzero(is_wanted[turns.sessions] & (values > 0)) for turns, values in zip(parts, scores, strict=True)
    ]
    numbers = np.concatenate([turns.sessions[some] for turns, some in zip(parts, rows, strict=True)])
    values = np.concatenate([values[some] for values, some in zip(scores, rows, strict=True)])
    order = np.lexsort((-values, numbers))
    numbers, values = numbers[order], values[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    nth = np.arange(len(numbers)) - np.repeat(firsts, np.diff(firsts, append=len(numbers)))
    weights = np.append(_BEST_TURNS, 0.0)[np.minimum(nth, len(_BEST_TURNS))]
    return np.bincount(numbers, weights=values * weights, minlength=n_numbers)
