"""The open connections of one ledger: borrowed for one view, given back, never shared by two threads at once.

Why: a pool rather than one connection per thread, so that a server with many short-lived threads keeps few files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from pipeline.ledger.connection import connect, require_scope, translated
from pipeline.records import Scope

_MAX_IDLE: Final = 8
_inherited: list[list[apsw.Connection]] = []
"""Connections of a parent process: closing them here would touch locks and memory that are the parent's."""


class Connections:
    """Connections to one ledger, opened when needed; safe to share between threads.

    A process that finds itself forked leaves the inherited ones alone and opens its own.
    """

    def __init__(self, path: Path, scope: Scope, *, busy_timeout_ms: int) -> None:
        self._path = path
        self._scope = scope
        self._busy_timeout_ms = busy_timeout_ms
        self._lock = threading.Lock()
        self._idle: list[apsw.Connection] = []
        self._pid = os.getpid()
        self._is_retired = False

    @contextmanager
    def borrowed(self) -> Iterator[apsw.Connection]:
        """Lend a connection inside one read transaction: everything read in the block is of one moment.

        Raises:
            ShardError: the ledger is damaged, unreadable or another scope's.
            TransientError: another process holds it.
        """
        connection = self._take()
        try:
            with translated(self._path):
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        finally:
            self._give_back(connection)

    def close_idle(self) -> None:
        """Close the connections nobody has borrowed."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def retire(self) -> None:
        """Close the idle connections now, and the borrowed ones when they are given back."""
        self._is_retired = True
        self.close_idle()

    def _take(self) -> apsw.Connection:
        if self._pid != os.getpid():
            self._abandon_inherited()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = connect(self._path, busy_timeout_ms=self._busy_timeout_ms, query_only=True)
        require_scope(connection, self._path, self._scope)
        return connection

    def _give_back(self, connection: apsw.Connection) -> None:
        with self._lock:
            is_kept = not self._is_retired and len(self._idle) < _MAX_IDLE and self._pid == os.getpid()
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()

    def _abandon_inherited(self) -> None:
        _inherited.append(self._idle)
        self._idle = []
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self._pid = os.getpid()
