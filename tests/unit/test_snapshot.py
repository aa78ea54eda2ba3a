from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.crash_points import CrashPoint
from pipeline.errors import DimensionMismatchError, ShardError, TransientError
from pipeline.snapshot import Manifest, SnapshotStore

D = 16
MODEL = "m@1/hashing/16"


def unit_vectors(n, seed=0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, D)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float16).astype(np.float32)  # as the ledger keeps them


def flat_index(n, seed=0, kept=None) -> faiss.IndexIDMap:
    half = faiss.IndexScalarQuantizer(D, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexIDMap(half if kept is None else kept)
    index.add_with_ids(unit_vectors(n, seed), np.arange(n, dtype=np.int64) * 2 + 1)
    return index


def ivf_index(n, nprobe=16) -> faiss.IndexIVF:
    index = faiss.index_factory(D, "IVF16,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(unit_vectors(n))
    index.add_with_ids(unit_vectors(n), np.arange(n, dtype=np.int64) * 2 + 1)
    index.nprobe = nprobe
    return index


def publish(store, index=None, *, kind="traces", watermark=7, **options: int) -> Manifest:
    index = flat_index(40) if index is None else index
    return store.publish(kind, index=index, watermark=watermark, model_key=MODEL, dimension=D, **options)


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "shard-a"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def store(folder) -> SnapshotStore:
    return SnapshotStore(folder)


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


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


# --- damage


def corrupt_flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def corrupt_zeros(path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def corrupt_truncate(path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def corrupt_halve(path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def corrupt_append(path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def corrupt_remove(path) -> None:
    path.unlink()


CORRUPTIONS = [corrupt_flip, corrupt_zeros, corrupt_truncate, corrupt_append, corrupt_remove]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_a_damaged_file_is_never_served(store, folder, corrupt) -> None:
    """FAISS loads most of these without complaint and answers with other neighbours."""
    publish(store)
    corrupt(folder / "traces.1.faiss")
    with pytest.raises(ShardError, match=r"traces\.1\.faiss"):
        store.open("traces", model_key=MODEL)


@pytest.mark.parametrize("corrupt", [corrupt_flip, corrupt_zeros, corrupt_halve, corrupt_append])
def test_a_damaged_manifest_is_never_believed(store, folder, corrupt) -> None:
    """A watermark with a flipped digit would hide every turn below it."""
    publish(store)
    corrupt(folder / "traces.manifest.json")
    with pytest.raises(ShardError, match="manifest"):
        store.open("traces", model_key=MODEL)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{}", b"not json", b"\xff\xfe", b'{"format": 1}', b"9" * 99]
)
def test_a_garbage_manifest_is_reported(store, folder, content) -> None:
    """Any other exception would end the reader instead of falling back to the ledger."""
    publish(store)
    (folder / "traces.manifest.json").write_bytes(content)
    with pytest.raises(ShardError, match="manifest"):
        store.open("traces", model_key=MODEL)


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_single_bit_of_a_manifest_changes_its_meaning(position, bit) -> None:
    """Disks flip bits; what comes back is an error or exactly what was written."""
    manifest = Manifest(
        shard="s",
        kind="traces",
        generation=3,
        watermark=912,
        count=40,
        dimension=D,
        model_key=MODEL,
        n_bytes=1,
        digest="d",
    )
    data = bytearray(manifest.to_json().encode())
    data[position % len(data)] ^= 1 << bit
    try:
        read = Manifest.from_json(bytes(data))
    except (ValueError, TypeError):
        return
    assert read == manifest


def test_no_manifest_means_no_snapshot(store, folder) -> None:
    """A crash between file and manifest leaves a file nobody vouches for."""
    publish(store)
    (folder / "traces.manifest.json").unlink()
    assert store.open("traces", model_key=MODEL) is None


def test_a_missing_folder_means_no_snapshot(tmp_path) -> None:
    """Most scopes have never had a snapshot; reading one must not create its folder."""
    store = SnapshotStore(tmp_path / "none")
    assert store.open("traces", model_key=MODEL) is None
    with pytest.raises(ShardError, match="does not exist"):
        publish(store)
    assert list(tmp_path.iterdir()) == []


def test_another_shards_files_are_not_served(store, folder, tmp_path) -> None:
    """They are whole and valid, and hold another user's ids."""
    other_folder = tmp_path / "shard-b"
    other_folder.mkdir()
    publish(store)
    publish(SnapshotStore(other_folder), flat_index(40, seed=9))
    shutil.copy(other_folder / "traces.1.faiss", folder / "traces.1.faiss")
    with pytest.raises(ShardError, match="damaged"):
        store.open("traces", model_key=MODEL)
    shutil.copy(other_folder / "traces.manifest.json", folder / "traces.manifest.json")
    with pytest.raises(ShardError, match="shard-b"):
        store.open("traces", model_key=MODEL)


def test_another_kinds_files_are_not_served(store, folder) -> None:
    """Summary ids are not trace ids."""
    publish(store, kind="sessions")
    shutil.copy(folder / "sessions.1.faiss", folder / "traces.1.faiss")
    shutil.copy(folder / "sessions.manifest.json", folder / "traces.manifest.json")
    with pytest.raises(ShardError, match="sessions"):
        store.open("traces", model_key=MODEL)


def test_an_older_file_under_the_new_name_is_not_served(store, folder, tmp_path) -> None:
    """As a restore from backup may leave it: its manifest tells of vectors it does not hold."""
    publish(store, flat_index(40))
    kept = shutil.copy(folder / "traces.1.faiss", tmp_path / "kept")
    publish(store, flat_index(40, seed=2))
    shutil.copy(kept, folder / "traces.2.faiss")
    with pytest.raises(ShardError, match="damaged"):
        store.open("traces", model_key=MODEL)


def test_another_models_snapshot_is_not_served(store) -> None:
    """Cosines between two models mean nothing, and look fine."""
    publish(store)
    with pytest.raises(ShardError, match="m@2"):
        store.open("traces", model_key="m@2/hashing/16")


@pytest.mark.parametrize("name", ["traces.1.faiss", "traces.manifest.json"])
def test_publishing_repairs_damage(store, folder, name) -> None:
    """A rebuild is the only remedy a reader can ring for."""
    publish(store)
    corrupt_flip(folder / name)
    manifest = publish(store)
    assert manifest.generation == 2
    assert store.open("traces", model_key=MODEL).generation == 2
    assert names(folder) == {"traces.2.faiss", "traces.manifest.json"}


def test_generations_go_on_counting_beside_a_damaged_manifest(store, folder) -> None:
    """A reader that mapped generation 4 must not take another generation 4 for it."""
    for _ in range(4):
        publish(store)
    corrupt_halve(folder / "traces.manifest.json")
    assert store.generation("traces") == 0
    assert publish(store, replaces=0).generation == 5
    assert names(folder) == {"traces.5.faiss", "traces.manifest.json"}


@pytest.mark.parametrize("corrupt", [corrupt_truncate, corrupt_append, corrupt_remove])
def test_a_file_of_another_size_is_seen_without_reading_it(store, folder, corrupt) -> None:
    """Workers look at every turn; the message says what an operator may remove."""
    manifest = publish(store)
    assert store.check("traces") == manifest
    corrupt(folder / "traces.1.faiss")
    with pytest.raises(ShardError, match=r"remove .*traces\.manifest\.json"):
        store.check("traces")


def test_exact_vectors_are_told_of_a_snapshot_of_an_earlier_release_too(store) -> None:
    """It has four bytes a number, and stands until the next one is due: the checker compares it with the ledger."""
    for kept in (None, faiss.IndexFlatIP(D)):
        publish(store, flat_index(40, kept=kept))
        opened = store.open("traces", model_key=MODEL)
        assert (opened.exact_vectors() == unit_vectors(40)).all()


# --- crashes


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


def test_the_manifest_is_plain_json(store, folder) -> None:
    """An operator reads it with whatever is at hand."""
    publish(store, watermark=5)
    fields = json.loads((folder / "traces.manifest.json").read_text())
    assert (fields["shard"], fields["metric"], fields["watermark"]) == ("shard-a", "inner product", 5)
