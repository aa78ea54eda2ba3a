"""Which shards have work: one small SQLite file per data folder, ``registry.sqlite``.

It answers "is everything searchable?" and "who must be rung again?" without opening thousands of ledgers. The
ingester marks a scope after its ledger commit and before the acknowledgement: a kill between them repeats the mark.
A worker reads the mark, then the ledger, and settles only the mark it read: a commit in between leaves it marked.

Everything here but the running totals is derived. When the file is missing or damaged, `turnstream up` makes a new
one, filled from the shards, and sets a damaged one aside; other processes refuse a damaged one.
"""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import apsw

from pipeline import database
from pipeline.errors import ShardError, TransientError

FILE = "registry.sqlite"
_TOKENS_IN, _TOKENS_OUT = "summary_tokens_in", "summary_tokens_out"


@dataclass(frozen=True, slots=True)
class Counts:
    """What one shard, or all of them, held when last settled."""

    turns: int = 0
    searchable: int = 0
    skipped: int = 0
    pending: int = 0
    quarantined: int = 0
    traces: int = 0
    sessions: int = 0
    summarised: int = 0
    unsummarised: int = 0
    closed_unsummarised: int = 0
    summary_failed: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many shards wait for what, and since when the longest does, in epoch milliseconds; None: none does.

    Args:
        scopes: all shards known.
        undone: shards with work known and not done.
        refused: shards that a worker could not work on, and an operator must look at.
        unsummarised_since_ms: a closed session waits for its summary, whether or not one was tried.
        snapshots: shards that have outgrown their snapshot.
        purges: shards that hold bytes of what was forgotten.
    """

    scopes: int
    undone: int
    undone_since_ms: int | None
    refused: int
    unsummarised: int
    unsummarised_since_ms: int | None
    snapshots: int
    snapshot_since_ms: int | None
    purges: int
    purge_since_ms: int | None


@dataclass(frozen=True, slots=True)
class Worst:
    """The shard that waits longest, and why it was refused, if it was."""

    scope: str
    since_ms: int
    refusal: str | None


_NAMES = tuple(f.name for f in fields(Counts))
_values = operator.attrgetter(*_NAMES)
_ADDED = {
    "retry_ms": "INTEGER NOT NULL DEFAULT 0",
    "refusals": "INTEGER NOT NULL DEFAULT 0",
    "refusal": "TEXT",
    "unsummarised_since_ms": "INTEGER",
    "snapshot_since_ms": "INTEGER",
    "purge_since_ms": "INTEGER",
    "publish_ms": "INTEGER NOT NULL DEFAULT 0",
    "publish_tries": "INTEGER NOT NULL DEFAULT 0",
    **dict.fromkeys(_NAMES, "INTEGER NOT NULL DEFAULT 0"),
}
"""Columns that a file of an earlier release may lack."""
_DDL = f"""
CREATE TABLE shards (
  scope TEXT PRIMARY KEY, mark INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0,
  marked_ms INTEGER NOT NULL, rung_ms INTEGER NOT NULL DEFAULT 0, due_ms INTEGER,
  {", ".join(f"{name} {kind}" for name, kind in _ADDED.items())}
) WITHOUT ROWID;
CREATE INDEX shards_marked ON shards (marked_ms) WHERE mark > settled;
CREATE INDEX shards_due ON shards (due_ms) WHERE due_ms IS NOT NULL;
CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_SETTLE = (
    f"UPDATE shards SET settled = min(mark, ?), due_ms = ?, {', '.join(f'{name} = ?' for name in _NAMES)},"
    " refusals = 0, refusal = NULL, retry_ms = 0"
    " WHERE scope = ? AND settled <= ?"  # a slower worker, who saw less, comes too late
)
_FIRST_RETRY_MS, _DOUBLINGS = 2_000, 5
"""A shard that was refused is tried again after 2 s, at last every minute: somebody may have mended it."""
_REFUSE = (
    f"UPDATE shards SET retry_ms = ? + ({_FIRST_RETRY_MS} << min(refusals, {_DOUBLINGS})),"
    " refusals = refusals + 1, refusal = ? WHERE scope = ? AND retry_ms <= ?"
)
_NOTE_WAITING = (
    "UPDATE shards SET unsummarised_since_ms = ?, purge_since_ms = min(?, ifnull(purge_since_ms, ?)),"
    " snapshot_since_ms = CASE WHEN ?4 THEN ifnull(snapshot_since_ms, ?5) END,"
    " publish_tries = CASE WHEN ?4 THEN publish_tries ELSE 0 END WHERE scope = ?6"
)
_TO_PUBLISH = "(snapshot_since_ms IS NOT NULL OR purge_since_ms IS NOT NULL)"
_WAIT_MS = "min(60000, 1000 << min(publish_tries + ?, 6))"
"""A snapshot or purge that did not come of a doorbell is rung for again after 2 s, at last every minute."""
_TAKE = (
    f"UPDATE shards SET publish_ms = ? + {_WAIT_MS}, publish_tries = publish_tries + 1 WHERE scope IN"
    f" (SELECT scope FROM shards WHERE {_TO_PUBLISH} AND publish_ms <= ? AND retry_ms <= ?"
    " AND (?5 IS NULL OR scope IN (SELECT value FROM json_each(?5)))"
    " ORDER BY ifnull(purge_since_ms, snapshot_since_ms), scope LIMIT ?6) RETURNING scope"
)
_PUT_OFF = f"UPDATE shards SET publish_ms = ? + max(?, iif({_TO_PUBLISH}, {_WAIT_MS}, 0)) WHERE scope = ?"
_WAITING = (
    "SELECT count(*), ifnull(sum(mark > settled), 0), min(CASE WHEN mark > settled THEN marked_ms END),"
    " count(refusal), count(unsummarised_since_ms), min(unsummarised_since_ms),"
    " count(snapshot_since_ms), min(snapshot_since_ms), count(purge_since_ms), min(purge_since_ms) FROM shards"
)
_SINCE = {
    "undone": ("marked_ms", "mark > settled"),
    "refused": ("marked_ms", "refusal IS NOT NULL"),
    "unsummarised": ("unsummarised_since_ms", "unsummarised_since_ms IS NOT NULL"),
    "snapshots": ("snapshot_since_ms", "snapshot_since_ms IS NOT NULL"),
    "purges": ("purge_since_ms", "purge_since_ms IS NOT NULL"),
}
_UNDONE = "(mark > settled OR purge_since_ms IS NOT NULL)"
_SUM = f"SELECT {', '.join(f'ifnull(sum({name}), 0)' for name in _NAMES)} FROM shards"


