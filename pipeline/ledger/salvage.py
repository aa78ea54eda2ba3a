"""Saving what can be read of a ledger that cannot be opened, or whose rows are damaged: into a new one in its place.

The damaged files stay beside it as ``ledger.sqlite.damaged-<epoch ms>`` (and ``-wal``). A kill at any point leaves
the old ledger in place or the new one, and at worst copies and drafts beside them. At one point the old one stands
without its WAL, which the copy beside it has: `undo_half_done` puts it back.

Only the turns and what tells whether they were seen, forgotten or closed are copied; the rest is made again from
them. Nobody else may have the ledger open: who had, would go on writing to the file set aside.
Who comes meanwhile waits, and then finds that the file it opened is another now (`connection.connect`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from pipeline import database
from pipeline.errors import ShardError, TransientError
from pipeline.ledger.connection import adopt, closed_on_error, connect, create, translated
from pipeline.ledger.repair import note_forgettings
from pipeline.ledger.schema import DDL
from pipeline.records import Scope

_SHARED_LOCK_AT, _SHARED_LOCK_BYTES = 0x4000_0002, 510
"""Where every process that has a database open holds a lock. Source: sqlite.org/lockingv3.html and os_unix.c."""
_READ_ERRORS: Final = (apsw.Error, UnicodeDecodeError)
_MOST_LOOKUPS: Final = 1_000_000
"""Of ids one by one, where a scan cannot go on: a broken page has some ten, a broken counter has no end."""
_NO_TURNS: Final = (
    "DELETE FROM turns WHERE typeof(session_id) <> 'text' OR typeof(turn_id) <> 'text' OR typeof(event_id) <> 'text'"
    " OR typeof(role) <> 'text' OR typeof(content) <> 'text' OR typeof(timestamp_ms) <> 'integer'"
    " OR typeof(first_ms) <> 'integer' OR typeof(turn_index) <> 'integer' OR typeof(revision) <> 'integer'"
    " OR NOT json_valid(tags) OR NOT json_valid(metadata) OR NOT json_valid(ifnull(mood, 'null'))"
)
"""Rows that could be read and are none: SQLite keeps no checksums."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What became of a damaged ledger."""

    aside: Path
    n_turns: int
    n_unreadable: int
    """Places where a turn was, or may have been, that could not be read."""


def salvage(path: Path, scope: Scope, *, now_ms: int) -> Salvaged:
    """Put a new ledger with every readable turn in the place of a damaged one; durable on return.

    Raises:
        TransientError: another process has the ledger open, or the disk is full.
        ShardError: the folder refuses it.
    """
    workshop = path.with_name(f".{path.name}.{secrets.token_hex(8)}.salvage")
    aside = path.with_name(f"{path.name}.damaged-{now_ms}")
    with translated(path), alone(path):
        try:
            workshop.mkdir(mode=0o700)
            damaged, new = workshop / "damaged.sqlite", workshop / path.name
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{path}{suffix}", f"{damaged}{suffix}")
            n_turns, n_unreadable = _copy(damaged, new, scope, now_ms)
            _put_in_place(new, path, aside)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
    return Salvaged(aside, n_turns, n_unreadable)


def half_done(path: Path) -> Path | None:
    """Give the copy that a killed `salvage` set aside without replacing the ledger; None when there is none."""
    for aside in path.parent.glob(f"{path.name}.damaged-*[0-9]"):
        if path.exists() and aside.samefile(path):
            return aside
    return None


