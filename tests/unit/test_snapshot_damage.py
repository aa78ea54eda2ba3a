"""Damaged, missing or foreign snapshots: never served, and repaired by the next one."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ShardError
from pipeline.snapshot import Manifest, SnapshotStore
from tests.snapshots import MODEL, D, flat_index, names, publish


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
