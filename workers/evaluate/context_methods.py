"""What the strategies are compared with: remembering nothing, all of it, and the words of the question alone."""

from __future__ import annotations

from typing import Final

import numpy as np

from retrieval.context.layout.wording import LEAST_TOKENS, exchanges_within
from retrieval.context.protocol import Asked, Offer, Piece, facts_of, room_of

_FEWEST: Final = 32


class Nothing:
    """No memory: what every other way must be worth more than."""

    name: Final = "no memory"

    def offer(self, asked: Asked) -> Offer:  # noqa: ARG002 - there is nothing to look at
        """Offer nothing."""
        return Offer(pieces=())


class Everything:
    """The full history, in whole: what there is to be had, and what it costs."""

    name: Final = "full history"

    def offer(self, asked: Asked) -> Offer:
        """Offer every exchange, as it is."""
        return Offer(pieces=[_piece(asked, place, 1.0) for place in range(len(asked.entries))])


class WordsOnly:
    """The exchanges that share the most with the question's words, by BM25; the same pieces and budget as ours."""

    name: Final = "BM25 only"

    def offer(self, asked: Asked) -> Offer:
        """Offer exchanges by their score; among equals the latest first."""
        scores = facts_of(asked).bm25(asked.objective or "")
        best_first = np.lexsort((-np.arange(len(scores)), -scores))[: max(room_of(asked) // LEAST_TOKENS, _FEWEST)]
        return Offer(pieces=[_piece(asked, place, float(scores[place])) for place in best_first.tolist()])


def _piece(asked: Asked, place: int, score: float) -> Piece:
    entry = asked.entries[place]
    text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
    return Piece(
        section="",
        place=(place,),
        text=text,
        shorter=tuple(shorter),
        entry_ids=(entry.entry_id,),
        score=score,
        why="compared with",
    )
