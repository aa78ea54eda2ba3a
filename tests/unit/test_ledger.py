"""The ledger keeps what was published, whatever the order, and counts every attempt before it is made."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ModelMismatchError, ShardError
from pipeline.ledger import Ledger, LedgerPool, connection, events, sessions, upkeep, work
from pipeline.ledger.events import Outcome
from pipeline.ledger.work import NewTrace, TurnWork
from pipeline.records import Chunk, Event, Scope, ScopeDeleted, SessionClosed, SessionDeleted, Turn, TurnDeleted
from pipeline.shards import Shards

SCOPE = Scope("user", "u1")
NOW = 1_700_000_000_000


def turn(event_id: str, *, session: str = "s1", at: float = 1_600_000_000, **fields: object) -> Turn:
    values = {"content": f"text of {event_id}", "role": "user", **fields}
    return Turn(scope=SCOPE, session_id=session, timestamp=at, event_id=event_id, **values)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path)


def open_ledger(folder: Path) -> Ledger:
    path = folder / "ledger.sqlite"
    connection.create(path)
    return Ledger.open(path, SCOPE)


def rows(ledger: Ledger, query: str) -> list[tuple[object, ...]]:
    return ledger.connection.execute(query).fetchall()


def logical_state(ledger: Ledger) -> list[object]:
    """Everything but the counters that depend on when things were processed."""
    return [
        rows(
            ledger,
            "SELECT session_id, turn_id, event_id, revision, content, timestamp_ms, tags FROM turns ORDER BY 1, 2",
        ),
        rows(ledger, "SELECT digest FROM events ORDER BY 1"),
        rows(ledger, "SELECT * FROM tombstones ORDER BY 1"),
        rows(ledger, "SELECT session_id, closed, platform_summary FROM sessions ORDER BY 1"),
    ]


def finish(ledger: Ledger, claimed: list[work.ClaimedTurn], worker: str = "w1") -> int:
    done = [
        TurnWork(
            t,
            t.content,
            [NewTrace(Chunk(0, len(t.content), t.content, 3), np.ones(4, np.float32) / 2, 0.3, 1e7, 0, 0.8)],
        )
        for t in claimed
    ]
    return work.commit(ledger, worker, done, model_key="m", dimension=4)


def claim(ledger: Ledger, worker: str = "w1", *, alive: bool = True, limit: int = 10) -> list[work.ClaimedTurn]:
    """Claim as a worker does: turns never tried first, then one that was."""
    for retried in (False, True):
        claimed = work.claim(
            ledger,
            worker,
            limit=limit,
            max_attempts=3,
            is_alive=lambda _: alive,
            model_key="m",
            retried=retried,
        )
        if claimed:
            return claimed
    return []


def test_an_event_is_applied_once(ledger: Ledger) -> None:
    """Delivery is at least once; the unique event id makes the effect exactly once."""
    first = events.apply(ledger, [turn("e1"), turn("e1")], now_ms=NOW)
    again = events.apply(ledger, [turn("e1")], now_ms=NOW)
    assert [*first, *again] == [Outcome.APPLIED, Outcome.DUPLICATE, Outcome.DUPLICATE]
    assert rows(ledger, "SELECT count(*) FROM turns") == [(1,)]


def test_the_highest_revision_stands_in_either_order(ledger: Ledger) -> None:
    """An edit may overtake the turn it edits."""
    new, old = turn("e2", turn_id="t", revision=1, content="new"), turn("e1", turn_id="t", content="old")
    assert events.apply(ledger, [new, old], now_ms=NOW) == [Outcome.APPLIED, Outcome.SUPERSEDED]
    newer = turn("e3", turn_id="t", revision=2, content="newer")
    assert events.apply(ledger, [newer], now_ms=NOW) == [Outcome.EDITED]
    assert rows(ledger, "SELECT content FROM turns") == [("newer",)]


def test_an_edit_takes_the_old_traces_with_it(ledger: Ledger) -> None:
    """From the commit on no reader may find the text that was edited away."""
    events.apply(ledger, [turn("e1", turn_id="t", content="apple")], now_ms=NOW)
    assert finish(ledger, claim(ledger)) == 1
    events.apply(ledger, [turn("e2", turn_id="t", revision=1, content="pear")], now_ms=NOW)
    for table in ("traces", "vectors"):
        assert rows(ledger, f"SELECT count(*) FROM {table}") == [(0,)]
    assert rows(ledger, "SELECT rowid FROM fulltext WHERE fulltext MATCH 'apple'") == []


def test_work_on_a_turn_edited_meanwhile_is_left_out(ledger: Ledger) -> None:
    """The worker read the old text; the newer turn is still to be done."""
    events.apply(ledger, [turn("e1", turn_id="t", content="old")], now_ms=NOW)
    claimed = claim(ledger)
    events.apply(ledger, [turn("e2", turn_id="t", revision=1, content="new")], now_ms=NOW)
    assert finish(ledger, claimed) == 0
    assert [t.content for t in claim(ledger)] == ["new"]


def test_deletions_win_over_turns_before_and_after(ledger: Ledger) -> None:
    """A replayed event must not revive what was forgotten."""
    forget_turn = TurnDeleted(scope=SCOPE, session_id="s1", turn_id="e1", timestamp_ms=NOW, event_id="d1")
    forget_session = SessionDeleted(scope=SCOPE, session_id="s2", timestamp_ms=NOW, event_id="d2")
    events.apply(ledger, [turn("e1"), turn("e2"), forget_turn, forget_session], now_ms=NOW)
    late = [turn("e1b", turn_id="e1"), turn("e3", session="s2"), turn("e4")]
    assert events.apply(ledger, late, now_ms=NOW) == [Outcome.FORGOTTEN, Outcome.FORGOTTEN, Outcome.APPLIED]
    assert rows(ledger, "SELECT turn_id FROM turns ORDER BY 1") == [("e2",), ("e4",)]


def test_a_deleted_scope_starts_afresh(ledger: Ledger) -> None:
    """The user who asked to be forgotten may come back; what is older than the request may not."""
    events.apply(ledger, [turn("e1", at=100), turn("e2", session="s2", at=100)], now_ms=NOW)
    events.apply(ledger, [ScopeDeleted(scope=SCOPE, timestamp_ms=200_000, event_id="d")], now_ms=NOW)
    assert rows(ledger, "SELECT count(*) FROM turns") == rows(ledger, "SELECT count(*) FROM sessions") == [(0,)]
    outcomes = events.apply(ledger, [turn("e3", at=150), turn("e4", at=300)], now_ms=NOW)
    assert outcomes == [Outcome.FORGOTTEN, Outcome.APPLIED]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    ids = st.sampled_from(["a", "b", "c"])
    made: list[Event] = []
    for number in range(draw(st.integers(1, 12))):
        session, turn_id = draw(st.sampled_from(["s1", "s2"])), draw(ids)
        kind = draw(
            st.sampled_from(["turn", "turn", "turn", "closed", "turn_deleted", "session_deleted", "scope_deleted"])
        )
        at, event_id = draw(st.integers(1, 5)), f"e{number}"
        common = {"scope": SCOPE, "session_id": session, "event_id": event_id}
        made.append(
            turn(event_id, session=session, turn_id=turn_id, at=at, revision=draw(st.integers(0, 2)))
            if kind == "turn"
            else SessionClosed(**common, timestamp_ms=at * 1000, summary=draw(st.sampled_from([None, "x", "y"])))  # type: ignore[arg-type]
            if kind == "closed"
            else TurnDeleted(**common, turn_id=turn_id, timestamp_ms=at * 1000)  # type: ignore[arg-type]
            if kind == "turn_deleted"
            else SessionDeleted(**common, timestamp_ms=at * 1000)  # type: ignore[arg-type]
            if kind == "session_deleted"
            else ScopeDeleted(scope=SCOPE, timestamp_ms=at * 1000, event_id=event_id)
        )
    return made


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), seed=st.integers(0, 2**16))
def test_any_order_and_duplication_ends_in_the_same_state(
    tmp_path_factory: pytest.TempPathFactory, history: list[Event], seed: int
) -> None:
    """State does not depend on delivery order; batches and restarts do not matter either."""
    straight, shuffled = open_ledger(tmp_path_factory.mktemp("a")), open_ledger(tmp_path_factory.mktemp("b"))
    events.apply(straight, history, now_ms=NOW)
    chance = random.Random(seed)
    delivered = history + chance.sample(history, k=len(history) // 2)
    chance.shuffle(delivered)
    for event in delivered:
        events.apply(shuffled, [event], now_ms=NOW)
    assert logical_state(straight) == logical_state(shuffled)
    straight.close()
    shuffled.close()


def test_a_dead_workers_claim_is_taken_over_and_counted(ledger: Ledger) -> None:
    """Attempts are counted before the work, so a turn that kills its workers is quarantined after exactly three."""
    events.apply(ledger, [turn("e1")], now_ms=NOW)
    for attempt, worker in enumerate(["w1", "w2", "w3"], start=1):
        assert [t.attempts for t in claim(ledger, worker, alive=False)] == [attempt]
    assert claim(ledger, "w4", alive=False) == []
    assert rows(ledger, "SELECT state, attempts FROM turns") == [(4, 3)]
    assert "worker ended" in str(rows(ledger, "SELECT failure FROM turns"))
    assert work.requeue(ledger) == 1
    assert len(claim(ledger, "w5")) == 1


def test_a_living_workers_claim_is_left_alone(ledger: Ledger) -> None:
    """Two workers share a scope without doing a turn twice."""
    events.apply(ledger, [turn("e1"), turn("e2"), turn("e3")], now_ms=NOW)
    mine, yours = claim(ledger, "w1", limit=2), claim(ledger, "w2")
    assert (len(mine), len(yours)) == (2, 1)
    assert finish(ledger, mine, "w1") + finish(ledger, yours, "w2") == 3


def test_a_turn_tried_before_is_claimed_alone(ledger: Ledger) -> None:
    """Otherwise the neighbours of a turn that kills its worker would be quarantined with it."""
    events.apply(ledger, [turn(f"e{n}") for n in range(4)], now_ms=NOW)
    assert len(claim(ledger)) == 4
    work.release(ledger, "w1", failure="boom", max_attempts=3)
    assert len(claim(ledger)) == 1


def test_the_least_often_tried_turn_is_tried_next(ledger: Ledger) -> None:
    """A turn that ends its worker each time holds up nobody, and kills by chance do not all hit one turn."""
    events.apply(ledger, [turn(f"e{n}") for n in range(3)], now_ms=NOW)
    claim(ledger, "w0")
    tried = []
    for number in range(1, 5):
        (alone,) = claim(ledger, f"w{number}", alive=False)
        tried.append((alone.turn_offset, alone.attempts))
    assert tried == [(1, 2), (2, 2), (3, 2), (1, 3)]


def test_claims_a_living_worker_could_not_give_back_count_nothing(ledger: Ledger) -> None:
    """On a full disk neither the commit nor the release gets through, as often as it is tried."""
    events.apply(ledger, [turn("e1"), turn("e2")], now_ms=NOW)
    for _ in range(5):
        assert [t.attempts for t in claim(ledger)] == [1, 1]


def test_nothing_is_claimed_for_another_model(ledger: Ledger) -> None:
    """Work that cannot be committed is not begun, and no turn is blamed for it."""
    events.apply(ledger, [turn("e1"), turn("e2")], now_ms=NOW)
    finish(ledger, claim(ledger, limit=1))
    with pytest.raises(ModelMismatchError, match="was written with m, the settings name other"):
        work.claim(ledger, "w1", limit=9, max_attempts=3, is_alive=lambda _: True, model_key="other")
    assert rows(ledger, "SELECT state, attempts FROM turns ORDER BY turn_offset") == [(2, 1), (0, 0)]


def test_a_release_without_blame_counts_nothing(ledger: Ledger) -> None:
    """A full disk is not the turn's fault."""
    events.apply(ledger, [turn("e1")], now_ms=NOW)
    for _ in range(5):
        claim(ledger)
        work.release(ledger, "w1", failure="disk full", max_attempts=3, counted=False)
    assert [t.attempts for t in claim(ledger)] == [1]


