"""Ranking profile `best` where turns are embedded: its best turns are read again by the model of profile `fused`.

A session's score is the chance that it answers: each of its turns adds its own chance, the second best counting seven
tenths, the third seven tenths of that, and so on. A fiftieth of `BestRanking`'s score is added, so that the sessions
of which the model has read nothing follow in its order. The turn shown is the one most likely to answer.

Measured on LoCoMo's conversations 1–5: the evidence session is among the first five for 95.4 % of the questions
(92.8 % without), and the first for 80 % (71 %); the turn shown is evidence for 66 % (45 %).

Why two steps: the model reads some hundred turns in milliseconds, `BestRanking` all of them, embedded or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import apsw
import numpy as np

from pipeline.ledger.passage_reads import Turn
from pipeline.ledger.reads import Located
from retrieval import passage_search
from retrieval.embedded_question import Asked
from retrieval.fused.model import Models
from retrieval.passage_chances import chances
from retrieval.passage_search import Found, Sought
from retrieval.reader import View
from retrieval.search import reading
from retrieval.search.best import BestRanking, in_order_of
from retrieval.search.cards import Cards
from retrieval.search.protocol import Limits
from retrieval.search.reading import Row
from retrieval.trace_search import Nearest

_N_NEAR: Final = 30
_N_MATCHING: Final = 30
"""With 50 of each: 95.3 % and 80.4 %, a sixth slower; with 20: 95.0 % and 79.6 %."""
_N_READ: Final = 20
"""The likeliest turns make up the chances: of all, many unlikely ones would outweigh a good one."""
_NEXT_BEST: Final = 0.7
"""Measured with whole retrieves on those questions: 0.5 and 0.3 find 0.3 and 0.4 points less among the first five."""
_AS_RANKED: Final = 0.02
"""From 0.01 to 0.5 it is 95.0 to 95.8 %; the less, the more often the first one is right."""


class EvidenceRanking:
    """A query's sessions by the chance that they answer.

    Args:
        view: the scope at the moment of the ranking.
        best: the ranking that this one goes on from.
        asked: the query.
        near: the traces nearest it.
        limits: which turns count.
        cards: the scope's sessions.
        models: those of profile `fused`.
        asked_ms: when it is asked.

    Raises:
        ShardError: the ledger is damaged.
    """

    def __init__(
        self,
        view: View,
        best: BestRanking,
        asked: Asked,
        near: Nearest[Located],
        limits: Limits,
        cards: Cards,
        *,
        models: Models,
        asked_ms: int,
    ) -> None:
        found = passage_search.find(
            view,
            asked,
            asked_ms=asked_ms,
            after_ms=limits.after_ms,
            before_ms=limits.before_ms,
            sought=Sought(near.first(_N_NEAR), best.best_turns(_N_MATCHING)),
            with_summaries=models.needs_summaries,
        )
        self._best = best
        self._anchors: dict[int, int] = {}
        unlikely: dict[int, list[float]] = {}
        for turn, chance in _likeliest(found, models, limits):
            number = cards.numbers[turn.session_id]
            self._anchors.setdefault(number, turn.turn_offset)
            weights = unlikely.setdefault(number, [])
            weights.append(1 - chance * _NEXT_BEST ** len(weights))
        known = best.numbers
        answering = np.array([1 - np.prod(unlikely.get(number, [1.0])) for number in known.tolist()])
        self._order = in_order_of(known, (answering + _AS_RANKED * best.totals) / (1 + _AS_RANKED), cards)

    @property
    def sessions(self) -> Iterator[tuple[int, float]]:
        """Their numbers and scores, best first."""
        return self._order

    @property
    def wanted(self) -> Sequence[str]:
        """What a snippet is to show."""
        return self._best.wanted

    def anchor(self, connection: apsw.Connection, session_no: int) -> tuple[int, Row]:
        """Give the session's turn that is most likely to answer, and its index."""
        if session_no in self._anchors:
            return reading.earliest(connection, [self._anchors[session_no]])
        return self._best.anchor(connection, session_no)


def _likeliest(found: Found, models: Models, limits: Limits) -> list[tuple[Turn, float]]:
    """List the turns most likely to answer, likeliest first, each once."""
    likely = chances(found, models)
    likeliest: dict[int, tuple[Turn, float]] = {}
    for place in np.argsort(-likely, kind="stable").tolist():
        turn = found.places[found.passages.candidates[place]].turn
        is_allowed = turn.session_id not in limits.excluded and (not limits.roles or turn.role in limits.roles)
        if is_allowed and turn.turn_offset not in likeliest:
            likeliest[turn.turn_offset] = turn, float(likely[place])
        if len(likeliest) == _N_READ:
            break
    return list(likeliest.values())
