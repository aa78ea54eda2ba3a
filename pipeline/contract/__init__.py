"""The event contract: what a platform writes into the stream, and what becomes of it.

Owns the JSON of an event, its limits and its published JSON Schema. Holds no state, so nothing is left after a crash.

An optional field that is ``null`` counts as absent. A key written twice counts once: the last one. A ``turn``'s
fields that nobody knows are kept in its ``metadata`` (under ``event.<name>`` when that name is taken there); the
other events have no metadata, and unknown fields of theirs are ignored.

Why: `encode` validates its own output with the very models `decode` uses. A few microseconds buy that nothing is
published which the ingester would set aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NoReturn

from pydantic import TypeAdapter, ValidationError

from pipeline.contract.fields import AnyFields, EventFields, SessionClosedFields, loggable
from pipeline.contract.limits import (
    MAX_CONTENT_BYTES,
    MAX_EVENT_BYTES,
    MAX_METADATA_BYTES,
    MAX_REASON_CHARS,
    explain_bad_text,
    looks_non_finite,
    reject_bad_metadata,
    reject_long_content,
    to_compact_json,
)
from pipeline.errors import PoisonError
from pipeline.records import (
    Event,
    Scope,
    ScopeDeleted,
    SessionClosed,
    SessionDeleted,
    Turn,
    TurnDeleted,
    from_epoch_ms,
)

__all__ = [
    "MAX_CONTENT_BYTES",
    "MAX_EVENT_BYTES",
    "MAX_METADATA_BYTES",
    "decode",
    "encode",
    "json_schema",
    "loggable",
]

_TYPES: Final = {
    Turn: "turn",
    SessionClosed: "session_closed",
    TurnDeleted: "turn_deleted",
    SessionDeleted: "session_deleted",
    ScopeDeleted: "scope_deleted",
}
_TEXTS: Final = ("event_id", "session_id", "turn_id", "role", "content", "speaker", "summary")
_REASONS: Final = {  # by pydantic's error type and our field; "" stands for the remaining fields
    ("missing", ""): "is missing",
    ("string_type", "timestamp"): "is neither ISO 8601 text nor epoch seconds",
    ("string_pattern_mismatch", "role"): "is no single word of at most 64 characters",
    ("string_pattern_mismatch", "scope"): "is no lower-case word such as 'user' or 'thread'",
    ("string_pattern_mismatch", ""): "is blank",
}


def decode(raw: bytes) -> Event:
    """Read one event; everything the contract promises holds for the result.

    Raises:
        PoisonError: the bytes are no such event; its ``field`` names the field at fault.
    """
    return _parse(raw).record()


def encode(event: Event) -> bytes:
    """Write one event as compact UTF-8 JSON, its time as ISO 8601 in UTC.

    Values in the metadata that JSON does not know, such as a datetime, are written the way pydantic writes them.

    Raises:
        PoisonError: `decode` would refuse the event.
    """
    _require_types(event)
    raw = to_compact_json(_turn_fields(event) if isinstance(event, Turn) else _other_fields(event))
    parsed = _parse(raw)
    if isinstance(event, Turn):
        reject_long_content(event.content)
        if len(raw) > MAX_METADATA_BYTES:
            reject_bad_metadata(event.metadata)
    elif isinstance(parsed, SessionClosedFields) and parsed.summary is not None:
        reject_long_content(parsed.summary, "summary")
    return raw


def json_schema() -> dict[str, Any]:
    """Give the contract as JSON Schema, each field described; sizes in bytes stand in the descriptions."""
    schema = _adapter().json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Turnstream event", **schema}


@cache
def _adapter() -> TypeAdapter[AnyFields]:
    return TypeAdapter(EventFields)


def _parse(raw: bytes) -> AnyFields:
    if len(raw) > MAX_EVENT_BYTES:  # before anything is parsed
        raise PoisonError(f"too large: {len(raw)} bytes; at most {MAX_EVENT_BYTES}")
    if b"\\u0000" in raw or looks_non_finite(raw):  # JSON has no other spelling of NUL
        explain_bad_text(raw)
    try:
        return _adapter().validate_json(raw)
    except ValidationError as error:
        _raise_poison(raw, error)


def _raise_poison(raw: bytes, error: ValidationError) -> NoReturn:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    kind, message = first["type"], first["msg"][:MAX_REASON_CHARS]
    path = [str(part) for part in first["loc"][1:]]  # the first part is the event's type
    field = ".".join(path[:1] if path[:1] == ["timestamp"] else path)  # below timestamp: the type that was tried
    if kind == "json_invalid":
        explain_bad_text(raw)
        raise PoisonError(message) from error
    if kind == "union_tag_not_found":
        raise PoisonError("is missing", field="type") from error
    if kind == "union_tag_invalid":
        raise PoisonError(f"is none of {', '.join(_TYPES.values())}", field="type") from error
    if not field:
        raise PoisonError("is not a JSON object") from error
    raise PoisonError(_REASONS.get((kind, field)) or _REASONS.get((kind, ""), message), field=field) from error


def _require_types(event: Event) -> None:
    """Refuse what JSON would make something else of: bytes and dates become texts.

    Raises:
        PoisonError: it is no event, or a field is of another type.
    """
    if type(event) not in _TYPES:
        raise PoisonError(f"is {type(event).__name__}, no event; publish a Turn, or ask to close or forget")
    if not isinstance(event.scope, Scope):
        raise PoisonError(
            f"is {type(event.scope).__name__}; give a Scope, as of Scope.parse('user/u42')", field="scope"
        )
    for name in _TEXTS:
        value = getattr(event, name, None)
        if value is not None and not isinstance(value, str):
            raise PoisonError(f"is {type(value).__name__}; give a text", field=name)
    if isinstance(event, Turn):
        if not all(isinstance(tag, str) for tag in event.tags):
            raise PoisonError("holds something else than texts", field="tags")
        if event.metadata is not None and not isinstance(event.metadata, Mapping):
            raise PoisonError(f"is {type(event.metadata).__name__}; give a mapping", field="metadata")


def _turn_fields(turn: Turn) -> dict[str, Any]:
    fields = {
        "type": "turn",
        "event_id": turn.event_id,
        "scope": turn.scope.kind,
        "scope_id": turn.scope.id,
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "role": turn.role,
        "content": turn.content,
        "timestamp": _iso(turn.timestamp_ms),
        "index": turn.index,
        "revision": turn.revision,
    }
    if turn.speaker is not None:
        fields["speaker"] = turn.speaker
    if turn.tags:
        fields["tags"] = turn.tags
    if turn.mood is not None:
        fields["mood"] = turn.mood._asdict()
    if turn.metadata:
        fields["metadata"] = dict(turn.metadata)
    return fields


def _other_fields(event: SessionClosed | TurnDeleted | SessionDeleted | ScopeDeleted) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": _TYPES[type(event)],
        "event_id": event.event_id,
        "scope": event.scope.kind,
        "scope_id": event.scope.id,
        "timestamp": _iso(event.timestamp_ms),
    }
    for name in ("session_id", "turn_id", "summary"):
        if (value := getattr(event, name, None)) is not None:
            fields[name] = value
    return fields


def _iso(epoch_ms: int) -> str:
    return from_epoch_ms(epoch_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