def test_trace_ids_are_never_reused(ledger: Ledger) -> None:
    """A watermark would hide a new trace under a reused id."""
    events.apply(ledger, [turn("e1", turn_id="t")], now_ms=NOW)
    finish(ledger, claim(ledger))
    events.apply(ledger, [turn("e2", turn_id="t", revision=1)], now_ms=NOW)
    finish(ledger, claim(ledger))
    assert rows(ledger, "SELECT trace_id FROM traces") == [(2,)]


def test_two_models_never_mix(ledger: Ledger) -> None:
    """Vectors of two models in one index answer nonsense."""
    events.apply(ledger, [turn("e1"), turn("e2")], now_ms=NOW)
    claimed = claim(ledger)
    finish(ledger, claimed[:1])
    with pytest.raises(ModelMismatchError, match="was written with m, the settings name other"):
        work.commit(ledger, "w1", [], model_key="other", dimension=4)


def test_another_scopes_ledger_is_refused(tmp_path: Path) -> None:
    """A folder moved by hand must not answer for somebody else."""
    open_ledger(tmp_path).close()
    with pytest.raises(ShardError, match="belongs to another scope"):
        Ledger.open(tmp_path / "ledger.sqlite", Scope("user", "u2"))


def test_a_damaged_ledger_says_so(tmp_path: Path) -> None:
    """An operator must act; nothing is made anew over it."""
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ShardError, match="is damaged"):
        Ledger.open(path, SCOPE)


