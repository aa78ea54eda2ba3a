"""What tests begin with: an empty data folder, its readers, a word hash for a model, and snapshots of one shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.shards import Shards
from pipeline.snapshot import SnapshotStore
from retrieval.reader import ShardReaders
from tests.fakes import FakeEmbedder


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def shards(data_dir: Path) -> Shards:
    return Shards(data_dir)


@pytest.fixture
def readers(shards: Shards) -> Iterator[ShardReaders]:
    with closing(ShardReaders(shards)) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shard-a"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def store(folder: Path) -> SnapshotStore:
    return SnapshotStore(folder)
