"""Sessions whose turns or summaries are more than the model can take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pipeline.ledger import Ledger, events, sessions, work
from pipeline.records import Scope
from pipeline.shards import Shards
from tests import ledgers

NOW = ledgers.NOW_MS
SCOPE = Scope("user", "u1")
SUMMARY = sessions.NewSummary("s1", "of both", "digest", "m", np.ones(4, np.float32) / 2)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with two turns of one session."""
    with closing(ledgers.open_ledger(Shards(tmp_path), SCOPE)) as opened:
        told = [ledgers.turn(SCOPE, "e1", "fine", at=1), ledgers.turn(SCOPE, "e2", "poison", at=2)]
        events.apply(opened, told, now_ms=NOW)
        yield opened


def due(ledger: Ledger) -> list[sessions.DueSession]:
    return sessions.due(ledger, now_ms=NOW, idle_ms=0, settle_ms=0)


def claim(ledger: Ledger, *, retried: bool = False) -> list[work.ClaimedTurn]:
    return work.claim(
        ledger, "w1", limit=1, max_attempts=3, is_alive=lambda _: True, model_key="m", retried=retried
    )  # fmt: skip


def test_a_session_whose_summary_ended_workers_is_told_apart(ledger: Ledger) -> None:
    """Nobody counts attempts at a summary but this: a death leaves the note, anything else overwrites it."""

    def begin() -> int:
        (session,) = due(ledger)
        sessions.begin(ledger, [session])
        return session.n_ended

    assert [begin(), begin(), begin()] == [0, 1, 2]
    (session,) = due(ledger)
    sessions.postpone(ledger, session, failure="ended twice", retry_at_ms=NOW)
    assert begin() == 0


def test_a_summary_made_twice_is_kept_once(ledger: Ledger) -> None:
    """Two workers rung for the same session: the slower one changes nothing, and there is nothing to purge."""
    (session,) = due(ledger)
    made = [
        sessions.put_summary(ledger, SUMMARY, now_ms=NOW, model_key="m", version=session.version) for _ in range(2)
    ]
    assert made == [True, False]
    with ledger.read() as connection:
        assert connection.execute("SELECT summary_id FROM summaries").fetchall() == [(1,)]
        assert connection.execute("SELECT 1 FROM meta WHERE key = 'purge_due'").fetchall() == []


def test_a_quarantined_turn_is_left_out_of_its_sessions_summary(ledger: Ledger) -> None:
    """Its words would do to the summary what they did to the turn; a replay puts them back."""
    work.commit(ledger, "w1", [work.TurnWork(claim(ledger)[0], "fine", [])], model_key="m", dimension=4)
    assert sessions.put_summary(ledger, SUMMARY, now_ms=NOW, model_key="m", version=due(ledger)[0].version)
    for attempt in range(3):
        assert due(ledger) == []
        assert claim(ledger, retried=attempt > 0)
        work.release(ledger, "w1", failure="no", max_attempts=3)
    (session,) = due(ledger)
    assert sessions.lines(ledger, "s1") == [("user", "fine")]
    assert sessions.put_summary(ledger, SUMMARY, now_ms=NOW, model_key="m", version=session.version)
    assert work.requeue(ledger) == 1
    assert len(due(ledger)) == 1
    assert sessions.lines(ledger, "s1") == [("user", "fine"), ("user", "poison")]
    assert claim(ledger)
    assert due(ledger) == []
