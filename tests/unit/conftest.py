"""What tests of readers begin with: an empty data folder, its readers, and a word hash for a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.shards import Shards
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
