"""One open ledger, and the ledgers a process keeps open.

A commit is whole or absent, whatever is killed. It survives a power cut once it was flushed (`pipeline.ledger.disk`).
Ingest does that before it acknowledges; workers only before they publish a snapshot: what they write is derived, and
done again if lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from pipeline.ledger.connection import adopt, closed_on_error, connect, create, read_meta, translated
from pipeline.records import Scope
from pipeline.shards import Shards

T = TypeVar("T")
_CHECKPOINT_PAGES = 1_000
_WAIT_FOR_READERS_MS = 200


class Ledger:
    """An open ledger of one scope, for one thread at a time."""

    def __init__(self, path: Path, scope: Scope, connection: apsw.Connection, *, is_new: bool = False) -> None:
        self.path = path
        self.scope = scope
        self.connection = connection
        self.is_new = is_new
        """Made by this process and not flushed yet."""
        self.has_entry_on_disk = False
        """Whether this process knows that the file will be found after a power cut."""

    @classmethod
    def open(cls, path: Path, scope: Scope, *, busy_timeout_ms: int = 30_000, is_new: bool = False) -> Ledger:
        """Open a ledger for writing; one that was just made becomes this scope's.

        Args:
            path: the file.
            scope: whose it is.
            busy_timeout_ms: longest wait for another writer.
            is_new: it was just made: nothing of it needs to be on disk before `disk.flush`, and nothing waits for it.

        Raises:
            ShardError: it is missing, damaged or another scope's.
            TransientError: another process holds it.
        """
        connection = connect(path, busy_timeout_ms=busy_timeout_ms)
        if is_new:
            connection.pragma("synchronous", "off")
            connection.pragma("wal_autocheckpoint", 0)  # a checkpoint that nothing was flushed before could be torn
        with closed_on_error(connection):
            adopt(connection, path, scope)
        return cls(path, scope, connection, is_new=is_new)

    def wait_at_most(self, busy_timeout_ms: int) -> None:
        """Wait no longer than this for another writer, from now on."""
        self.connection.set_busy_timeout(busy_timeout_ms)

    def note_flushed(self) -> None:
        """Note that the file and its folder's entry are on disk; from now on SQLite keeps its own order of writes."""
        if self.is_new:
            self.connection.pragma("synchronous", "normal")
            self.connection.pragma("wal_autocheckpoint", _CHECKPOINT_PAGES)
            self.is_new = False
        self.has_entry_on_disk = True

    @contextmanager
    def write(self) -> Iterator[apsw.Connection]:
        """Run one write transaction; committed on return, rolled back on any error.

        Raises:
            ShardError: the file is damaged.
            TransientError: the disk is full or another writer did not end in time.
        """
        with translated(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """Read with SQLite's errors turned into ours; several statements see one state of the file.

        Raises:
            ShardError: the file is damaged.
            TransientError: it is locked.
        """
        with translated(self.path):
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def meta(self) -> dict[str, str]:
        """Read the facts about the file."""
        with translated(self.path):
            return read_meta(self.connection)

    def truncate_wal(self) -> None:
        """Move every page into the main file and empty the WAL, so that overwritten bytes are gone from disk.

        Raises:
            TransientError: somebody reads what would go; writers wait for this call, so it does not wait long.
            ShardError: the file is damaged.
        """
        with translated(self.path):
            patience_ms = self.connection.pragma("busy_timeout")
            self.connection.set_busy_timeout(min(patience_ms, _WAIT_FOR_READERS_MS))
            try:
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                self.connection.set_busy_timeout(patience_ms)

    def rewrite(self) -> None:
        """Write every page anew, in a WAL that is then to be truncated.

        Why: ``secure_delete`` overwrites what is deleted, but not the copies that SQLite leaves in the free space of
        a page when it moves rows to another one. Measured: of 430 deleted turns, 3 could still be read in the file.

        Raises:
            TransientError: the disk is full, or a writer holds the file.
            ShardError: the file is damaged.
        """
        with translated(self.path):
            # The copy goes through a file without a name, as large as the ledger. By default it would lie in /tmp.
            self.connection.pragma("temp_store_directory", str(self.path.parent))
            self.connection.execute("VACUUM")

    def close(self) -> None:
        """Close the file; what was committed stays."""
        self.connection.close()


class LedgerPool:
    """The ledgers one process keeps open, least recently used first to go.

    Opening one may close another, but none of the ``max_open`` opened last: work on that many at a time (`groups`).

    Args:
        shards: where the ledgers are.
        max_open: how many are kept open.
        busy_timeout_ms: longest wait for another writer.
        is_flushed: whether everything written through it is followed by `disk.flush`.

    Why: opening a ledger costs more than committing to it, and a platform has thousands of active scopes.
    """

    def __init__(
        self, shards: Shards, *, max_open: int, busy_timeout_ms: int = 30_000, is_flushed: bool = False
    ) -> None:
        self.shards = shards
        self._is_flushed = is_flushed
        self._max_open = max_open
        self._busy_timeout_ms = busy_timeout_ms
        self._open: OrderedDict[Scope, Ledger] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, scope: Scope) -> Ledger:
        """Give the scope's ledger, creating it when there is none.

        Raises:
            ShardError: it is damaged or another scope's.
            TransientError: the disk is full or the file locked.
        """
        with self._lock:
            ledger = self._open.get(scope)
            if ledger is not None:
                self._open.move_to_end(scope)
                return ledger
            surplus = [self._open.popitem(last=False)[1] for _ in range(len(self._open) + 1 - self._max_open)]
        for old in surplus:
            old.close()
        path = self.shards.ledger_path(scope)
        is_new = not path.exists()
        if is_new:
            with translated(path):
                self.shards.create(scope)
            create(path)
        ledger = Ledger.open(path, scope, busy_timeout_ms=self._busy_timeout_ms, is_new=is_new and self._is_flushed)
        with self._lock:
            self._open[scope] = ledger
        return ledger

    def groups(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Cut a list with one item per scope into parts whose ledgers can be open at the same time."""
        for start in range(0, len(items), self._max_open):
            yield items[start : start + self._max_open]

    def close(self) -> None:
        """Close all."""
        with self._lock:
            ledgers, self._open = list(self._open.values()), OrderedDict()
        for ledger in ledgers:
            ledger.close()
