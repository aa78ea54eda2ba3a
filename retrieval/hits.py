"""What a retrieve hands to the bot: hits with their neighbouring turns, as objects, JSON or a block for a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pipeline.records import Scope, from_epoch_ms
from retrieval import prompt
from retrieval.arguments import checked
from retrieval.cognitive_score import ScoreParts
from retrieval.memory_store import ScoredTrace
from retrieval.reader import Neighbours
from retrieval.session_retriever import Diagnostics


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A turn said just before or after a hit, whole."""

    turn_id: str
    role: str
    speaker: str | None
    text: str
    timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One trace that answers the query.

    ``text`` is the trace's part of its turn. ``score_parts`` are the unweighted terms of the cognitive score, or what
    each feature of profile ``fused`` adds; with ``cognitive`` (``fused``) and ``relevance`` too once a reranker has
    blended. Neighbours are in session order.
    """

    trace_id: int
    turn_id: str
    session_id: str
    scope: Scope
    role: str
    speaker: str | None
    text: str
    timestamp: datetime
    tags: tuple[str, ...]
    score: float
    score_parts: Mapping[str, float]
    preceding: tuple[Neighbour, ...] = ()
    following: tuple[Neighbour, ...] = ()


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The hits of one retrieve, best first, and how they were found."""

    hits: tuple[Hit, ...]
    diagnostics: Diagnostics

    def to_json(self) -> str:
        """Write one JSON object, times as ISO 8601; a new field may be added, none is renamed."""
        return json.dumps(
            {"hits": [_as_json(hit) for hit in self.hits], "diagnostics": _as_json(self.diagnostics)},
            ensure_ascii=False,
        )

    @checked
    def to_prompt(self, max_tokens: int) -> str:
        """Write the hits as a fenced block for a prompt, grouped by session, each with its date.

        The best hits get the room; then the session of the best comes first, and its turns in the order of time. A
        hit that does not fit is tried without its neighbours, then left out. Without a hit that fits, it is "".
        Where ``diagnostics.answer_is_likely`` is False, the first line says so.

        Args:
            max_tokens: never exceeded; a token is counted for every 3 bytes, more than most tokenizers make of them.

        Raises ValueError: the budget is no whole number, or negative.
        """
        return prompt.block(self.hits, max_tokens, answer_is_likely=self.diagnostics.answer_is_likely)


def to_hit(trace: ScoredTrace, scope: Scope, neighbours: Neighbours) -> Hit:
    """Make the public hit of a scored trace."""
    preceding, following = neighbours.get(trace.turn_offset, ((), ()))
    is_cognitive = isinstance(trace.parts, ScoreParts)
    terms = trace.parts._asdict() if isinstance(trace.parts, ScoreParts) else trace.parts
    parts = {name: float(value) for name, value in terms.items()}
    if trace.relevance is not None:
        parts |= {"cognitive" if is_cognitive else "fused": trace.cognitive_score, "relevance": trace.relevance}
    return Hit(
        trace_id=trace.trace_id,
        turn_id=trace.turn_id,
        session_id=trace.session_id,
        scope=scope,
        role=trace.role,
        speaker=trace.speaker,
        text=trace.text,
        timestamp=from_epoch_ms(trace.timestamp_ms),
        tags=trace.tags,
        score=trace.score,
        score_parts=parts,
        preceding=tuple(_neighbour(*row[2:]) for row in preceding),
        following=tuple(_neighbour(*row[2:]) for row in following),
    )


def _neighbour(turn_id: str, role: str, speaker: str | None, text: str, timestamp_ms: int) -> Neighbour:
    return Neighbour(turn_id, role, speaker, text, from_epoch_ms(timestamp_ms))


def _as_json(record: Hit | Diagnostics) -> dict[str, Any]:
    fields = asdict(record)
    if isinstance(record, Hit):
        fields["scope"] = record.scope.key
        for said in (fields, *fields["preceding"], *fields["following"]):
            said["timestamp"] = said["timestamp"].isoformat()
    else:
        fields["sessions"] = [match._asdict() for match in record.sessions]
    return fields
