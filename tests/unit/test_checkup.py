"""Looking for what is wrong changes nothing, and says what helps."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.ledger import LedgerPool
from pipeline.records import Scope
from pipeline.settings import EmbeddingSettings, Settings
from pipeline.shards import Shards
from pipeline.snapshot import SnapshotStore
from workers.checkup import Verdict, installation, verify_data

MODEL = "m@1/hashing/4"


def test_a_model_not_exported_yet_is_not_exported_by_looking(tmp_path: Path) -> None:
    """Exporting takes 20 s and fills a folder; whoever looks wants neither."""
    settings = Settings(data_dir=tmp_path, embedding=EmbeddingSettings(backend="onnx-int8"))
    finding = installation._finding("model", lambda: installation._model(settings))
    assert finding.verdict is Verdict.ADVICE
    assert "turnstream prepare" in finding.detail
    assert not list(tmp_path.iterdir())


def test_a_changed_byte_of_a_snapshot_is_found_and_what_to_remove(tmp_path: Path) -> None:
    """Workers see only what is missing or cut short; removing the named file is what makes them build anew."""
    scope, shards = Scope("user", "u1"), Shards(tmp_path)
    with closing(LedgerPool(shards, max_open=1)) as ledgers, ledgers.open(scope).write() as connection:
        connection.execute("INSERT INTO meta VALUES ('model_key', ?)", (MODEL,))
    folder = shards.folder(scope)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    index.add_with_ids(np.eye(4, dtype=np.float32), np.arange(4))
    store = SnapshotStore(folder)
    store.publish("traces", index=index, watermark=4, model_key=MODEL, dimension=4)
    path = folder / "traces.1.faiss"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    finding = next(found for found in verify_data(Settings(data_dir=tmp_path)) if "snapshot" in found.what)
    assert finding.verdict is Verdict.DAMAGED
    manifest = folder / "traces.manifest.json"
    assert f"remove {manifest}" in finding.detail
    manifest.unlink()
    assert store.check_size("traces") is None


@pytest.mark.parametrize("content", [None, b""], ids=["absent", "empty"])
def test_looking_at_the_registry_makes_none(tmp_path: Path, content: bytes | None) -> None:
    """Only `up` makes the folder's files."""
    path = tmp_path / "registry.sqlite"
    if content is not None:
        path.write_bytes(content)
    installation._finding("registry", lambda: installation._registry(Settings(data_dir=tmp_path)))
    assert path.exists() == (content is not None)
