"""The registry never calls a scope done that is not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from pipeline.errors import ShardError
from pipeline.registry import Counts, Registry, Waiting


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def test_a_commit_during_the_work_leaves_the_scope_undone(registry: Registry) -> None:
    """The worker read the mark before the ledger; what was marked since is not settled."""
    registry.mark(["user/a"], now_ms=1)
    seen = registry.marks(["user/a"], now_ms=9)["user/a"]
    registry.mark(["user/a"], now_ms=2)
    registry.settle([("user/a", seen, None, Counts(turns=1))])
    assert registry.n_undone() == 1
    registry.settle([("user/a", registry.marks(["user/a"], now_ms=9)["user/a"], None, Counts(turns=2))])
    assert (registry.n_undone(), registry.counts().turns) == (0, 2)


def test_a_slow_worker_cannot_unsettle(registry: Registry) -> None:
    """Two workers settle in any order; what the higher mark saw stands, counts and due time with it."""
    registry.mark(["user/a"], now_ms=1)
    registry.mark(["user/a"], now_ms=1)
    registry.settle([("user/a", 2, 700, Counts(turns=2))])
    registry.settle([("user/a", 1, None, Counts(turns=1))])
    assert (registry.n_undone(), registry.counts().turns) == (0, 2)
    assert registry.marks(["user/a"], now_ms=700) == {"user/a": 2}
    registry.settle([("user/a", 2, None, Counts(turns=2))])  # what was due is done; nobody marked it meanwhile
    assert registry.marks(["user/a"], now_ms=700) == {}


def test_undone_and_due_scopes_are_rung_again_oldest_first(registry: Registry) -> None:
    """Lost doorbells are made good; sessions fall due by time alone."""
    registry.mark(["user/b"], now_ms=5)
    registry.mark(["user/a"], now_ms=3)
    registry.mark(["user/c"], now_ms=1)
    registry.settle([("user/c", 1, 100, Counts())])
    assert registry.undone(now_ms=99, rung_before_ms=1, limit=10) == ["user/a", "user/b"]
    assert registry.due(now_ms=99, rung_before_ms=1, limit=10) == []
    assert registry.due(now_ms=100, rung_before_ms=1, limit=10) == ["user/c"]
    registry.note_rung(["user/a"], now_ms=50)
    assert registry.undone(now_ms=99, rung_before_ms=50, limit=10) == ["user/b"]


def test_what_another_doorbell_has_seen_to_is_not_looked_at_again(registry: Registry) -> None:
    """Under load a scope is rung many times before a worker comes to it."""
    registry.mark(["user/a", "user/b"], now_ms=1)
    registry.settle([("user/a", 1, 100, Counts())])
    assert registry.marks(["user/a", "user/b"], now_ms=99) == {"user/b": 1}
    assert registry.marks(["user/a", "user/b"], now_ms=100) == {"user/a": 1, "user/b": 1}


def test_totals_add_up(registry: Registry) -> None:
    """Stats show what happened to every event since the folder was made."""
    registry.add_totals({"applied": 2})
    registry.add_totals({"applied": 1, "duplicate": 4})
    assert registry.totals() == {"applied": 3, "duplicate": 4}


def test_a_damaged_registry_says_it_can_be_removed(tmp_path: Path) -> None:
    """It holds nothing that cannot be rebuilt."""
    (tmp_path / "registry.sqlite").write_bytes(b"junk" * 999)
    with pytest.raises(ShardError, match="remove it"):
        Registry(tmp_path)


def test_a_mark_of_a_registry_set_aside_hides_no_later_one(registry: Registry) -> None:
    """A worker read a high mark in the old file and settles it in the new one, which counts from 1."""
    registry.mark(["user/a"], now_ms=1)
    registry.settle([("user/a", 57, None, Counts())])
    registry.mark(["user/a"], now_ms=2)
    assert registry.n_undone() == 1


def test_a_scope_that_is_refused_is_put_off_for_longer_each_time(registry: Registry) -> None:
    """A damaged ledger would be opened, and told of, every two seconds for ever."""
    registry.mark(["user/a"], now_ms=0)
    waits, now_ms = [], 0
    for _ in range(7):
        assert registry.note_refusal("user/a", "torn", now_ms=now_ms) == (not waits)
        assert not registry.note_refusal("user/a", "torn", now_ms=now_ms + 1)  # the same visit, refused again
        due_ms = next(at for at in range(now_ms, now_ms + 99_000, 1_000) if registry.marks(["user/a"], now_ms=at))
        assert registry.undone(now_ms=due_ms - 1_000, rung_before_ms=1, limit=9) == []
        assert registry.undone(now_ms=due_ms, rung_before_ms=1, limit=9) == ["user/a"]
        waits.append((due_ms - now_ms) // 1_000)
        now_ms = due_ms
    assert waits == [2, 4, 8, 16, 32, 64, 64]
    assert registry.note_refusal("user/a", "another model", now_ms=now_ms)
    assert registry.waiting().refused == 1
    registry.settle([("user/a", 1, None, Counts())])
    assert registry.waiting().refused == 0
    registry.mark(["user/a"], now_ms=now_ms)
    assert registry.marks(["user/a"], now_ms=now_ms) == {"user/a": 2}


def test_since_when_something_waits_is_kept_until_it_is_done(registry: Registry) -> None:
    """Seen due again and again, it is as old as at first sight."""
    registry.mark(["user/a"], now_ms=1)
    for now_ms in (10, 20):
        registry.note_waiting([("user/a", now_ms, now_ms, True)], now_ms=now_ms)
    seen = registry.waiting()
    assert (seen.snapshot_since_ms, seen.purge_since_ms, seen.unsummarised_since_ms) == (10, 10, 20)
    registry.note_published(["user/a"])
    registry.note_waiting([("user/a", None, None, False)], now_ms=30)
    assert registry.waiting() == Waiting(1, 1, 1, 0, 0, None, 0, None, 0, None)


def test_a_registry_of_an_earlier_release_is_brought_up_to_date(tmp_path: Path) -> None:
    """Making a new one would forget the running totals."""
    with closing(Registry(tmp_path)) as registry:
        registry.mark(["user/a"], now_ms=1)
    with closing(apsw.Connection(str(tmp_path / "registry.sqlite"))) as connection:
        connection.execute("ALTER TABLE shards DROP COLUMN refusal; ALTER TABLE shards DROP COLUMN summary_failed")
    with closing(Registry(tmp_path)) as registry:
        assert registry.counts() == Counts()
        assert registry.waiting().undone == 1
