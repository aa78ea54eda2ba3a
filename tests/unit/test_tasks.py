"""The flow in a worker: whatever a turn does to it is counted against that turn, and its neighbours go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from celery import Celery

from pipeline.embed import Embedder
from pipeline.errors import TransientError
from pipeline.ledger import Ledger, events, upkeep
from pipeline.records import Event, Scope, SessionClosed, Turn
from pipeline.settings import load_settings
from workers import tasks, worker

SCOPES = [Scope("user", "a"), Scope("user", "b")]
KEYS = [scope.key for scope in SCOPES]


class Choosy:
    """An embedder that refuses some texts, as a model that answers NaN does."""

    def __init__(self, real: Embedder) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def embed(self, texts: Sequence[str]) -> Any:
        """Embed as the real one does, unless one of the texts is refused."""
        if any("unspeakable" in text for text in texts):
            raise TransientError("the model answered NaN")
        return self._real.embed(texts)


@pytest.fixture
def flow(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tasks.Flow]:
    """A worker's flow with a broker in memory and vectors that cost nothing."""
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__BACKEND", "hashing")
    monkeypatch.setenv("TURNSTREAM_SUMMARY__SETTLE_S", "0")
    made = worker.make_flow(load_settings(data_dir=data_dir), Celery("test", broker="memory://"), "w")
    yield dataclasses.replace(made, embedder=Choosy(made.embedder))
    made.ledgers.close()
    made.registry.close()
    made.token.close()


def publish(flow: tasks.Flow, *published: Event) -> None:
    for event in published:
        events.apply(flow.ledgers.open(event.scope), [event], now_ms=flow.clock())
        flow.registry.mark([event.scope.key], now_ms=flow.clock())


def turn(content: str, number: int, scope: Scope = SCOPES[0]) -> Turn:
    return Turn(scope=scope, session_id="s", role="user", content=content, timestamp=number, event_id=f"e{number}")


def rows(flow: tasks.Flow, scope: Scope, query: str) -> list[tuple[object, ...]]:
    ledger: Ledger = flow.ledgers.open(scope)
    return ledger.connection.execute(query).fetchall()


def test_a_turn_the_model_refuses_is_quarantined_and_nobody_else(flow: tasks.Flow) -> None:
    """Its neighbours, in this scope and in others, were in the same batch."""
    publish(flow, turn("good", 1), turn("unspeakable", 2), turn("better", 3), turn("other scope", 4, SCOPES[1]))
    flow.embed_turns(KEYS)
    states = "SELECT content, state, attempts FROM turns ORDER BY turn_offset"
    assert rows(flow, SCOPES[0], states) == [("good", 2, 2), ("unspeakable", 4, 3), ("better", 2, 2)]
    assert rows(flow, SCOPES[1], states) == [("other scope", 2, 2)]
    (failed,) = upkeep.quarantined(flow.ledgers.open(SCOPES[0]))
    assert "NaN" in failed["failure"]
    assert flow.registry.n_undone() == 0


def test_ringing_twice_does_nothing_the_second_time(flow: tasks.Flow) -> None:
    """A Redis broker doubles doorbells."""
    publish(flow, turn("once", 1))
    flow.embed_turns(KEYS)
    flow.embed_turns(KEYS)
    assert rows(flow, SCOPES[0], "SELECT count(*) FROM traces") == [(1,)]


def test_a_blank_summary_of_the_platform_counts_as_none(flow: tasks.Flow) -> None:
    """Otherwise every later text of the session would look summarised already."""
    closed = SessionClosed(scope=SCOPES[0], session_id="s", timestamp_ms=2, event_id="c", summary="  ")
    publish(flow, turn("We went to Lisbon.", 1), closed)
    flow.summarise_sessions(KEYS)
    (first,) = rows(flow, SCOPES[0], "SELECT text FROM summaries")
    publish(flow, turn("Then we went to Madrid, in March.", 3))
    flow.summarise_sessions(KEYS)
    (second,) = rows(flow, SCOPES[0], "SELECT text FROM summaries")
    assert "Lisbon" in str(first)
    assert "Madrid" in str(second)


def test_the_platforms_own_summary_is_used_as_it_is(flow: tasks.Flow) -> None:
    """The platform knows best, and no model is asked."""
    closed = SessionClosed(scope=SCOPES[0], session_id="s", timestamp_ms=2, event_id="c", summary=" A trip. ")
    publish(flow, turn("We went to Lisbon.", 1), closed)
    flow.summarise_sessions(KEYS)
    assert rows(flow, SCOPES[0], "SELECT text, model_id FROM summaries") == [("A trip.", "platform")]


def test_a_session_of_blanks_is_not_summarised(flow: tasks.Flow) -> None:
    """There is nothing to ask a model about."""
    publish(flow, turn("   ", 1), SessionClosed(scope=SCOPES[0], session_id="s", timestamp_ms=2, event_id="c"))
    flow.embed_turns(KEYS)
    flow.summarise_sessions(KEYS)
    assert rows(flow, SCOPES[0], "SELECT count(*) FROM summaries") == [(0,)]
    assert flow.registry.counts().unsummarised == 0


def test_a_scope_that_cannot_be_worked_on_is_told_of_once_and_left_alone_for_a_while(flow: tasks.Flow) -> None:
    """It is rung every two seconds; another model's ledger will not change by itself."""
    publish(flow, turn("mine", 1), turn("theirs", 2, SCOPES[1]))
    flow.embed_turns(KEYS)
    publish(flow, turn("more", 3), turn("more", 4, SCOPES[1]))
    other = SCOPES[1].key
    flow.ledgers.open(SCOPES[1]).connection.execute("UPDATE meta SET value = 'another' WHERE key = 'model_key'")
    now_ms = flow.clock()
    flow = dataclasses.replace(flow, clock=lambda: now_ms)
    refusals, waited_s = [], []
    for second in range(0, 40, 2):
        now_ms = flow.clock() if second == 0 else now_ms + 2_000
        marked = flow.registry.marks(KEYS, now_ms=now_ms)
        waited_s += [second] if other in marked else []
        with structlog.testing.capture_logs() as logged:
            flow.embed_turns(KEYS)
        refusals += [line for line in logged if line["event"] == "scope.refused"]
    assert len(refusals) == 1
    assert "another" in refusals[0]["reason"]
    assert waited_s == [0, 2, 6, 14, 30]
    assert flow.registry.counts().searchable == 3
    worst = flow.registry.worst("refused")
    assert worst is not None
    assert (worst.scope, worst.refusal) == (other, refusals[0]["reason"])
