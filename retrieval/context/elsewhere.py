"""What a scope's other sessions say about an objective, for a session that has no history of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pipeline.ledger.words import placed_words
from retrieval.context.layout.cutting import cut
from retrieval.context.protocol import Offer, Piece
from retrieval.fused.asking import stop_stems
from retrieval.hits import Hit
from retrieval.search.protocol import SessionHit

HEADING: Final = "From other sessions"
_LEAST_SCORE: Final = 0.05
"""The fused score is the probability that a hit answers; a lower one is chance."""
_SHORTER: Final = (400, 200, 80)


@dataclass(frozen=True, slots=True)
class Quote:
    """What was said in some session."""

    session_id: str
    turn_id: str
    said_at: datetime
    who: str
    text: str
    score: float


def quotes_of(hits: Sequence[Hit]) -> list[Quote]:
    """Quote what a retrieve found, best first."""
    return [
        Quote(hit.session_id, hit.turn_id, hit.timestamp, hit.speaker or hit.role, hit.text, hit.score)
        for hit in hits
        if hit.score >= _LEAST_SCORE
    ]


def quotes_of_sessions(found: Sequence[SessionHit]) -> list[Quote]:
    """Quote the best turn of each session that a search found, best first."""
    return [
        Quote(
            hit.session_id,
            message["message_id"],
            datetime.fromisoformat(message["timestamp"]),
            message.get("speaker") or message["role"],
            message["content"],
            hit.score,
        )
        for hit in found
        for message in hit.messages
        if message["index"] == hit.anchor_index
    ]


def telling_words(objective: str) -> str:
    """Give the words by which to search for an objective, as they are written; all of it if it has no other."""
    placed = placed_words(objective)
    return " ".join(objective[start:stop] for start, stop, stem in placed if stem not in stop_stems()) or objective


def offer(quotes: Sequence[Quote], session_id: str) -> Offer:
    """Offer quotes of other sessions, in the order of time, each with its session and date."""
    pieces = [_piece(quote, rank) for rank, quote in enumerate(quotes) if quote.session_id != session_id]
    return Offer(pieces=pieces, sections=(HEADING,))


def _piece(quote: Quote, rank: int) -> Piece:
    where = f"{quote.said_at:%Y-%m-%d}, session {' '.join(quote.session_id.split())}"
    begin, text = f"[{where}] {' '.join(quote.who.split())}: ", quote.text.strip()
    return Piece(
        section=HEADING,
        place=(quote.said_at.timestamp(), rank),
        text=begin + text,
        shorter=tuple(begin + cut(text, n) for n in _SHORTER if len(text) > n),
        entry_ids=(quote.turn_id,),
        score=quote.score,
        why=f"said in session {quote.session_id}; nothing is known of this one",
    )
