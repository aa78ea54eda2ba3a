"""Whatever a kill or a disk left behind, `turnstream up` starts and knows all work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from pipeline.ledger import LedgerPool
from pipeline.ledger.connection import create
from pipeline.records import Scope
from pipeline.registry import Counts, Registry
from pipeline.shards import LEDGER_FILE, Shards
from workers import refill as refilling

ALICE, BOB = Scope("user", "alice"), Scope("user", "bob")


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    with closing(LedgerPool(Shards(tmp_path), max_open=9)) as ledgers:
        ledgers.open(ALICE)
        yield tmp_path


def refill(data_dir: Path) -> list[str]:
    """Start, and give the events that it logged."""
    with structlog.testing.capture_logs() as logged:
        refilling.refill(data_dir)
    return [line["event"] for line in logged]


def undone(data_dir: Path) -> int:
    with closing(Registry(data_dir)) as registry:
        return registry.n_undone()


def settle(data_dir: Path) -> None:
    with closing(Registry(data_dir)) as registry:
        marks = registry.marks(registry.scopes(), now_ms=0)
        registry.settle((scope, mark, None, Counts()) for scope, mark in marks.items())


@pytest.mark.parametrize("content", [b"", b"junk" * 2_000, None], ids=["empty", "garbage", "not adopted"])
def test_a_broken_ledger_keeps_nobody_from_starting(data_dir: Path, content: bytes | None) -> None:
    """It is one scope among thousands; the others are marked once, and not again at each start."""
    path = Shards(data_dir).create(BOB) / LEDGER_FILE
    if content is None:
        create(path)
    else:
        path.write_bytes(content)
    assert "registry.refilled" in refill(data_dir)
    assert undone(data_dir) == 1
    settle(data_dir)
    assert "registry.refilled" not in refill(data_dir)
    assert undone(data_dir) == 0


def test_a_shard_that_the_registry_does_not_know_is_marked(data_dir: Path) -> None:
    """A folder came back from a backup; the others have nothing to do."""
    refill(data_dir)
    settle(data_dir)
    with closing(LedgerPool(Shards(data_dir), max_open=9)) as ledgers:
        ledgers.open(BOB)
    assert refill(data_dir) == ["registry.refilled"]
    assert undone(data_dir) == 1


def test_a_power_cut_marks_every_shard(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last marks may not have reached the disk."""
    refill(data_dir)
    settle(data_dir)
    monkeypatch.setattr(refilling, "_boot_id", lambda: "another boot")
    assert refill(data_dir) == ["registry.refilled"]
    assert undone(data_dir) == 1


@pytest.mark.parametrize("where", [0, 4_096], ids=["whole", "from the second page"])
def test_a_damaged_registry_is_set_aside_and_filled_anew(data_dir: Path, where: int) -> None:
    """It holds nothing that the shards do not tell; an operator may still look at the old one."""
    refill(data_dir)
    path = data_dir / "registry.sqlite"
    damaged = path.read_bytes()[:where] + b"junk" * 9_000
    path.write_bytes(damaged)
    assert refill(data_dir) == ["registry.set_aside", "registry.refilled"]
    assert undone(data_dir) == 1
    (aside,) = data_dir.glob("registry.sqlite.damaged-*")
    assert aside.read_bytes() == damaged
