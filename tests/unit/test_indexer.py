"""A scope's snapshot follows its ledger: after damage, after forgetting, never ahead of it on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline import index
from pipeline.errors import TransientError
from pipeline.ledger import Ledger, connection, events, upkeep, work
from pipeline.ledger.work import NewTrace, TurnWork
from pipeline.records import Chunk, Scope, ScopeDeleted, Turn
from pipeline.settings import IndexSettings
from pipeline.snapshot import SnapshotStore
from workers.indexer import Indexer

SCOPE = Scope("user", "u1")
MODEL = "m@1/hashing/4"
NOW = 1_700_000_000_000


def remember(ledger: Ledger, *names: str) -> None:
    """Ingest turns and commit one trace of each."""
    turns = [
        Turn(scope=SCOPE, session_id="s", role="user", content=f"secret {name}", timestamp=NOW / 1000, event_id=name)
        for name in names
    ]
    events.apply(ledger, turns, now_ms=NOW)
    claimed = work.claim(
        ledger, "w", limit=99, max_attempts=3, is_alive=lambda _: True, model_key=MODEL, retried=False
    )
    vector = np.full(4, 0.5, np.float32)
    done = [TurnWork(t, t.content, [NewTrace(Chunk(0, 1, t.content, 1), vector, 0.3, 1e7, 0, 0.8)]) for t in claimed]
    work.commit(ledger, "w", done, model_key=MODEL, dimension=4)


def forget_all(ledger: Ledger) -> None:
    events.apply(ledger, [ScopeDeleted(scope=SCOPE, timestamp_ms=NOW + 1, event_id="gone")], now_ms=NOW)


def status(ledger: Ledger) -> upkeep.Status:
    return upkeep.status(ledger, idle_ms=0, settle_ms=0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    path = tmp_path / "ledger.sqlite"
    connection.create(path)
    with closing(Ledger.open(path, SCOPE, busy_timeout_ms=50)) as opened:
        yield opened


@pytest.fixture
def indexer() -> Indexer:
    model: Any = SimpleNamespace(model_key=MODEL, dimension=4)
    return Indexer(IndexSettings(min_tail=3), model)


def served(ledger: Ledger) -> tuple[int, int]:
    snapshot = SnapshotStore(ledger.path.parent).open("traces", model_key=MODEL)
    assert snapshot is not None
    return snapshot.generation, snapshot.count


def test_a_snapshot_is_published_when_the_tail_is_long_enough(ledger: Ledger, indexer: Indexer) -> None:
    """Below that, comparing one by one is cheaper."""
    remember(ledger, "a", "b")
    indexer.publish(ledger, status(ledger))
    assert SnapshotStore(ledger.path.parent).manifest("traces") is None
    remember(ledger, "c")
    indexer.publish(ledger, status(ledger))
    assert served(ledger) == (1, 3)
    assert not indexer.is_due(ledger, status(ledger))


def test_the_ledger_is_on_disk_before_the_snapshot_is(
    ledger: Ledger, indexer: Indexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the ledger would give out trace ids again that the snapshot knows as others."""
    remember(ledger, "a", "b", "c")
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    indexer.publish(ledger, status(ledger))
    assert synced.index("ledger.sqlite-wal") < synced.index(".traces.1.faiss.tmp")


def damage_manifest(folder: Path) -> None:
    (folder / "traces.manifest.json").write_text("{")


def remove_index(folder: Path) -> None:
    (folder / "traces.1.faiss").unlink()


def shorten_index(folder: Path) -> None:
    os.truncate(folder / "traces.1.faiss", 9)


DAMAGES = [damage_manifest, remove_index, shorten_index]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_built_anew(ledger: Ledger, indexer: Indexer, damage: Callable[[Path], None]) -> None:
    """Else every reader compares one by one until the scope has outgrown a snapshot that nobody can use."""
    remember(ledger, "a", "b", "c")
    indexer.publish(ledger, status(ledger))
    damage(ledger.path.parent)
    assert indexer.is_due(ledger, status(ledger))
    indexer.publish(ledger, status(ledger))
    assert served(ledger)[1] == 3
    assert not indexer.is_due(ledger, status(ledger))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_does_not_keep_what_was_forgotten(
    ledger: Ledger, indexer: Indexer, damage: Callable[[Path], None]
) -> None:
    """A purge that always fails would never end."""
    remember(ledger, "a", "b", "c")
    indexer.publish(ledger, status(ledger))
    damage(ledger.path.parent)
    forget_all(ledger)
    indexer.publish(ledger, status(ledger))
    assert served(ledger)[1] == 0
    assert status(ledger).files_purged


def test_a_publisher_from_before_everything_was_forgotten_is_late(ledger: Ledger, indexer: Indexer) -> None:
    """It holds the vectors that were to be gone; generation 0 twice would let it pass."""
    store = SnapshotStore(ledger.path.parent)
    seen = store.generation("traces")
    remember(ledger, "a", "b", "c")
    old = index.build_from_blocks(upkeep.vector_blocks(ledger, 4, 3), 4, flat_max=9, min_recall=0.9)
    indexer.publish(ledger, status(ledger))
    forget_all(ledger)
    indexer.publish(ledger, status(ledger))
    assert served(ledger) == (2, 0)
    with pytest.raises(TransientError, match="build again"):
        store.publish("traces", index=old, watermark=3, model_key=MODEL, dimension=4, replaces=seen)


def test_a_purge_is_due_while_somebody_reads_what_was_forgotten(ledger: Ledger, indexer: Indexer) -> None:
    """The bytes are still in the WAL; the mark is all that tells."""
    remember(ledger, "a", "b", "c")
    with closing(Ledger.open(ledger.path, SCOPE)) as reader:
        with reader.read() as reading:
            reading.execute("SELECT count(*) FROM turns").fetchall()
            forget_all(ledger)
            with pytest.raises(TransientError, match="locked"):
                indexer.publish(ledger, status(ledger))
            assert not status(ledger).files_purged
        indexer.publish(ledger, status(ledger))
    assert status(ledger).files_purged
    content = b"".join(path.read_bytes() for path in ledger.path.parent.glob("ledger.sqlite*"))
    assert b"secret" not in content
