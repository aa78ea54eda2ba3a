"""The open connections of ledgers: borrowed for one view, given back, never shared by two threads at once.

Why: a pool rather than one connection per thread, so that a server with many short-lived threads keeps few files.
Why: one bound over all ledgers, because what runs out is the process's file descriptors.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw

from pipeline.errors import ShardError, TransientError
from pipeline.ledger.connection import closed_on_error, connect, require_scope, translated
from pipeline.records import Scope

_FILES_EACH: Final = 3
"""A connection holds the ledger, its WAL and the index of that."""
_FILES_OF_OTHERS: Final = 256
_MOST_IDLE: Final = 512
_FEWEST_IDLE: Final = 8
_inherited: list[OrderedDict[Connections, list[apsw.Connection]]] = []
"""Connections of a parent process: closing them here would touch locks and memory that are the parent's."""


class _TooManyFilesError(TransientError):
    """The process or the machine has no file descriptor left."""


class IdleConnections:
    """The connections that nobody has borrowed, of all ledgers together; safe to share between threads.

    A process that finds itself forked leaves the inherited ones alone.

    Args:
        max_kept: beyond so many, those of the ledger used longest ago are closed; by the process's limit when None.
    """

    def __init__(self, max_kept: int | None = None) -> None:
        self._max_kept = idle_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) if max_kept is None else max_kept
        self._forget_all()

    def __len__(self) -> int:
        """Count them."""
        return self._n_kept

    def take(self, owner: Connections) -> apsw.Connection | None:
        """Give one of a ledger's connections, if one is idle."""
        self._abandon_inherited()
        with self._lock:
            if owner not in self._kept:
                return None
            self._n_kept -= 1
            connection = self._kept[owner].pop()
            if not self._kept[owner]:
                del self._kept[owner]
            return connection

    def put(self, owner: Connections, connection: apsw.Connection) -> None:
        """Keep a connection until it is wanted again, or close it if its ledger is retired."""
        self._abandon_inherited()
        surplus = []
        with self._lock:
            if owner.is_retired:
                surplus.append(connection)
            else:
                self._kept.setdefault(owner, []).append(connection)
                self._kept.move_to_end(owner)
                self._n_kept += 1
            while self._n_kept > self._max_kept:
                surplus.append(self._oldest())
        for unwanted in surplus:
            unwanted.close()

    def close_of(self, owner: Connections) -> None:
        """Close one ledger's."""
        self._abandon_inherited()
        with self._lock:
            unwanted = self._kept.pop(owner, [])
            self._n_kept -= len(unwanted)
        for connection in unwanted:
            connection.close()

    def close_all(self) -> None:
        """Close every one."""
        self._abandon_inherited()
        with self._lock:
            unwanted = [self._oldest() for _ in range(self._n_kept)]
        for connection in unwanted:
            connection.close()

    def _oldest(self) -> apsw.Connection:
        owner, connections = next(iter(self._kept.items()))
        self._n_kept -= 1
        connection = connections.pop(0)
        if not connections:
            del self._kept[owner]
        return connection

    def _abandon_inherited(self) -> None:
        if self._pid != os.getpid():
            _inherited.append(self._kept)
            self._forget_all()

    def _forget_all(self) -> None:
        self._kept: OrderedDict[Connections, list[apsw.Connection]] = OrderedDict()
        self._n_kept = 0
        self._lock = threading.Lock()  # after a fork, a thread of the parent may have held the old one
        self._pid = os.getpid()


class Connections:
    """Connections to one ledger, opened when needed; safe to share between threads."""

    def __init__(self, path: Path, scope: Scope, idle: IdleConnections, *, busy_timeout_ms: int) -> None:
        self._path = path
        self._scope = scope
        self._idle = idle
        self._busy_timeout_ms = busy_timeout_ms
        self.is_retired = False

    @contextmanager
    def borrowed(self) -> Iterator[apsw.Connection]:
        """Lend a connection inside one read transaction: everything read in the block is of one moment.

        Raises:
            ShardError: the ledger is damaged, unreadable or another scope's.
            TransientError: another process holds it, or this one has too many files open.
        """
        connection, pid = self._idle.take(self) or self._opened(), os.getpid()
        try:
            with readable(self._path):
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        finally:
            if pid == os.getpid():
                self._idle.put(self, connection)
            else:  # the block forked: the child has a copy of what the parent goes on using
                connection.close()

    def retire(self) -> None:
        """Close the idle connections now, and the borrowed ones when they are given back."""
        self.is_retired = True
        self._idle.close_of(self)

    def _opened(self) -> apsw.Connection:
        try:
            return self._open()
        except _TooManyFilesError:
            self._idle.close_all()
            return self._open()

    def _open(self) -> apsw.Connection:
        try:
            return self._checked()
        except ShardError as error:
            if not _is_out_of_files(self._path.parent):
                raise
            raise _TooManyFilesError(
                f"{self._path} cannot be opened: this process has too many files open;"
                " close some or raise the limit (ulimit -n), and retry"
            ) from error

    def _checked(self) -> apsw.Connection:
        connection = connect(self._path, busy_timeout_ms=self._busy_timeout_ms, query_only=True)
        with closed_on_error(connection), readable(self._path):
            require_scope(connection, self._path, self._scope)
        return connection


def idle_limit(max_files: int) -> int:
    """Tell how many idle connections a process that may open so many files keeps."""
    if max_files == resource.RLIM_INFINITY:
        return _MOST_IDLE
    return min(_MOST_IDLE, max(_FEWEST_IDLE, (max_files - _FILES_OF_OTHERS) // _FILES_EACH))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn SQLite's and the disk's errors into ours, a file's that is no ledger too.

    Raises:
        ShardError: the file is damaged, unreadable, or lacks what a ledger has.
        TransientError: it is locked.
    """
    try:
        with translated(path):
            yield
    except apsw.SQLError as error:
        raise ShardError(
            f"{path} is no ledger ({error}), it may be empty or cut off; restore it from a backup"
        ) from error


def _is_out_of_files(folder: Path) -> bool:
    """Tell whether a connection's files are more than the process may still open.

    Why the folder: SQLite does not tell, and to close a descriptor of the ledger would drop SQLite's locks on it.
    """
    with ExitStack() as opened:
        try:
            for _ in range(_FILES_EACH):
                opened.callback(os.close, os.open(folder, os.O_RDONLY))
        except OSError as error:
            return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
