"""The fields of each event, their descriptions and bounds; the JSON Schema is made from these.

Why: pydantic checks each event once, here at the edge; `record` hands out the frozen dataclass everyone else uses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.contract.limits import reject_long_content, storable_metadata
from pipeline.records import (
    Mood,
    Scope,
    ScopeDeleted,
    SessionClosed,
    SessionDeleted,
    Turn,
    TurnDeleted,
    to_epoch_ms,
)

EventId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"\S",
        description="unique for ever: an event whose id was seen before has no effect",
        examples=["telegram-77-4211"],
    ),
]
ScopeKind = Annotated[
    str,
    Field(
        pattern="^[a-z][a-z0-9_]{0,63}$",
        description="kind of the isolation key: user, thread, persona, organization, or your own word",
        examples=["user"],
    ),
]
ScopeId = Annotated[
    str,
    Field(min_length=1, max_length=512, description="which user, thread, …; never used as a path", examples=["u42"]),
]
SessionId = Annotated[
    str,
    Field(min_length=1, max_length=512, pattern=r"\S", description="the session within the scope", examples=["s-7"]),
]
TurnId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        pattern=r"\S",
        description="the turn within the session",
        examples=["4211"],
    ),
]
Timestamp = Annotated[
    str | int | float,
    Field(
        description="when it happened: ISO 8601 (without a zone: UTC) or epoch seconds; years 1900 to 2199",
        examples=["2024-05-01T12:30:00Z", 1714566600.25],
    ),
]
PadValue = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False, examples=[0.4])]
Tag = Annotated[str, Field(max_length=256)]


class _Strict(BaseModel):
    """Take no number for text and no text for a number."""

    model_config = ConfigDict(strict=True, extra="ignore")


class MoodFields(_Strict):
    """An affective state, valence, arousal and dominance each in [-1, 1]."""

    model_config = ConfigDict(strict=True, extra="forbid")

    valence: PadValue = Field(0.0, description="unpleasant to pleasant")
    arousal: PadValue = Field(0.0, description="calm to excited")
    dominance: PadValue = Field(0.0, description="powerless to in control")


class _EventFields(_Strict):
    """What every event has."""

    event_id: EventId
    scope: ScopeKind
    scope_id: ScopeId
    timestamp: Timestamp

    def where(self) -> Scope:
        """Build the scope, which has rules of its own."""
        return Scope(self.scope, self.scope_id)


class TurnFields(_EventFields):
    """One turn of a session."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["turn"] = Field(description="a turn was said, or edited (same turn_id, higher revision)")
    session_id: SessionId
    role: str = Field(
        pattern=r"^[^\s\p{Cc}]{1,64}$",
        description="user, assistant, system, tool, or another word",
        examples=["user"],
    )
    content: str = Field(
        description="what was said, at most 1 MiB of UTF-8; empty is accepted and never searchable",
        examples=["Shall we go to Lisbon in May?"],
    )
    turn_id: TurnId | None = Field(None, description="the turn within the session; default: event_id")
    index: Annotated[int, Field(ge=0, le=1 << 53)] | None = Field(
        None, description="orders turns of equal timestamp; default 0", examples=[3]
    )
    revision: Annotated[int, Field(ge=0, le=1 << 53)] | None = Field(
        None, description="raised with every edit of the same turn; default 0", examples=[0]
    )
    speaker: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="who said it, when the role does not tell", examples=["Ada"]
    )
    tags: Annotated[list[Tag], Field(max_length=64)] | None = Field(
        None, description="at most 64 words to filter by, each at most 256 characters", examples=[["travel"]]
    )
    mood: MoodFields | None = Field(
        None, description="the speaker's affective state", examples=[{"valence": 0.4, "arousal": 0.1, "dominance": 0}]
    )
    metadata: dict[str, Any] | None = Field(
        None,
        description="any JSON object, at most 256 KiB; known keys: source, agent_name, title, lineage_id, "
        "root_session_id, thread_id, parent_session_id, automated; of its exchange: key_results, tools, errors, "
        "outcome, refs, recalls, pinned, turnstream.exchange (turns of a session with one value are one exchange)",
        examples=[{"source": "telegram", "title": "Holiday plans"}],
    )

    def record(self) -> Turn:
        """Build the turn; unknown fields go into its metadata."""
        reject_long_content(self.content)
        return Turn(
            scope=self.where(),
            session_id=self.session_id,
            role=self.role,
            content=self.content,
            timestamp=self.timestamp,
            event_id=self.event_id,
            turn_id=self.turn_id or self.event_id,
            index=self.index or 0,
            revision=self.revision or 0,
            speaker=self.speaker,
            tags=tuple(self.tags or ()),
            mood=Mood(self.mood.valence, self.mood.arousal, self.mood.dominance) if self.mood else None,
            metadata=storable_metadata(self.metadata or {}, self.__pydantic_extra__ or {}),
        )


class SessionClosedFields(_EventFields):
    """No more turns are expected in a session."""

    type: Literal["session_closed"] = Field(description="summarise the session now rather than after its idle time")
    session_id: SessionId
    summary: str | None = Field(
        None, description="the platform's own summary, used as it is", examples=["They plan a trip to Lisbon."]
    )

    def record(self) -> SessionClosed:
        """Build the closing."""
        if self.summary is not None:
            reject_long_content(self.summary, "summary")
        return SessionClosed(
            scope=self.where(),
            session_id=self.session_id,
            timestamp_ms=to_epoch_ms(self.timestamp),
            event_id=self.event_id,
            summary=self.summary,
        )


class TurnDeletedFields(_EventFields):
    """Forget one turn."""

    type: Literal["turn_deleted"] = Field(description="forget this turn for good")
    session_id: SessionId
    turn_id: TurnId

    def record(self) -> TurnDeleted:
        """Build the deletion."""
        return TurnDeleted(
            scope=self.where(),
            session_id=self.session_id,
            turn_id=self.turn_id,
            timestamp_ms=to_epoch_ms(self.timestamp),
            event_id=self.event_id,
        )


class SessionDeletedFields(_EventFields):
    """Forget one session."""

    type: Literal["session_deleted"] = Field(description="forget this session, and what arrives for it later")
    session_id: SessionId

    def record(self) -> SessionDeleted:
        """Build the deletion."""
        return SessionDeleted(
            scope=self.where(),
            session_id=self.session_id,
            timestamp_ms=to_epoch_ms(self.timestamp),
            event_id=self.event_id,
        )


class ScopeDeletedFields(_EventFields):
    """Forget a whole scope."""

    type: Literal["scope_deleted"] = Field(description="forget everything in this scope up to the timestamp")

    def record(self) -> ScopeDeleted:
        """Build the deletion."""
        return ScopeDeleted(scope=self.where(), timestamp_ms=to_epoch_ms(self.timestamp), event_id=self.event_id)


AnyFields = TurnFields | SessionClosedFields | TurnDeletedFields | SessionDeletedFields | ScopeDeletedFields
EventFields = Annotated[AnyFields, Field(discriminator="type")]

_KNOWN = frozenset(name for kind in AnyFields.__args__ for name in kind.model_fields) | frozenset(
    f"mood.{name}" for name in MoodFields.model_fields
)


def loggable(field: str) -> str:
    """Give a field's name as far as it is the contract's own; the rest is a word of the publisher's."""
    parts = field.split(".")
    known = (".".join(parts[:n]) for n in (2, 1))
    return next((name for name in known if name in _KNOWN), "")