def test_closed_sessions_are_due_sooner_than_silent_ones(ledger: Ledger) -> None:
    """A closed session is summarised now, an open one after the idle time."""
    closed = SessionClosed(scope=SCOPE, session_id="s1", timestamp_ms=1, event_id="c")
    events.apply(ledger, [turn("e1"), turn("e2", session="s2"), closed], now_ms=NOW)

    def due_at(now_ms: int) -> list[str]:
        return sorted(s.session_id for s in sessions.due(ledger, now_ms=now_ms, idle_ms=300_000, settle_ms=500))

    assert [due_at(NOW + 499), due_at(NOW + 500), due_at(NOW + 300_000)] == [[], ["s1"], ["s1", "s2"]]
    assert upkeep.status(ledger, idle_ms=300_000, settle_ms=500).next_session_due_ms == NOW + 500


def test_a_summary_of_an_older_version_is_not_stored(ledger: Ledger) -> None:
    """Turns that arrive while the model thinks leave the session due."""
    events.apply(ledger, [turn("e1")], now_ms=NOW)
    (session,) = sessions.due(ledger, now_ms=NOW + 10, idle_ms=0, settle_ms=0)
    events.apply(ledger, [turn("e2")], now_ms=NOW)
    summary = sessions.NewSummary("s1", "short", "digest", "m", np.ones(4, np.float32) / 2)
    assert not sessions.put_summary(ledger, summary, now_ms=NOW, model_key="m", version=session.version)
    (session,) = sessions.due(ledger, now_ms=NOW + 10, idle_ms=0, settle_ms=0)
    assert sessions.put_summary(ledger, summary, now_ms=NOW, model_key="m", version=session.version)
    assert sessions.due(ledger, now_ms=NOW + 10, idle_ms=0, settle_ms=0) == []
    assert sessions.put_summary(ledger, replace(summary, text="longer"), now_ms=NOW, model_key="m")
    assert rows(ledger, "SELECT summary_id, text FROM summaries") == [(2, "longer")]


