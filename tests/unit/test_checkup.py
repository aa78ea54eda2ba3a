"""Looking for what is wrong changes nothing, and says what helps."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import faiss
import numpy as np
import pytest

from pipeline.errors import ShardError, TransientError
from pipeline.ledger import Ledger, LedgerPool, check, events
from pipeline.records import Scope, Turn
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
    """Should no reader meet it, or none that may write."""
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
    assert store.check("traces") is None


def test_an_empty_snapshot_of_a_scope_without_vectors_is_no_damage(tmp_path: Path) -> None:
    """A purge publishes one for a scope that never had a turn, such as one whose name was mistyped in a forget."""
    scope, shards = Scope("user", "nobody"), Shards(tmp_path)
    with closing(LedgerPool(shards, max_open=1)) as ledgers:
        ledgers.open(scope)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    SnapshotStore(shards.folder(scope)).publish("traces", index=index, watermark=0, model_key=MODEL, dimension=4)
    assert [found.what for found in verify_data(Settings(data_dir=tmp_path)) if "snapshot" in found.what] == []


def test_a_locked_ledger_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes a long transaction; whoever is told of damage restores a backup."""
    with closing(LedgerPool(Shards(tmp_path), max_open=1)) as ledgers:
        ledgers.open(Scope("user", "u1"))
    monkeypatch.setattr("workers.checkup.shard.connect", Mock(side_effect=TransientError("locked")))
    found = [finding for finding in verify_data(Settings(data_dir=tmp_path)) if "ledger" in finding.what]
    assert [finding.verdict for finding in found] == [Verdict.BUSY]


def test_a_ledger_of_another_format_is_refused_with_the_same_words_everywhere(tmp_path: Path) -> None:
    """Two remedies for one trouble leave the operator with none."""
    scope, shards = Scope("user", "u1"), Shards(tmp_path)
    with closing(LedgerPool(shards, max_open=1)) as ledgers, ledgers.open(scope).write() as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'format'")
    found = next(finding for finding in verify_data(Settings(data_dir=tmp_path)) if "ledger" in finding.what)
    with pytest.raises(ShardError, match="has format 1") as refused:
        Ledger.open(shards.ledger_path(scope), scope)
    assert found.detail == str(refused.value)


@pytest.mark.parametrize("content", [None, b""], ids=["absent", "empty"])
def test_looking_at_the_registry_makes_none(tmp_path: Path, content: bytes | None) -> None:
    """Only `up` makes the folder's files."""
    path = tmp_path / "registry.sqlite"
    if content is not None:
        path.write_bytes(content)
    installation._finding("registry", lambda: installation._registry(Settings(data_dir=tmp_path)))
    assert path.exists() == (content is not None)


@pytest.mark.parametrize(
    ("indexes", "missing"),
    [
        ([0, 1, 2, 4], [3]),
        ([0, 1, 2, 4, 4], [3]),
        ([0, 0, 1, 1, 3, 3], [2]),
        ([0, 1, 2, 3], []),
        ([0, 0, 0, 0, 5], []),
        ([0, 10, 20, 30], []),
    ],
    ids=["once each", "one twice", "question and answer alike", "none missing", "hardly numbered", "in tens"],
)
def test_a_number_that_no_turn_has_is_missed(tmp_path: Path, indexes: list[int], missing: list[int]) -> None:
    """A turn that never came must not hide behind two that share a number; some have holes by nature."""
    scope = Scope("user", "u1")
    turns = [
        Turn(scope=scope, session_id="s", role="user", content="x", timestamp=n, index=index, event_id=f"e{n}")
        for n, index in enumerate(indexes)
    ]
    with closing(LedgerPool(Shards(tmp_path), max_open=1)) as ledgers:
        ledger = ledgers.open(scope)
        events.apply(ledger, turns, now_ms=0)
        found = check.gaps(ledger.connection)
    assert [number for gap in found for number in gap.missing] == missing
