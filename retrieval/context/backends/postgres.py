"""Windows in a PostgreSQL that hosts share.

| table `turnstream_windows` | |
|---|---|
| `session` | primary key: digest of scope kind, scope id and session id; with `/forgotten` behind it in notes |
| `scope` | digest of scope kind and id; empty in notes |
| `record` | the session's record, or notes of what was forgotten of it (`record`) |
| `set_aside` | the last record of the session that could not be read |
| `written` | when, by the server's clock: only lets records expire |

Each change is one transaction under an advisory lock of its session, so it is whole or absent after a crash, and of
two at once the later sees what the first left. Table and index are made at the first use, by whoever comes first.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors as pg_errors
from psycopg.conninfo import conninfo_to_dict

from pipeline.errors import ConfigError, ServerUnreachableError, TransientError, TurnstreamError
from pipeline.ledger.forgetting import Tombstones
from pipeline.records import Scope
from retrieval.context.backends import record
from retrieval.context.backends.protocol import ForgottenOf, Kept, Limits, SessionKey, scope_digest

T = TypeVar("T")
_Cursor = psycopg.Cursor[Any]

_SETTING: Final = "TURNSTREAM_CONTEXT__URL"
_SCHEMES: Final = ("postgresql://", "postgres://")
_MOST_IDLE: Final = 4
_SCHEMA_LOCK: Final = 7_216_453_012
"""Any number that no other program takes; session locks have two numbers and never meet it."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS turnstream_windows (
  session bytea PRIMARY KEY, scope bytea NOT NULL, record bytea, set_aside bytea,
  written timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS turnstream_windows_of_scope ON turnstream_windows (scope);
