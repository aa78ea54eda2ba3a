"""Snapshots: what was published is what is searched, also while the next is published."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import DimensionMismatchError, ShardError, TransientError
from pipeline.snapshot import SnapshotStore
from tests.snapshots import MODEL, D, flat_index, names, publish, unit_vectors


def ivf_index(n, nprobe=16) -> faiss.IndexIVF:
    index = faiss.index_factory(D, "IVF16,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(unit_vectors(n))
    index.add_with_ids(unit_vectors(n), np.arange(n, dtype=np.int64) * 2 + 1)
    index.nprobe = nprobe
    return index


# --- publish and search


def test_what_was_published_is_served(store, folder) -> None:
    """The manifest carries everything a reader decides by."""
    manifest = publish(store, watermark=93)
    snapshot = store.open("traces", model_key=MODEL)
    assert (snapshot.watermark, snapshot.generation, snapshot.count, snapshot.dimension) == (93, 1, 40, D)
    assert store.manifest("traces") == manifest
    assert names(folder) == {"traces.1.faiss", "traces.manifest.json"}


def test_a_new_generation_replaces_the_old_one(store, folder) -> None:
    """What was forgotten must not stay on disk in an old file."""
    publish(store, kind="sessions")
    publish(store)
    publish(store, flat_index(50))
    assert store.open("traces", model_key=MODEL).count == 50
    assert names(folder) == {"traces.2.faiss", "traces.manifest.json", "sessions.1.faiss", "sessions.manifest.json"}


@pytest.mark.parametrize("make", [flat_index, ivf_index], ids=["flat", "ivf"])
def test_a_mapped_file_answers_as_the_index_did(store, make) -> None:
    """Mapping is for memory; it must not change a single neighbour."""
    index = make(1_000)
    publish(store, index)
    queries = unit_vectors(30, seed=5)
    scores, ids = store.open("traces", model_key=MODEL).search(queries, 10)
    expected_scores, expected_ids = index.search(queries, 10)
    assert (ids == expected_ids).all()
    assert np.allclose(scores, expected_scores)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize(("make", "tolerance"), [(flat_index, 1e-5), (ivf_index, 0.05)], ids=["flat", "ivf"])
def test_only_allowed_ids_are_found_and_all_of_them(store, make, tolerance) -> None:
    """Stage two searches one session: lists of an IVF that were not probed may hold it."""
    publish(store, make(1_000) if make is flat_index else ivf_index(1_000, nprobe=1))
    allowed = np.array([3, 777, 1_201, 999_999], dtype=np.int64)
    query = unit_vectors(1, seed=9)[0]
    scores, ids = store.open("traces", model_key=MODEL).search(query, 10, allowed_ids=allowed)
    assert sorted(ids) == [3, 777, 1_201]
    assert np.allclose(scores, unit_vectors(1_000)[(ids - 1) // 2] @ query, atol=tolerance)


def test_allowed_ids_may_lie_close_or_far_apart(store) -> None:
    """A bitmap and a hash set choose the same: the first and last bit, gaps, and ids the index never held."""
    publish(store)
    snapshot = store.open("traces", model_key=MODEL)

    @settings(max_examples=60, deadline=None)
    @given(st.sets(st.integers(0, 90), min_size=1), st.sampled_from([(), (10**15,), (-(2**62),)]))
    def same_as_sets(near: set[int], far: tuple[int, ...]) -> None:
        allowed = np.array([*near, *far], dtype=np.int64)
        _, ids = snapshot.search(unit_vectors(1)[0], 200, allowed_ids=allowed)
        assert set(ids.tolist()) == near & set(range(1, 81, 2))

    same_as_sets()


def test_a_search_leaves_the_callers_threads_as_they_were(store) -> None:
    """A bot may use FAISS, too: its own batches are not to become slower."""
    publish(store)
    snapshot = store.open("traces", model_key=MODEL)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        snapshot.search(unit_vectors(1)[0], 5)
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


def test_one_query_gives_flat_results_without_padding(store) -> None:
    """An id of -1 would be looked up in the ledger."""
    publish(store, flat_index(4))
    snapshot = store.open("traces", model_key=MODEL)
    scores, ids = snapshot.search(unit_vectors(1)[0], 10)
    assert scores.shape == ids.shape == (4,)
    assert ids.min() > 0
    assert ids[0] == 1


def test_rows_with_fewer_hits_end_in_minus_one(store) -> None:
    """A probed list may hold fewer vectors than asked for; a score there must never rank."""
    publish(store, ivf_index(400, nprobe=1))
    scores, ids = store.open("traces", model_key=MODEL).search(unit_vectors(50, seed=3), 40)
    assert (ids < 0).any()
    assert np.isneginf(scores[ids < 0]).all()
    assert np.isfinite(scores[ids >= 0]).all()


@pytest.mark.parametrize(("k", "allowed"), [(0, None), (5, [])], ids=["k=0", "nothing allowed"])
def test_asking_for_nothing_finds_nothing(store, k, allowed) -> None:
    """FAISS raises on k = 0; a caller with an empty session should not have to know."""
    publish(store)
    allowed_ids = None if allowed is None else np.array(allowed, dtype=np.int64)
    scores, ids = store.open("traces", model_key=MODEL).search(unit_vectors(1)[0], k, allowed_ids=allowed_ids)
    assert scores.shape == ids.shape == (0,)


def test_an_empty_snapshot_can_be_served(store) -> None:
    """After everything was forgotten the watermark still tells what need not be looked at."""
    publish(store, flat_index(0), watermark=12)
    snapshot = store.open("traces", model_key=MODEL)
    assert (snapshot.count, snapshot.watermark) == (0, 12)
    assert len(snapshot.search(unit_vectors(1)[0], 5)[1]) == 0


def test_a_query_of_another_dimension_is_refused(store) -> None:
    """FAISS would read past the end of it."""
    publish(store)
    with pytest.raises(DimensionMismatchError, match="8 dimensions"):
        store.open("traces", model_key=MODEL).search(np.zeros(8, np.float32), 3)


def test_an_index_that_cannot_be_ranked_is_not_published(store, folder) -> None:
    """Distances sorted as similarities would return the farthest."""
    l2 = faiss.IndexIDMap(faiss.IndexFlatL2(D))
    with pytest.raises(ShardError, match="inner product"):
        publish(store, l2)
    with pytest.raises(DimensionMismatchError, match="16 dimensions, not 32"):
        store.publish("traces", index=flat_index(3), watermark=1, model_key=MODEL, dimension=32)
    assert names(folder) == set()


def test_files_are_for_their_owner_only(store, folder) -> None:
    """Vectors can be turned back into words."""
    before = os.umask(0)
    try:
        publish(store)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_exact_vectors_are_told_of_a_snapshot_of_an_earlier_release_too(store) -> None:
    """It has four bytes a number, and stands until the next one is due: the checker compares it with the ledger."""
    for kept in (None, faiss.IndexFlatIP(D)):
        publish(store, flat_index(40, kept=kept))
        opened = store.open("traces", model_key=MODEL)
        assert (opened.exact_vectors() == unit_vectors(40)).all()


def test_the_manifest_is_plain_json(store, folder) -> None:
    """An operator reads it with whatever is at hand."""
    publish(store, watermark=5)
    fields = json.loads((folder / "traces.manifest.json").read_text())
    assert (fields["shard"], fields["metric"], fields["watermark"]) == ("shard-a", "inner product", 5)


# --- readers and publishers at once


def test_a_mapping_outlives_its_file(store, folder) -> None:
    """A reader in another process is in the middle of a search when the next generation is published."""
    publish(store, flat_index(2_000))
    old = store.open("traces", model_key=MODEL)
    expected = flat_index(2_000).search(unit_vectors(5, seed=4), 10)[1]
    publish(store, flat_index(10, seed=8))
    assert not (folder / "traces.1.faiss").exists()
    assert (old.search(unit_vectors(5, seed=4), 10)[1] == expected).all()


READER = """
import sys
from pathlib import Path
import numpy as np
from pipeline.snapshot import SnapshotStore
store = SnapshotStore(Path(sys.argv[1]))
query = np.ones(16, np.float32) / 4
generations = set()
print("ready", flush=True)
while not (Path(sys.argv[1]) / "stop").exists():
    snapshot = store.open("traces", model_key=sys.argv[2])
    assert snapshot.count == 100 + snapshot.generation, "manifest and file of different generations"
    assert len(snapshot.search(query, 5)[1]) == 5
    generations.add(snapshot.generation)