class Registry:
    """The registry of one data folder; safe to share between threads.

    Args:
        data_dir: the data folder.
        busy_timeout_ms: longest wait for another writer.
        create: make the file when there is none; False: leave the folder alone and know of no scope.
    """

    WAITS: Final = ("undone", "refused", "unsummarised", "snapshots", "purges")
    """What a scope can wait for, as `Waiting` counts it and `worst` knows it."""

    def __init__(self, data_dir: Path, *, busy_timeout_ms: int = 30_000, create: bool = True) -> None:
        self.path = data_dir / FILE
        self._lock = threading.Lock()
        self._db = _open(self.path, busy_timeout_ms, create=create)

    def mark(self, scopes: Iterable[str], *, now_ms: int) -> None:
        """Note that these scopes have new work."""
        self._many(
            "INSERT INTO shards (scope, mark, marked_ms) VALUES (?, 1, ?) ON CONFLICT (scope) DO UPDATE SET"
            " mark = mark + 1, marked_ms = CASE WHEN mark > settled THEN marked_ms ELSE excluded.marked_ms END",
            [(scope, now_ms) for scope in scopes],
        )

    def marks(self, scopes: Sequence[str], *, now_ms: int, settled_too: bool = False) -> dict[str, int]:
        """Read the marks of those scopes that have work known or due, to be settled once their ledgers are done.

        A scope whose work another doorbell has seen to already is among them only if ``settled_too``; one that was
        refused lately never is.
        """
        rows = self._rows(
            "SELECT scope, mark FROM shards WHERE scope IN (SELECT value FROM json_each(?))"
            " AND (mark > settled OR due_ms <= ? OR ?) AND retry_ms <= ?",
            (json.dumps(scopes), now_ms, settled_too, now_ms),
        )
        return dict(rows)

    def settle(
        self,
        settled: Iterable[tuple[str, int, int | None, Counts]],
        waiting: Iterable[tuple[str, int | None, int | None, bool]] = (),
        *,
        now_ms: int = 0,
    ) -> None:
        """Note what is done and what waits, in one transaction.

        Args:
            settled: (scope, mark, due_ms, counts): all work known at that mark is done until ``due_ms``.
            waiting: (scope, since when a closed session waits, since when a purge, whether it is to be published).
            now_ms: since when a snapshot waits that did not before.
        """
        done = [(mark, due_ms, *_values(counts), scope, mark) for scope, mark, due_ms, counts in settled]
        left = [(session_ms, purge_ms, purge_ms, due, now_ms, scope) for scope, session_ms, purge_ms, due in waiting]
        self._change((_SETTLE, done), (_NOTE_WAITING, left))

    def take_publishable(
        self, scopes: Sequence[str] | None = None, *, now_ms: int, due_by_ms: int | None = None, limit: int = -1
    ) -> list[str]:
        """Give scopes (of these, or of all) whose snapshot or purge waits, to be rung for; not again for a while.

        Those that might have been rung for at ``due_by_ms`` already; None: now.
        """
        asked = None if scopes is None else json.dumps(scopes)
        rows = self._rows(_TAKE, (now_ms, 1, now_ms if due_by_ms is None else due_by_ms, now_ms, asked, limit))
        return [row[0] for row in rows]

    def note_published(self, scopes: Iterable[str]) -> None:
        """Note that these scopes have the snapshot they waited for."""
        self._many("UPDATE shards SET snapshot_since_ms = NULL WHERE scope = ?", [(scope,) for scope in scopes])

    def put_off_publishing(self, rests: Mapping[str, int], *, now_ms: int) -> None:
        """Leave scopes that were published alone for so many milliseconds, and longer if something still waits."""
        self._many(_PUT_OFF, [(now_ms, rest_ms, 0, scope) for scope, rest_ms in rests.items()])

    def note_refusal(self, scope: str, reason: str, *, now_ms: int) -> bool:
        """Put a scope off that cannot be worked on, for longer each time; tells whether the reason is new."""
        before = self._rows("SELECT refusal FROM shards WHERE scope = ?", (scope,))
        self._many(_REFUSE, [(now_ms, reason, scope, now_ms)])
        return before != [(reason,)]

    def end_refusals(self, scopes: Iterable[str]) -> None:
        """Note that whatever these scopes were refused for has been mended: the next doorbell may try."""
        self._many(
            "UPDATE shards SET refusals = 0, refusal = NULL, retry_ms = 0 WHERE scope = ?",
            [(scope,) for scope in scopes],
        )

    def waiting(self) -> Waiting:
        """Count what waits, in one look at all shards."""
        return Waiting(*self._rows(_WAITING, ())[0])

    def worst(self, what: str) -> Worst | None:
        """Give the scope that has waited longest for one of `WAITS`; None when none waits."""
        since, condition = _SINCE[what]
        rows = self._rows(
            f"SELECT scope, {since}, refusal FROM shards WHERE {condition} ORDER BY {since}, scope LIMIT 1", ()
        )
        return Worst(*rows[0]) if rows else None

    def undone(self, *, now_ms: int, rung_before_ms: int, limit: int) -> list[str]:
        """List scopes with work known that were not rung since ``rung_before_ms``, longest waiting first."""
        rows = self._rows(
            "SELECT scope FROM shards WHERE mark > settled AND rung_ms < ? AND retry_ms <= ?"
            " ORDER BY marked_ms, scope LIMIT ?",
            (rung_before_ms, now_ms, limit),
        )
        return [row[0] for row in rows]

    def due(self, *, now_ms: int, rung_before_ms: int, limit: int) -> list[str]:
        """List scopes, done otherwise, in which something falls due by time, longest due first."""
        rows = self._rows(
            "SELECT scope FROM shards WHERE due_ms <= ? AND mark <= settled AND rung_ms < ? AND retry_ms <= ?"
            " ORDER BY due_ms, scope LIMIT ?",
            (now_ms, rung_before_ms, now_ms, limit),
        )
        return [row[0] for row in rows]

    def note_rung(self, scopes: Iterable[str], *, now_ms: int) -> None:
        """Note that these scopes' doorbells were rung."""
        self._many("UPDATE shards SET rung_ms = ? WHERE scope = ?", [(now_ms, scope) for scope in scopes])

    def n_undone(self) -> int:
        """Count the scopes with work known and not done, or something to purge."""
        return int(self._rows(f"SELECT count(*) FROM shards WHERE {_UNDONE}", ())[0][0])

    def scopes(self) -> list[str]:
        """List the keys of all scopes known."""
        return [row[0] for row in self._rows("SELECT scope FROM shards ORDER BY scope", ())]

    def known(self) -> dict[str, tuple[bool, int | None]]:
        """Tell of each scope known whether it has work, and when (epoch ms) something falls due in it."""
        rows = self._rows(f"SELECT scope, {_UNDONE}, due_ms FROM shards", ())
        return {scope: (bool(has_work), due_ms) for scope, has_work, due_ms in rows}

    def problems(self) -> list[str]:
        """Have SQLite compare every page and index; [] when all is whole."""
        found = [str(row[0]) for row in self._rows("PRAGMA integrity_check(5)", ())]
        return [] if found == ["ok"] else found

    def counts(self) -> Counts:
        """Sum what all shards held when last settled."""
        return Counts(*self._rows(_SUM, ())[0])

    def add_totals(self, outcomes: dict[str, int]) -> None:
        """Add to running totals, such as events by outcome."""
        self._many(
            "INSERT INTO totals VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            sorted(outcomes.items()),
        )

    def totals(self) -> dict[str, int]:
        """Read the running totals of events by outcome."""
        rows = self._rows("SELECT name, value FROM totals ORDER BY name", ())
        return {name: value for name, value in rows if name not in {_TOKENS_IN, _TOKENS_OUT}}

    def tokens(self) -> tuple[int, int]:
        """Read how many tokens summaries have cost so far: given to the model, and answered."""
        totals = dict(self._rows("SELECT name, value FROM totals", ()))
        return totals.get(_TOKENS_IN, 0), totals.get(_TOKENS_OUT, 0)

    def add_tokens(self, tokens_in: int, tokens_out: int) -> None:
        """Add what one answer of a summary model cost; what came from the cache cost nothing."""
        self.add_totals({_TOKENS_IN: tokens_in, _TOKENS_OUT: tokens_out})

    def fact(self, name: str) -> str | None:
        """Read a fact noted about the data folder."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", (name,))
        return None if not rows else str(rows[0][0])

    def note_fact(self, name: str, value: str) -> None:
        """Note a fact about the data folder."""
        self._many("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(name, value)])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except apsw.Error as error:
                raise _translated(error, self.path) from error

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._change((statement, rows))

    def _change(self, *changes: tuple[str, Sequence[tuple[Any, ...]]]) -> None:
        if not any(rows for _, rows in changes):
            return
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")  # all changes or none
                try:
                    for statement, rows in changes:
                        self._db.executemany(statement, rows)
                    self._db.execute("COMMIT")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
            except apsw.Error as error:
                raise _translated(error, self.path) from error


def _open(path: Path, busy_timeout_ms: int, *, create: bool) -> apsw.Connection:
    try:
        if create and not path.exists():
            database.create(path, _DDL)
        if not path.exists():
            nothing = apsw.Connection(":memory:")
            nothing.execute(_DDL)
            return nothing
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(busy_timeout_ms)
            connection.pragma("synchronous", "normal")
            connection.execute("SELECT 1 FROM shards LIMIT 1").fetchall()
            if create:
                _add_columns(connection)
        except apsw.Error:
            connection.close()
            raise
    except (apsw.Error, OSError) as error:
        raise _translated(error, path) from error
    return connection


def _add_columns(connection: apsw.Connection) -> None:
    """Bring a file of an earlier release up to date."""
    if not _missing(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # somebody else may be at it
    for name in _missing(connection):
        connection.execute(f"ALTER TABLE shards ADD COLUMN {name} {_ADDED[name]}")
    connection.execute("COMMIT")


def _missing(connection: apsw.Connection) -> list[str]:
    present = {str(row[1]) for row in connection.execute("PRAGMA table_info(shards)")}
    return [name for name in _ADDED if name not in present]


def _translated(error: apsw.Error | OSError, path: Path) -> ShardError | TransientError:
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.FullError):
        return TransientError(f"{path}: {error}; retry")
    return ShardError(
        f"{path}: {error}; it holds nothing that cannot be rebuilt: remove it and start 'turnstream up'"
    )