CREATE INDEX IF NOT EXISTS turnstream_windows_by_age ON turnstream_windows (written);
"""
_PUT: Final = """
INSERT INTO turnstream_windows (session, scope, record) VALUES (%s, %s, %s)
ON CONFLICT (session) DO UPDATE SET record = excluded.record, scope = excluded.scope, written = now()
"""
_REMOVE: Final = "DELETE FROM turnstream_windows WHERE session = %s"
_NOTES: Final = b"/forgotten"
_EXPIRE_FORGOTTEN: Final = """
DELETE FROM turnstream_windows WHERE session IN (
  SELECT session FROM turnstream_windows
  WHERE scope = '' AND written < now() - %s * interval '1 millisecond'
  LIMIT 100 FOR UPDATE SKIP LOCKED
)
"""
_EXPIRE: Final = """
DELETE FROM turnstream_windows WHERE session IN (
  SELECT session FROM turnstream_windows
  WHERE scope <> '' AND written < now() - %s * interval '1 millisecond'
  LIMIT 100 FOR UPDATE SKIP LOCKED
)
"""


class PostgresWindows:
    """Windows in a table.

    Args:
        url: ``postgresql://…``.
        limits: what a window holds.
        timeout_s: longest wait to connect, and for one statement.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: str, limits: Limits, *, timeout_s: float = 10.0) -> None:
        self._url, self._limits = url, limits
        self._timeout_s = max(2, round(timeout_s))
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(f"{_SETTING} cannot be read; use postgresql://user@host:5432/database") from error
        if not url.startswith(_SCHEMES):
            raise ConfigError(f"{_SETTING} is no URL; use postgresql://user@host:5432/database")
        host = parts.get("host") or "localhost"
        self._address = f"postgresql://{host}:{parts.get('port') or 5432}/{parts.get('dbname') or ''}"
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._inherited: list[psycopg.Connection[Any]] = []
        self._is_ready = False

    def check(self) -> None:
        """Find out whether the server answers.

        Raises:
            TransientError: it does not.
            ConfigError: it refuses us.
        """
        self._run(lambda cursor: cursor.execute("SELECT 1").fetchone())

    def append(self, key: SessionKey, exchange: Kept) -> None:
        """Add an exchange.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """

        def work(cursor: _Cursor) -> None:
            _lock(cursor, key.digest)
            before = _read(cursor, key)
            after = record.added(before, _notes(cursor, key.digest), key, exchange, self._limits)
            if after != before:
                cursor.execute(_PUT, (key.digest, key.scope_digest, record.encode(after)))
            if self._limits.ttl_ms is not None:
                cursor.execute(_EXPIRE, (self._limits.ttl_ms,))

        self._run(work)

    def recent(self, key: SessionKey) -> tuple[Kept, ...]:
        """Give a session's window.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """

        def work(cursor: _Cursor) -> tuple[Kept, ...]:
            raw = _raw(cursor, key.digest)
            try:
                return record.decode_of(key, raw).exchanges if raw is not None else ()
            except record.DamagedRecordError:  # look again, with nobody else at it
                _lock(cursor, key.digest)
                return _read(cursor, key).exchanges

        return self._run(work)

    def forget(self, key: SessionKey) -> None:
        """Remove a session's window.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """

        def work(cursor: _Cursor) -> None:
            _lock(cursor, key.digest)
            cursor.execute(_REMOVE, (key.digest,))
            _put_notes(cursor, key.digest, record.FORGOTTEN_SESSION)

        self._run(work)

    def purge(self, scope: Scope, forgotten_of: ForgottenOf) -> int:
        """Remove a scope's exchanges that were forgotten.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """
        digest = scope_digest(scope)
        rows: list[Any] = self._run(
            lambda cursor: cursor.execute(
                "SELECT session FROM turnstream_windows WHERE scope = %s", (digest,)
            ).fetchall()
        )
        purged = (partial(_purge, session=bytes(row[0]), forgotten_of=forgotten_of) for row in rows)
        return sum(map(self._run, purged))

    def close(self) -> None:
        """Close the connections."""
        while connection := self._take():
            connection.close()

    def _run(self, work: Callable[[_Cursor], T]) -> T:
        """Do some work in one transaction; anew where an idle connection has died meanwhile."""
        while True:
            idle = self._take()
            with ExitStack() as closing:
                try:
                    connection = idle or self._connected()
                    closing.callback(connection.close)
                    with connection.transaction(), connection.cursor() as cursor:
                        done = work(cursor)
                except psycopg.Error as error:
                    if idle is None or not idle.broken:
                        raise _ours(error, self._address) from error
                    continue
                closing.pop_all()
            self._give_back(connection)
            return done

    def _connected(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=self._timeout_s,
            prepare_threshold=None,  # a pooler may give each transaction another server process
            application_name="turnstream",
        )
        with ExitStack() as closing:
            closing.callback(connection.close)
            connection.execute(f"SET statement_timeout = {1_000 * self._timeout_s}".encode())
            if not self._is_ready:
                _make_schema(connection)
                self._is_ready = True
            closing.pop_all()
        return connection

    def _take(self) -> psycopg.Connection[Any] | None:
        if self._pid != os.getpid():  # a child of a fork: the connections are the parent's
            self._inherited += self._idle
            self._pid, self._lock, self._idle = os.getpid(), threading.Lock(), []
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def _make_schema(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        row = connection.execute("SELECT to_regclass('turnstream_windows')").fetchone()
        if row is not None and row[0] is not None:  # who may not make tables may still use them
            return
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        connection.execute(_SCHEMA)


def _lock(cursor: _Cursor, session: bytes) -> None:
    first, second = (int.from_bytes(session[at : at + 4], signed=True) for at in (0, 4))
    cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", (first, second))


def _raw(cursor: _Cursor, session: bytes) -> bytes | None:
    row: Any = cursor.execute("SELECT record FROM turnstream_windows WHERE session = %s", (session,)).fetchone()
    return None if row is None or row[0] is None else bytes(row[0])


def _read(cursor: _Cursor, key: SessionKey) -> record.Record:
    """Read a session's record under its lock; what cannot be read is set aside."""
    raw = _raw(cursor, key.digest)
    if raw is None:
        return record.Record()
    try:
        return record.decode_of(key, raw)
    except record.DamagedRecordError as error:
        cursor.execute(
            "UPDATE turnstream_windows SET set_aside = record, record = NULL WHERE session = %s", (key.digest,)
        )
        record.note_set_aside("postgres", str(error))
        return record.Record()


def _notes(cursor: _Cursor, session: bytes) -> Tombstones:
    return record.decode_notes(_raw(cursor, session + _NOTES), "postgres")


def _put_notes(cursor: _Cursor, session: bytes, notes: Tombstones) -> None:
    cursor.execute(_PUT, (session + _NOTES, b"", record.encode_notes(notes)))
    cursor.execute(_EXPIRE_FORGOTTEN, (record.FORGOTTEN_FOR_MS,))


def _purge(cursor: _Cursor, session: bytes, forgotten_of: ForgottenOf) -> int:
    _lock(cursor, session)
    raw = _raw(cursor, session)
    try:
        before = record.decode(raw) if raw is not None else record.Record()
    except record.DamagedRecordError:  # nothing can be forgotten within it
        cursor.execute(_REMOVE, (session,))
        return 1
    noted = _notes(cursor, session)
    after, notes = record.purged(before, noted, forgotten_of)
    if after.exchanges:
        cursor.execute(
            "UPDATE turnstream_windows SET record = %s, set_aside = NULL WHERE session = %s",
            (record.encode(after), session),
        )
    else:
        cursor.execute(_REMOVE, (session,))
    if notes != noted:
        _put_notes(cursor, session, notes)
    return len(before.exchanges) - len(after.exchanges)


_REFUSED: Final = (
    pg_errors.InsufficientPrivilege,
    pg_errors.UndefinedTable,
    pg_errors.UndefinedColumn,
    pg_errors.InvalidCatalogName,
    pg_errors.InvalidAuthorizationSpecification,
    pg_errors.InvalidPassword,
)


_REFUSAL: Final = re.compile(
    r"FATAL: .*(?:authentication|role|database .* does not exist|pg_hba)|no password|invalid "
    r"|certificate verify failed|root certificate file|does not support SSL"
)
"""What is said while connecting carries no code. A server that starts, stops or is full answers FATAL as well."""
_STOPPED: Final = ("08", "57P")
"""Classes of codes: the connection broke, or the server ended it."""


def _ours(error: psycopg.Error, server: str) -> TurnstreamError:
    """Give our error for one of the library's; only what is said of connecting is sure to hold no text of a user."""
    code = error.sqlstate or ""
    if isinstance(error, _REFUSED):
        return ConfigError(
            f"{server} refused: {type(error).__name__} ({code}); see to it that the user of {_SETTING} may"
            " use the table turnstream_windows, or make it"
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not code:
        first_line = str(error).partition("\n")[0]
        if _REFUSAL.search(first_line):
            return ConfigError(f"{server} refused ({first_line}); correct {_SETTING}")
        return ServerUnreachableError(f"{server} does not answer ({first_line}); start it, or correct {_SETTING}")
    if code.startswith(_STOPPED):
        return ServerUnreachableError(f"{server} was stopped ({type(error).__name__}); start it, and try again")
    return TransientError(f"{server} cannot serve now: {type(error).__name__} ({code}); see its log, and try again")
