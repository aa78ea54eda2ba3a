"""What a scope's other sessions say about an objective, for a session that has no history of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from retrieval.context.cutting import cut
from retrieval.context.strategies.protocol import Offer, Piece
from retrieval.hits import Hit

HEADING: Final = "From other sessions"
_LEAST_SCORE: Final = 0.05
"""The fused score is the probability that a hit answers; a lower one is chance."""
_SHORTER: Final = (400, 200, 80)


def offer(hits: Sequence[Hit], session_id: str) -> Offer:
    """Offer hits of other sessions, best first to be taken, in the order of time, each with its session and date."""
    pieces = [
        _piece(hit, rank)
        for rank, hit in enumerate(hits)
        if hit.session_id != session_id and hit.score >= _LEAST_SCORE
    ]
    return Offer(pieces=pieces, sections=(HEADING,))


def _piece(hit: Hit, rank: int) -> Piece:
    where = f"{hit.timestamp:%Y-%m-%d}, session {' '.join(hit.session_id.split())}"
    said = f"[{where}] {' '.join((hit.speaker or hit.role).split())}: "
    return Piece(
        section=HEADING,
        place=(hit.timestamp.timestamp(), rank),
        text=said + hit.text.strip(),
        shorter=tuple(said + cut(hit.text.strip(), n) for n in _SHORTER if len(hit.text) > n),
        entry_ids=(hit.turn_id,),
        score=hit.score,
        why=f"said in session {hit.session_id}; nothing is known of this one",
    )