print(len(generations), flush=True)
"""


def test_another_process_reads_whole_generations_while_they_change(store, folder) -> None:
    """A reader between manifest and file must see the old or the new one, and no error."""
    publish(store, flat_index(101))
    command = [sys.executable, "-c", READER, str(folder), MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "ready\n"
        for generation in range(2, 80):
            publish(store, flat_index(100 + generation))
        (folder / "stop").touch()
        n_seen = int(reader.stdout.read())
    assert reader.returncode == 0
    assert n_seen >= 1


def test_the_stamp_changes_with_the_generation(store) -> None:
    """Readers look at it before every query instead of reading the manifest."""
    assert store.stamp("traces") is None
    publish(store)
    first = store.stamp("traces")
    assert store.stamp("traces") == first
    publish(store)
    assert store.stamp("traces") not in {None, first}


def test_publishers_at_once_get_generations_of_their_own(store, folder) -> None:
    """Two workers may be rung for one shard."""
    threads = [threading.Thread(target=publish, args=(SnapshotStore(folder),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.open("traces", model_key=MODEL).generation == 6
    assert names(folder) == {"traces.6.faiss", "traces.manifest.json"}


def test_a_slow_publisher_does_not_bring_back_what_was_forgotten(store) -> None:
    """It read the ledger before the deletion; the faster one after it."""
    publish(store)
    seen = store.manifest("traces").generation
    publish(store, flat_index(30), replaces=seen)
    with pytest.raises(TransientError, match="build again"):
        publish(store, flat_index(40), replaces=seen)
    assert store.open("traces", model_key=MODEL).count == 30
