"""Any input to the event contract: it arrives as it was said, or is poison."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import contract
from pipeline.errors import PoisonError
from pipeline.records import Event, Mood, Scope, Turn
from tests.contract_events import TURN, event

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
