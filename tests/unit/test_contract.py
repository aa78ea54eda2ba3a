"""The event contract: what is taken, what becomes of it, and what is published."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pipeline import contract
from pipeline.records import Mood, Scope, ScopeDeleted, SessionClosed, SessionDeleted, Turn, TurnDeleted
from tests.contract_events import TURN, event

NOON_MS = 1714566600000


def test_an_ordinary_turn_with_every_field() -> None:
    """The published table, field by field."""
    fields = {
        "turn_id": "t-1",
        "index": 3,
        "revision": 2,
        "speaker": "Ada",
        "tags": ["travel", ""],
        "mood": {"valence": 0.5, "arousal": -1, "dominance": 0},
        "metadata": {"source": "telegram", "deep": {"er": [1, 2.5, None, True]}},
    }
    assert contract.decode(event(**fields)) == Turn(
        scope=Scope("user", "u42"),
        session_id="s-7",
        role="user",
        content=TURN["content"],
        timestamp=TURN["timestamp"],
        event_id="e-1",
        turn_id="t-1",
        index=3,
        revision=2,
        speaker="Ada",
        tags=("travel", ""),
        mood=Mood(0.5, -1.0, 0.0),
        metadata=fields["metadata"],
    )


def test_an_absent_field_and_null_mean_the_same() -> None:
    """Many languages' serialisers write null for what is not there."""
    optional = ("turn_id", "index", "revision", "speaker", "tags", "mood", "metadata")
    assert contract.decode(event(**dict.fromkeys(optional))) == contract.decode(event())
    assert contract.decode(event()).turn_id == "e-1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"type": "session_closed", "summary": "A trip."},
            SessionClosed(
                scope=Scope("user", "u42"), session_id="s-7", timestamp_ms=NOON_MS, event_id="e-1", summary="A trip."
            ),
        ),
        (
            {"type": "turn_deleted", "turn_id": "t-1"},
            TurnDeleted(
                scope=Scope("user", "u42"), session_id="s-7", turn_id="t-1", timestamp_ms=NOON_MS, event_id="e-1"
            ),
        ),
        (
            {"type": "session_deleted"},
            SessionDeleted(scope=Scope("user", "u42"), session_id="s-7", timestamp_ms=NOON_MS, event_id="e-1"),
        ),
        (
            {"type": "scope_deleted"},
            ScopeDeleted(scope=Scope("user", "u42"), timestamp_ms=NOON_MS, event_id="e-1"),
        ),
    ],
)
def test_the_other_events(fields, expected) -> None:
    """Each has a record of its own; what only a turn has is ignored."""
    assert contract.decode(event(**fields)) == expected
    assert contract.decode(contract.encode(expected)) == expected


@pytest.mark.parametrize(
    "timestamp",
    [
        "2024-05-01T12:30:00Z",
        "2024-05-01T14:30:00+02:00",
        "2024-05-01T12:30:00",
        "2024-05-01 12:30",
        1714566600,
        1714566600.0,
        1714566600.0004,
    ],
)
def test_spellings_of_one_time(timestamp) -> None:
    """A time without a zone is UTC; epoch seconds may be broken."""
    assert contract.decode(event(timestamp=timestamp)).timestamp_ms == NOON_MS


def test_an_escaped_backslash_is_not_a_nul() -> None:
    """The fast check for NUL sees the same bytes in both."""
    assert contract.decode(event(content="\\u0000 NaN Infinity")).content == "\\u0000 NaN Infinity"


def test_limits_are_inclusive() -> None:
    """A platform may fill them exactly."""
    whole = event(
        content="é" * (contract.MAX_CONTENT_BYTES // 2),
        metadata={"x": "y" * (contract.MAX_METADATA_BYTES - len('{"x":""}'))},
        event_id="e" * 128,
        session_id="s" * 512,
        role="r" * 64,
        tags=["t" * 256] * 64,
        index=2**53,
    )
    assert contract.decode(contract.encode(contract.decode(whole))) is not None


def test_blank_content_is_an_event() -> None:
    """It is skipped later; refusing it would fill the dead letters with silence."""
    assert contract.decode(event(content="")).content == ""


def test_unknown_fields_of_a_turn_are_kept_in_its_metadata() -> None:
    """Nothing a platform says is lost, and nothing it said in the metadata is overwritten."""
    raw = event(extra=1, title="above", metadata={"title": "within", "event.title": "there"})
    assert contract.decode(raw).metadata == {
        "title": "within",
        "event.title": "there",
        "extra": 1,
        "event.event.title": "above",
    }


def test_an_encoded_turn_is_compact_utf8_with_its_time_in_utc() -> None:
    """Other languages read the stream too."""
    turn = Turn(
        scope=Scope("user", "ü"),
        session_id="s",
        role="user",
        content="Zoë 🎈",
        timestamp=datetime(2024, 5, 1, 14, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2))),
        event_id="e",
    )
    raw = contract.encode(turn)
    assert json.loads(raw)["timestamp"] == "2024-05-01T12:30:00.250Z"
    assert "Zoë 🎈".encode() in raw
    assert b": " not in raw
    assert b"null" not in raw


def test_the_schema_describes_and_exemplifies_every_field() -> None:
    """It is all that a platform in another language gets."""
    schema = contract.json_schema()
    assert set(schema["discriminator"]["mapping"]) == {
        "turn",
        "session_closed",
        "turn_deleted",
        "session_deleted",
        "scope_deleted",
    }
    for model in schema["$defs"].values():
        for name, facts in model["properties"].items():
            assert facts.get("description"), name
            assert name == "type" or _has_example(facts), name


def _has_example(facts: dict[str, Any]) -> bool:
    return "examples" in facts or any("examples" in branch for branch in facts.get("anyOf", ()))
