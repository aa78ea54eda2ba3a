"""A publisher that was killed, or met a full disk: the old generation stays, and nothing is left over."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

from pipeline.crash_points import CrashPoint
from pipeline.errors import TransientError
from tests.snapshots import MODEL, flat_index, names, publish


def test_the_point_half_way_is_passed_once_with_half_of_the_file_on_disk(
    store, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in this process's memory is not half of a file for whoever comes after a kill."""
    sizes: list[int] = []

    def note(point: CrashPoint) -> None:
        if point is CrashPoint.SNAPSHOT_HALF_WRITTEN:
            sizes.append((folder / ".traces.1.faiss.tmp").stat().st_size)

    monkeypatch.setattr("pipeline.snapshot.store.passing", note)
    manifest = publish(store)
    (n_bytes,) = sizes
    assert 0.25 < n_bytes / manifest.n_bytes < 0.75
    assert store.open("traces", model_key=MODEL) is not None


def test_leftovers_of_a_killed_publisher_are_removed(store, folder) -> None:
    """They hold vectors, and nothing else would ever delete them."""
    publish(store)
    (folder / ".traces.2.faiss.tmp").write_bytes(b"half")
    (folder / "traces.2.faiss").write_bytes(b"whole, but its manifest was never written")
    assert store.open("traces", model_key=MODEL).generation == 1
    publish(store)
    assert names(folder) == {"traces.3.faiss", "traces.manifest.json"}


PUBLISHER = """
import sys
from pathlib import Path
import faiss
import numpy as np
from pipeline.snapshot import SnapshotStore
store = SnapshotStore(Path(sys.argv[1]))
index = faiss.IndexIDMap(faiss.IndexFlatIP(16))
index.add_with_ids(np.ones((20_000, 16), np.float32), np.arange(20_000))
print("ready", flush=True)
while True:
    store.publish("traces", index=index, watermark=1, model_key=sys.argv[2], dimension=16)
"""


def test_a_killed_publisher_leaves_a_whole_snapshot(store, folder) -> None:
    """Killed at whatever point: the served generation opens, and the lock is free."""
    for n_published in (1, 2, 5):
        with subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(folder), MODEL], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as publisher:
            assert publisher.stdout.readline() == b"ready\n"
            for _ in range(n_published):
                assert b"snapshot.published" in publisher.stdout.readline()
            publisher.send_signal(signal.SIGKILL)
        snapshot = store.open("traces", model_key=MODEL)
        assert snapshot.count == 20_000
        publish(store)
        assert len(names(folder)) == 2


def test_a_failed_write_keeps_the_old_generation(store, folder) -> None:
    """A full disk must not cost what is already published; a file size limit fails the same write."""
    publish(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(TransientError, match="disk full"):
            publish(store, flat_index(9_999))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.open("traces", model_key=MODEL).count == 40
    assert names(folder) == {"traces.1.faiss", "traces.manifest.json"}
