"""The event contract: what is taken, what is refused, and that the refusal names its field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import contract
from pipeline.errors import PoisonError
from pipeline.records import (
    Event,
    Mood,
    Scope,
    ScopeDeleted,
    SessionClosed,
    SessionDeleted,
    Turn,
    TurnDeleted,
)

NOON_MS = 1714566600000
TURN: dict[str, Any] = {
    "type": "turn",
    "event_id": "e-1",
    "scope": "user",
    "scope_id": "u42",
    "session_id": "s-7",
    "role": "user",
    "content": "Shall we go to Lisbon in May?",
    "timestamp": "2024-05-01T12:30:00Z",
}


def event(**fields: Any) -> bytes:
    return json.dumps({**TURN, **fields}, ensure_ascii=False).encode()


def with_json(name: str, text: bytes) -> bytes:
    """The turn with one more field, spelled by hand."""
    return event()[:-1] + b', "%s": %s}' % (name.encode(), text)


def refused(raw: bytes) -> PoisonError:
    with pytest.raises(PoisonError) as caught:
        contract.decode(raw)
    return caught.value


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


def test_an_escaped_backslash_is_not_a_nul() -> None:
    """The fast check for NUL sees the same bytes in both."""
    assert contract.decode(event(content="\\u0000 NaN Infinity")).content == "\\u0000 NaN Infinity"


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


def test_unknown_fields_count_towards_the_size_of_metadata() -> None:
    """They are stored there."""
    half = "y" * (contract.MAX_METADATA_BYTES // 2)
    assert refused(event(extra=half, metadata={"x": half})).field == "metadata"


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


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
ids = text.map(lambda value: "i" + value[:100])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
moments = st.integers(-2_000_000_000_000, 7_000_000_000_000)
turns = st.builds(
    Turn,
    scope=st.builds(Scope, st.sampled_from(["user", "thread"]), ids),
    session_id=ids,
    role=st.sampled_from(["user", "assistant", "助手"]),
    content=text,
    timestamp=moments.map(lambda ms: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)),
    event_id=ids,
    turn_id=ids,
    index=st.integers(0, 2**53),
    revision=st.integers(0, 2**53),
    speaker=st.none() | text,
    tags=st.lists(text, max_size=3),
    mood=st.none() | st.tuples(*[st.floats(-1, 1)] * 3).map(lambda values: Mood(*values)),
    metadata=st.dictionaries(text, json_values, max_size=3),
)


def content_of(turn: Event) -> list[Any]:
    """All but the spelling of the time."""
    return [getattr(turn, name) for name in Turn.__slots__ if name != "timestamp"]


@given(turns)
@settings(max_examples=80, deadline=None)
def test_decode_undoes_encode(turn) -> None:
    """Whatever can be said arrives as it was said."""
    again = contract.decode(contract.encode(turn))
    assert content_of(again) == content_of(turn)
    assert contract.encode(again) == contract.encode(turn)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_an_event_or_poison(raw) -> None:
    """No other error may leave the decoder: it would end the ingester at every restart."""
    try:
        contract.decode(raw)
    except PoisonError as error:
        assert len(error.reason) <= 400  # noqa: PT017 - both outcomes are right


odd_values = json_values | st.floats() | st.text() | st.integers(-(10**30), 10**30)


@given(st.sampled_from([*TURN, "mood", "tags", "metadata", "index", "other"]), odd_values)
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_field_is_an_event_or_poison(name, value) -> None:
    """Nearly right events reach further into the decoder; what it takes can be published again."""
    try:
        decoded = contract.decode(event(**{name: value}))
    except PoisonError as error:
        assert error.reason  # noqa: PT017 - both outcomes are right
    else:
        assert contract.decode(contract.encode(decoded)) is not None