def undo_half_done(path: Path) -> bool:
    """Have a ledger as it was before a `salvage` that was killed at its end; tells whether there was anything to do.

    A WAL that has been written since stays: then the ledger was in use again without the old one.

    Raises:
        TransientError: another process has the ledger open, or the disk is full.
        ShardError: the folder refuses it.
    """
    aside = half_done(path)
    if aside is None:
        return False
    wal, kept = Path(f"{path}-wal"), Path(f"{aside}-wal")
    with translated(path), alone(path):
        if kept.exists() and not (wal.exists() and wal.stat().st_size):
            draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
            shutil.copy(kept, draft)
            _sync(draft)
            draft.replace(wal)
            Path(f"{path}-shm").unlink(missing_ok=True)
            _sync(path.parent)
        kept.unlink(missing_ok=True)
        aside.unlink()
    return True


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a database's file as long as no other process has it open; whoever opens it waits for the end.

    Raises:
        TransientError: one has.

    Why a lock of the open file and not of the process: that one would end as soon as the process closes the same file
    once more, as copying it does. SQLite's locks and these see each other.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _SHARED_LOCK_AT, _SHARED_LOCK_BYTES, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except (BlockingIOError, PermissionError) as error:
            raise TransientError(
                f"{path} is damaged, and open in another process; end 'turnstream up' and whoever asks the memory,"
                " then run 'turnstream doctor --repair' again"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _put_in_place(new: Path, path: Path, aside: Path) -> None:
    os.link(path, aside)
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists():
        os.link(wal, f"{aside}-wal")
        _sync(path.parent)  # where `undo_half_done` finds it
        wal.unlink()  # it would be applied to the new file
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    new.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(damaged: Path, new: Path, scope: Scope, now_ms: int) -> tuple[int, int]:
    """Fill a new ledger from a damaged one; gives turns copied, and places that could not be read."""
    create(new)
    with closing(connect(new)) as target:
        adopt(target, new, scope)
        n_turns = n_unreadable = 0
        if (source := _open(damaged, scope)) is not None:
            with closing(source):
                target.execute("BEGIN IMMEDIATE")
                n_turns, n_unreadable = _copy_rows(source, target, now_ms)
                target.execute("COMMIT")
        target.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    _sync(new)
    return n_turns, n_unreadable


def _open(damaged: Path, scope: Scope) -> apsw.Connection | None:
    """Open what is left, if need be under an empty ledger's first page: all of one release are laid out alike."""
    for mend_first_page in (False, True):
        if mend_first_page:
            _mend_first_page(damaged)
        with suppress(*_READ_ERRORS, ShardError):
            connection = connect(damaged, query_only=True)
            with closed_on_error(connection):
                found = connection.execute("SELECT value FROM meta WHERE key = 'scope'").fetchone()
                connection.execute("SELECT 1 FROM turns LIMIT 0").fetchall()
            if found is None or found[0] == scope.key:
                return connection
            connection.close()
    return None


def _mend_first_page(damaged: Path) -> None:
    pattern = damaged.with_name("pattern.sqlite")
    database.create(pattern, DDL)
    image = pattern.read_bytes()
    page_bytes = int.from_bytes(image[16:18], "big") or 1
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    n_pages = damaged.stat().st_size // page_bytes
    page = bytearray(image[:page_bytes])
    page[28:32] = n_pages.to_bytes(4, "big")
    page[92:96] = page[24:28]  # the size is valid for this change counter
    page[32:40] = bytes(8)  # the list of free pages is not known
    with damaged.open("r+b") as file:
        file.write(page)


def _copy_rows(source: apsw.Connection, target: apsw.Connection, now_ms: int) -> tuple[int, int]:
    for table in ("meta", "events", "tombstones", "vacated", "forgettings", "sessions"):
        for row in _from_both_ends(source, table):
            _insert(target, table, row)
    _copy_by_id(source, target, "summaries", "summary_id")
    n_unreadable = _copy_by_id(source, target, "turns", "turn_offset")
    target.execute(_NO_TURNS)
    n_unreadable += target.changes()
    note_forgettings(target, now_ms)
    target.execute("UPDATE turns SET state = 0, attempts = 0, claimed_by = NULL WHERE state IN (1, 2)")
    for table in ("turns", "traces", "summaries", "cards", "word_segments", "word_gaps"):
        _go_on_counting(source, target, table)
    counted: Any = target.execute("SELECT count(*) FROM turns").fetchone()
    return int(counted[0]), n_unreadable


def _copy_by_id(source: apsw.Connection, target: apsw.Connection, table: str, key: str) -> int:
    """Copy what can be read of a table; gives the places that could not."""
    n_unreadable = 0
    for row in _one_by_one(source, table, key):
        n_unreadable += row if isinstance(row, int) else not _insert(target, table, row)
    return n_unreadable


def _from_both_ends(source: apsw.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows from the first on until one cannot be read, then from the last on backwards; some come twice."""
    for direction in ("ASC", "DESC"):  # by the first column, which the primary key begins with
        with suppress(*_READ_ERRORS):
            yield from source.execute(f"SELECT * FROM {table} ORDER BY 1 {direction}")
            return


def _one_by_one(source: apsw.Connection, table: str, key: str) -> Iterator[tuple[Any, ...] | int]:
    """Yield rows in the order of their ids; where a scan stops, each id by itself. A number: so many were not read.

    When that has taken too many look-ups, the rest is read from the last row backwards, as far as it goes.
    """
    after, last = 0, _last_id(source, table, key)
    for _ in range(_MOST_LOOKUPS):
        try:
            for row in source.execute(f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key}", (after,)):
                after = int(str(row[0]))
                yield row
        except _READ_ERRORS:
            after += 1
            yield from _row_at(source, table, key, after)
        else:
            return
        if after >= last:
            return
    with suppress(*_READ_ERRORS):
        for row in source.execute(f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key} DESC", (after,)):
            last = int(str(row[0])) - 1
            yield row
    yield max(0, last - after)


def _row_at(source: apsw.Connection, table: str, key: str, row_id: int) -> Iterator[tuple[Any, ...] | int]:
    try:
        yield from source.execute(f"SELECT * FROM {table} WHERE {key} = ?", (row_id,)).fetchall()
    except _READ_ERRORS:
        yield 1


def _last_id(source: apsw.Connection, table: str, key: str) -> int:
    """Find the greatest id there may be, by whatever still tells."""
    found = [0]
    for query in (
        f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
        f"SELECT max({key}) FROM {table}",
        f"SELECT max({key}) FROM (SELECT {key} FROM {table} ORDER BY session_id)",  # read from an index alone
    ):
        with suppress(*_READ_ERRORS):
            found += [row[0] for row in source.execute(query) if isinstance(row[0], int)]
    return max(found)


def _go_on_counting(source: apsw.Connection, target: apsw.Connection, table: str) -> None:
    """Have ids go on above the last one given out, so that none means two things."""
    with suppress(*_READ_ERRORS):
        row: Any = source.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        if row is not None and isinstance(row[0], int):
            known: Any = target.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
            target.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            target.execute(
                "INSERT INTO sqlite_sequence VALUES (?, ?)", (table, max(row[0], known[0] if known else 0))
            )


def _insert(target: apsw.Connection, table: str, row: tuple[Any, ...]) -> bool:
    """Insert a row unless it is there, or is none; tells whether it was."""
    target.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    return target.changes() > 0
