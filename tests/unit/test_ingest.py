"""A batch is committed when reading on would gain less."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

from pipeline import contract
from pipeline.ingest import Batch, BatchLimits, Ingest
from pipeline.ledger import LedgerPool
from pipeline.ledger.connection import connect
from pipeline.records import Scope, Turn
from pipeline.registry import Registry
from pipeline.shards import Shards
from pipeline.stream import DeadLetter, Entry, TurnStream

LIMITS = BatchLimits(n_entries=20, n_entries_spread=200, n_bytes=1_000_000)


def entries(n: int, n_scopes: int) -> list[Entry]:
    return [
        Entry(
            f"{number}-0",
            contract.encode(
                Turn(
                    scope=Scope("user", f"u{number % n_scopes}"),
                    session_id="s",
                    role="user",
                    content="x",
                    timestamp=1,
                )
            ),
            1,
        )
        for number in range(n)
    ]


def is_full(n: int, n_scopes: int) -> bool:
    batch = Batch()
    batch.add(entries(n, n_scopes))
    return batch.is_full(LIMITS)


def test_a_batch_of_few_scopes_is_committed_soon() -> None:
    """Nothing is gained by letting one scope's turns wait."""
    assert [is_full(19, 1), is_full(20, 1)] == [False, True]


def test_a_batch_spread_thin_waits_for_company() -> None:
    """Opening a ledger costs more than ten turns do, so each scope should bring several."""
    assert [is_full(79, 10), is_full(80, 10)] == [False, True]


def test_a_batch_is_bounded_whatever_is_in_it() -> None:
    """Neither a platform of many scopes nor large turns may fill the memory."""
    assert [is_full(199, 199), is_full(200, 200)] == [False, True]
    batch = Batch()
    batch.add([Entry("1-0", b"x" * 1_000_000, 1)])
    assert batch.is_full(LIMITS)


def test_what_cannot_be_read_is_set_aside_with_its_reason() -> None:
    """The rest of the batch is unaffected."""
    batch = Batch()
    batch.add([*entries(2, 1), Entry("8-0", b"no json", 1), Entry("9-0", None, 2), Entry("10-0", None, 0)])
    assert [(letter.entry_id, letter.raw) for letter in batch.letters] == [
        ("8-0", b"no json"),
        ("9-0", None),
        ("10-0", None),
    ]
    assert "no field 'event'" in batch.letters[1].reason
    assert "removed from the stream" in batch.letters[2].reason
    assert len(next(iter(batch.shares.values())).events) == 2


class Acked:
    """Stands where the stream does, and notes what is acknowledged."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def ack(self, ids: Sequence[str]) -> int:
        """Note them."""
        self.ids += ids
        return len(ids)

    def dead_letter_and_ack(self, letters: Sequence[DeadLetter]) -> int:
        """There are none."""
        return len(letters)


def test_a_ledger_that_is_being_rewritten_holds_nobody_else_up(tmp_path: Path) -> None:
    """A purge of a large scope writes for many seconds; its entries wait, those of the others do not."""
    acked, pool = Acked(), LedgerPool(Shards(tmp_path), max_open=9, is_flushed=True)
    with closing(Registry(tmp_path)) as registry:
        ingest = Ingest(cast("TurnStream", acked), pool, registry, clock=lambda: 1)

        def commit(n: int, start: int = 0) -> list[str]:
            batch = Batch()
            batch.add(entries(n, 2)[start:])
            return [key for keys in ingest.commit(batch) for key in keys]

        assert commit(2) == ["user/u0", "user/u1"]
        with closing(connect(Shards(tmp_path).ledger_path(Scope("user", "u0")))) as purge:
            purge.execute("BEGIN IMMEDIATE")
            start_s = time.monotonic()
            assert [commit(4, 2), commit(6, 4), commit(8, 6)] == [["user/u1"]] * 3
            assert time.monotonic() - start_s < 2  # asked to wait once, not at each batch
            assert acked.ids == ["0-0", "1-0", "3-0", "5-0", "7-0"]
            assert {scope.id for scope in ingest.busy} == {"u0"}
        ingest.busy.clear()
        assert commit(8, 6) == ["user/u0", "user/u1"]
        assert not ingest.busy
        ingest.close()
