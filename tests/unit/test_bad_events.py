"""What a platform may give a publisher by mistake is answered by an error of ours, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pytest

from pipeline import contract
from pipeline.errors import PoisonError, PublishError
from pipeline.publish import Publisher
from pipeline.records import Scope, Turn

SCOPE = Scope("user", "u1")
WRONG: tuple[Any, ...] = (
    *(5, -1, True, math.nan, math.inf, 10**30, b"bytes", bytearray(b"x"), "\ud800", "a\x00b", "user/u1", "", " "),
    *([], {}, (), {1}, object(), [b"x"], ["\ud800"], (1, 2), {"a": math.nan}, {"\ud800": 1}, date(2026, 3, 1)),
)
TURN: Mapping[str, Any] = {
    "scope": SCOPE,
    "session_id": "s-1",
    "role": "user",
    "content": "Let's go.",
    "timestamp": datetime(2026, 3, 1, tzinfo=UTC),
    "event_id": "e-1",
    "turn_id": "t-1",
    "index": 1,
    "revision": 0,
    "speaker": "Ann",
    "tags": ("a",),
    "mood": (0.0, 0.5, 0.0),
    "metadata": {"source": "x"},
}
ABOUT: Mapping[str, Any] = {"scope": SCOPE, "session_id": "s-1", "timestamp": 1.0, "event_id": "e-1"}
CALLS: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "Turn": (lambda publisher, **said: publisher.publish(Turn(**said)), TURN),
    "publish": (Publisher.publish, {"turn": Turn(**TURN)}),
    "publish_many": (Publisher.publish_many, {"turns": [Turn(**TURN)]}),
    "close_session": (Publisher.close_session, {**ABOUT, "summary": "They went."}),
    "forget": (Publisher.forget, {**ABOUT, "turn_id": "t-1"}),
}


@pytest.fixture(scope="module")
def publisher() -> Iterator[Publisher]:
    """One whose server is away: what is fit to be sent ends as a `PublishError`."""
    with Publisher("unix:///nowhere/server.sock", attempts=1) as made:
        yield made


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named_in_an_error_of_ours(publisher: Publisher, name: str) -> None:
    """A platform catches our errors; one of Python's, from deep inside, ends its process."""
    call, given = CALLS[name]
    with pytest.raises(PublishError):
        call(publisher, **given)
    for argument in given:
        for wrong in WRONG:
            if name == "publish_many" and wrong in ([], {}, (), ""):
                continue  # nothing to send
            with pytest.raises((PoisonError, PublishError)):
                call(publisher, **{**given, argument: wrong})


@pytest.mark.parametrize("field", ["session_id", "role", "content", "event_id", "turn_id", "speaker"])
@pytest.mark.parametrize("wrong", [b"bytes", date(2026, 3, 1), ["x"], 5])
def test_what_is_no_text_is_not_made_one(field: str, wrong: Any) -> None:
    """JSON has no bytes and no dates; they went through as texts that nobody wrote."""
    with pytest.raises(PoisonError) as refused:
        contract.encode(Turn(**{**TURN, field: wrong}))
    assert refused.value.field == field


@pytest.mark.parametrize(("field", "wrong"), [("tags", "user"), ("mood", (0.1,)), ("mood", {}), ("timestamp", None)])
def test_a_turn_is_refused_where_it_is_made(field: str, wrong: Any) -> None:
    """A text is no list of tags: each letter would be one."""
    with pytest.raises(PoisonError) as refused:
        Turn(**{**TURN, field: wrong})
    assert refused.value.field == field


def test_a_time_without_a_zone_is_utc() -> None:
    """As the documentation says; the host's zone must not move what was said."""
    assert Turn(**{**TURN, "timestamp": datetime(2026, 3, 1)}).timestamp_ms == Turn(**TURN).timestamp_ms  # noqa: DTZ001 - what is tested
