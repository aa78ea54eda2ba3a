"""What the event contract refuses, and that the refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline import contract
from pipeline.errors import PoisonError
from pipeline.records import Mood, Scope, SessionClosed, Turn
from tests.contract_events import TURN, event


def with_json(name: str, text: bytes) -> bytes:
    """The turn with one more field, spelled by hand."""
    return event()[:-1] + b', "%s": %s}' % (name.encode(), text)


def refused(raw: bytes) -> PoisonError:
    with pytest.raises(PoisonError) as caught:
        contract.decode(raw)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", None),
        ("type", "foo"),
        ("type", 5),
        ("event_id", ""),
        ("event_id", "  "),
        ("event_id", "x" * 129),
        ("event_id", 5),
        ("scope", "User"),
        ("scope", "a/b"),
        ("scope", None),
        ("scope_id", ""),
        ("scope_id", " "),
        ("scope_id", "x" * 513),
        ("scope_id", 42),
        ("session_id", "\t"),
        ("session_id", "x" * 513),
        ("turn_id", "x" * 513),
        ("turn_id", ""),
        ("role", ""),
        ("role", "two words"),
        ("role", "user\n"),
        ("role", "a\u0007b"),
        ("role", "x" * 65),
        ("content", 5),
        ("content", None),
        ("content", ["a"]),
        ("content", "é" * (contract.MAX_CONTENT_BYTES // 2 + 1)),
        ("timestamp", None),
        ("timestamp", True),
        ("timestamp", "1714566600"),
        ("timestamp", "yesterday"),
        ("timestamp", "2024-13-01"),
        ("timestamp", 1714566600000),
        ("timestamp", -1e11),
        ("timestamp", 10**400),
        ("timestamp", "1899-12-31T23:59:59Z"),
        ("timestamp", "2200-01-01"),
        ("timestamp", []),
        ("index", -1),
        ("index", 2**53 + 1),
        ("index", 1.5),
        ("index", 3.0),
        ("index", "5"),
        ("index", True),
        ("revision", -1),
        ("revision", "1"),
        ("speaker", 5),
        ("speaker", "x" * 513),
        ("tags", "travel"),
        ("tags", ["x"] * 65),
        ("mood", [0, 0, 0]),
        ("mood", "sad"),
        ("metadata", []),
        ("metadata", "text"),
        ("metadata", {"x": "y" * contract.MAX_METADATA_BYTES}),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_field_out_of_bounds_is_named(name, value) -> None:
    """The publisher's author has only the dead letter to go by."""
    error = refused(event(**{name: value}))
    assert error.field == name
    assert len(error.reason) <= 300


@pytest.mark.parametrize(
    "name", ["type", "event_id", "scope", "scope_id", "session_id", "role", "content", "timestamp"]
)
def test_a_missing_field_is_named(name) -> None:
    """The commonest mistake of a new platform."""
    fields = {key: value for key, value in TURN.items() if key != name}
    error = refused(json.dumps(fields).encode())
    assert (error.field, error.reason) == (name, "is missing")


def test_faults_inside_a_field_are_named_by_path() -> None:
    """The name mood alone would leave three places to look."""
    assert refused(event(mood={"valence": 1.01})).field == "mood.valence"
    assert refused(event(mood={"valence": True})).field == "mood.valence"
    assert refused(event(mood={"joy": 1})).field == "mood.joy"
    assert refused(event(tags=["a", 5])).field == "tags.1"
    assert refused(event(tags=["x" * 257])).field == "tags.0"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (with_json("speaker", b'"\\ud800"'), "speaker"),
        (with_json("speaker", b'"a\\u0000"'), "speaker"),
        (with_json("speaker", b'"\xff\xfe"'), "speaker"),
        (with_json("metadata", b'{"a": [{"b\\u0000": 1}]}'), "metadata"),
        (with_json("metadata", b'{"a": "\\udfff"}'), "metadata"),
        (with_json("metadata", b'{"a": NaN}'), "metadata"),
        (with_json("metadata", b'{"a": [-Infinity]}'), "metadata"),
        (with_json("metadata", b'{"a": 1e999}'), "metadata"),
        (with_json("mood", b'{"valence": NaN}'), "mood"),
        (with_json("surprise", b"Infinity"), "surprise"),
        (with_json("surprise", b'"\\u0000"'), "surprise"),
        (with_json("sur\\u0000prise", b"1"), "sur?prise"),
        (with_json("content", b'"\xc3"'), "content"),
        (with_json("scope_id", b'"\\u0000"'), "scope_id"),
    ],
)
def test_text_and_numbers_that_no_store_keeps_are_refused(raw, name) -> None:
    """A NUL, a lone surrogate or a NaN that slipped in would poison a ledger or an index instead."""
    assert refused(raw).field == name


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"5",
        b"[]",
        b'"turn"',
        b"{",
        b"\xef\xbb\xbf{}",
        b"\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        with_json("metadata", b"[" * 100_000 + b"]" * 100_000),
        with_json("metadata", b'{"a":' * 300 + b"1" + b"}" * 300),
        with_json("metadata", b'{"a": ' + b"9" * 5_000 + b"}"),
        b" " * (contract.MAX_EVENT_BYTES + 1),
        event(metadata={"x": "y" * contract.MAX_EVENT_BYTES}),
    ],
    ids=lambda raw: f"{raw[:12]!r}-{len(raw)}",
)
def test_what_is_no_event_at_all_is_refused(raw) -> None:
    """Nothing a stranger writes into the stream may end the ingester."""
    assert refused(raw).reason


def test_unknown_fields_count_towards_the_size_of_metadata() -> None:
    """They are stored there."""
    half = "y" * (contract.MAX_METADATA_BYTES // 2)
    assert refused(event(extra=half, metadata={"x": half})).field == "metadata"


CIRCLE: dict[str, Any] = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"session_id": ""}, "session_id"),
        ({"content": "a\x00"}, "content"),
        ({"content": "\ud800"}, "content"),
        ({"content": "x" * (contract.MAX_CONTENT_BYTES + 1)}, "content"),
        ({"content": 5}, "content"),
        ({"role": "two words"}, "role"),
        ({"index": -1}, "index"),
        ({"mood": Mood(2.0, 0.0, 0.0)}, "mood.valence"),
        ({"mood": Mood(float("nan"), 0.0, 0.0)}, "mood"),
        ({"tags": ("a", "\udcff")}, "tags"),
        ({"metadata": {"a": float("inf")}}, "metadata"),
        ({"metadata": {"a": "\udc80"}}, "metadata"),
        ({"metadata": {"a": object()}}, "metadata"),
        ({"metadata": CIRCLE}, "metadata"),
        ({"metadata": {"a": "x" * contract.MAX_METADATA_BYTES}}, "metadata"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_publisher_is_refused_what_an_ingester_would_refuse(fields, name) -> None:
    """The error then reaches the one who can correct it."""
    turn = Turn(
        **{
            "scope": Scope("user", "u"),
            "session_id": "s",
            "role": "user",
            "content": "x",
            "timestamp": 0,
            **fields,
        }
    )
    with pytest.raises(PoisonError) as caught:
        contract.encode(turn)
    assert caught.value.field == name


def test_a_long_summary_is_refused() -> None:
    """It is content in all but name."""
    closed = SessionClosed(
        scope=Scope("user", "u"), session_id="s", timestamp_ms=0, event_id="e", summary="x" * ((1 << 20) + 1)
    )
    with pytest.raises(PoisonError) as caught:
        contract.encode(closed)
    assert caught.value.field == "summary"