def test_a_failed_summary_is_listed_and_waits(ledger: Ledger) -> None:
    """An outage of the model must neither lose the session nor hammer the model."""
    events.apply(ledger, [turn("e1")], now_ms=NOW)
    (session,) = sessions.due(ledger, now_ms=NOW, idle_ms=0, settle_ms=0)
    sessions.postpone(ledger, session, failure="model timed out", retry_at_ms=NOW + 1000)
    assert sessions.due(ledger, now_ms=NOW + 999, idle_ms=0, settle_ms=0) == []
    assert upkeep.status(ledger, idle_ms=0, settle_ms=0).next_session_due_ms == NOW + 1000
    assert rows(ledger, "SELECT failure, attempts FROM sessions") == [("model timed out", 1)]


def test_session_lines_follow_the_publishers_order(ledger: Ledger) -> None:
    """Late turns stand where they were said, not where they arrived."""
    events.apply(
        ledger,
        [
            turn("b", at=2, content="second", speaker="Ann"),
            turn("c", at=2, index=1, content="third"),
            turn("a", at=1, content="first"),
        ],
        now_ms=NOW,
    )
    assert sessions.lines(ledger, "s1") == [("user", "first"), ("Ann", "second"), ("user", "third")]


def test_more_scopes_than_may_be_open_are_worked_on_in_groups(tmp_path: Path) -> None:
    """A platform has more active scopes than a process may have files."""
    pool = LedgerPool(Shards(tmp_path), max_open=3)
    scopes = [Scope("user", f"u{number}") for number in range(8)]
    for group in pool.groups(scopes):
        ledgers = [pool.open(scope) for scope in group]
        for ledger in ledgers:  # all of a group are open at the same time
            events.apply(ledger, [replace(turn("e1"), scope=ledger.scope)], now_ms=NOW)
    assert [rows(pool.open(scope), "SELECT count(*) FROM turns") for scope in scopes] == [[(1,)]] * 8
    pool.close()


def test_an_old_revision_that_is_forgotten_on_arrival_is_purged_too(ledger: Ledger) -> None:
    """Its newer revision was searchable: vector, summary and WAL still hold it."""
    events.apply(ledger, [ScopeDeleted(scope=SCOPE, timestamp_ms=200_000, event_id="d")], now_ms=NOW)
    first = upkeep.status(ledger, idle_ms=0, settle_ms=0).purge_due
    events.apply(ledger, [turn("e2", turn_id="t", revision=1, at=300)], now_ms=NOW + 1)
    assert events.apply(ledger, [turn("e1", turn_id="t", at=100)], now_ms=NOW + 2) == [Outcome.FORGOTTEN]
    assert rows(ledger, "SELECT count(*) FROM turns") == [(0,)]
    status = upkeep.status(ledger, idle_ms=0, settle_ms=0)
    assert status.purge_due not in {None, first}
    assert not status.files_purged


def test_a_ledger_made_by_many_at_once_is_whole(tmp_path: Path) -> None:
    """Two ingesters, or threads of one bot, may be first in the same scope."""
    path = tmp_path / "ledger.sqlite"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: connection.create(path), range(40)))
    assert rows(Ledger.open(path, SCOPE), "PRAGMA integrity_check") == [("ok",)]
    assert [file.name for file in tmp_path.iterdir() if "draft" in file.name] == []
