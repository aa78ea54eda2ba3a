"""The last exchanges, and of those before them the most important ones.

With an objective the last exchanges share a quarter of the room, so that what it is about has some; what room the
others leave is theirs again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from retrieval.context.entries.words import Scores
from retrieval.context.layout.answer import Decisions
from retrieval.context.layout.budget import held_back
from retrieval.context.layout.wording import exchanges_within
from retrieval.context.protocol import Asked, Decision, Offer, Piece, facts_of, room_of
from retrieval.context.ranking import lengths
from retrieval.context.ranking.importance import Parts, parts, weighed

ALWAYS: Final = 3
"""Exchanges that are kept whatever they score. Source: the table of strategy `importance`."""
LAST_SHARE: Final = 0.25


class Importance:
    """Keeps the last three exchanges, then those with the highest score; pinned ones before all others."""

    name: Final = "importance"

    def offer(self, asked: Asked) -> Offer:
        """Offer the last exchanges, then the others by their score; changes nothing.

        Raises:
            ValueError: every weight of the importance factors is 0.
        """
        facts = facts_of(asked)
        found = parts(asked, facts)
        scores = weighed(found, asked.settings.importance_factors, has_objective=asked.objective is not None)
        scores[facts.is_pinned] = 100
        n = len(asked.entries)
        by_score = np.lexsort((-np.arange(n), -scores))
        ordered = [*range(n - 1, max(-1, n - 1 - ALWAYS), -1), *by_score[by_score < n - ALWAYS].tolist()]
        n_tried = ALWAYS + lengths.n_that_fill(ordered[ALWAYS:], facts, room_of(asked))
        tried, left = ordered[:n_tried], ordered[n_tried:]
        return Offer(
            pieces=[_piece(asked, place, found, scores) for place in tried],
            left=Decisions(len(left), lambda i: _left(asked, left[i], found, scores)),
        )


def _piece(asked: Asked, place: int, found: Parts, scores: Scores) -> Piece:
    entry = asked.entries[place]
    is_last = place >= len(asked.entries) - ALWAYS
    text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
    piece = Piece(
        section="",
        place=(place,),
        text=text,
        shorter=tuple(shorter),
        entry_ids=(entry.entry_id,),
        score=float(scores[place]),
        why=f"one of the last {ALWAYS}" if is_last else _why(asked, place, found),
    )
    share = room_of(asked) * LAST_SHARE / ALWAYS
    return held_back(piece, share) if is_last and asked.objective is not None else piece


def _left(asked: Asked, place: int, found: Parts, scores: Scores) -> Decision:
    why = f"less important than what fills the room: {_why(asked, place, found)}"
    return Decision(entry_ids=(asked.entries[place].entry_id,), is_kept=False, score=float(scores[place]), why=why)


def _why(asked: Asked, place: int, found: Parts) -> str:
    if asked.entries[place].is_pinned:
        return "pinned"
    return ", ".join(f"{name} {part[place]:.2f}" for name, part in found._asdict().items())
