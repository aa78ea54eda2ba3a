"""Unit tests of the flush before the acknowledgement."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.ledger import LedgerPool, disk, events
from pipeline.records import Scope, Turn
from pipeline.shards import Shards

SCOPE = Scope("user", "u1")
TAKE_FOR_UNUSED = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
"""
"""SQLite tries this before it removes the WAL of a file nobody else has open. Source: sqlite.org/lockingv3.html."""


def turn(number: int) -> Turn:
    return Turn(scope=SCOPE, session_id="s", role="user", content=f"number {number}", timestamp=number)


@pytest.mark.parametrize("n_flushes", [1, 2])
def test_a_flushed_ledger_is_still_known_to_be_in_use(tmp_path: Path, n_flushes: int) -> None:
    """Any reader with SQLite's own shell would otherwise unlink the WAL, and what is committed next is lost."""
    with closing(LedgerPool(Shards(tmp_path), max_open=2, is_flushed=True)) as ledgers:
        ledger = ledgers.open(SCOPE)
        for number in range(n_flushes):
            events.apply(ledger, [turn(number)], now_ms=0)
            disk.flush([ledger])
        asked = subprocess.run(
            [sys.executable, "-c", TAKE_FOR_UNUSED, str(ledger.path)], capture_output=True, text=True, check=False
        )
        assert "BlockingIOError" in asked.stderr
