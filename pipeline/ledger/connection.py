"""Opening a ledger: which SQLite is safe, and what its errors mean to us.

Why: SQLite 3.7.0 to 3.51.2 can corrupt a database when two connections reset the WAL at once, so an older library is
refused; apsw bundles a newer one. Source: sqlite.org/wal.html, "The WAL Reset Bug".
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw

from pipeline import database
from pipeline.errors import LedgerBusyError, ShardError, TransientError
from pipeline.ledger.schema import ADDITIONS, DDL, FORMAT
from pipeline.records import Scope

_FIRST_SAFE_SQLITE: Final = 3_051_003
_MMAP_BYTES: Final = 256 << 20
_ENTRIES: Final = apsw.SQLITE_OPEN_READWRITE  # never SQLITE_OPEN_CREATE: a read must not make a file


def connect(path: Path, *, busy_timeout_ms: int = 30_000, query_only: bool = False) -> apsw.Connection:
    """Open an existing ledger.

    A reader (``query_only``) still opens read-write: WAL readers share memory with writers. It cannot change rows.

    Raises:
        ShardError: the file is missing, no database, damaged, or the SQLite library is one that loses data.
        TransientError: another process holds it, or has just replaced it.
    """
    _require_safe_library()
    with translated(path):
        identity = _identity(path)
        connection = apsw.Connection(str(path), flags=_ENTRIES)
        with closed_on_error(connection):
            connection.set_busy_timeout(busy_timeout_ms)
            # A checkpoint at close costs two fsyncs for each of thousands of ledgers; the next opener reads the WAL.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.pragma("mmap_size", _MMAP_BYTES)
            connection.pragma("schema_version")  # the first to wait for a lock: from here on nobody replaces the file
            _require_same_file(path, identity)
            if query_only:
                connection.pragma("query_only", 1)
            else:
                connection.pragma("secure_delete", 1)
                connection.pragma("synchronous", "normal")
        return connection


@contextmanager
def closed_on_error(connection: apsw.Connection) -> Iterator[None]:
    """Close a connection that the block cannot make use of; any other stays open."""
    with ExitStack() as closing:
        closing.callback(connection.close)
        yield
        closing.pop_all()


def _require_same_file(path: Path, identity: tuple[int, int] | None) -> None:
    if _identity(path) != identity:
        raise TransientError(f"{path} was replaced while it was opened; retry")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:  # opening it says why
        return None
    return status.st_dev, status.st_ino


def create(path: Path) -> None:
    """Make an empty ledger unless there is one; whoever opens it first writes the scope into it.

    Its content is on disk on return, its folder's entry once `flush` has returned.

    Raises:
        ShardError: the folder refuses it.
        TransientError: the disk is full.
    """
    with translated(path):
        database.create(path, DDL)


def read_meta(connection: apsw.Connection) -> dict[str, str]:
    """Read the facts about the file: scope, format, and the embedding model once there is one."""
    return dict(connection.execute("SELECT key, value FROM meta"))


def require_scope(connection: apsw.Connection, path: Path, scope: Scope) -> None:
    """Check that the file is this scope's and of a format this release reads.

    Raises:
        ShardError: it is not.
    """
    with translated(path):
        meta = read_meta(connection)
    if meta:  # else it was made a moment ago, and is empty: whoever made it is about to write the scope
        _require_same(meta, path, scope)


def unusable(meta: dict[str, str], path: Path, *, is_at_home: bool) -> str | None:
    """Say why a ledger with these facts is not to be used where it is, and what to do; None when it is."""
    if meta.get("format") != str(FORMAT):
        return (
            f"{path} has format {meta.get('format')}, this release reads {FORMAT}; run the release that wrote it, or"
            " move its folder away and backfill the scope"
        )
    if not is_at_home:
        return (
            f"{path} belongs to another scope; was a folder moved by hand? Move it back, or restore it from a backup"
        )
    return None


def _require_same(meta: dict[str, str], path: Path, scope: Scope) -> None:
    if problem := unusable(meta, path, is_at_home=meta.get("scope") == scope.key):
        raise ShardError(problem)


def adopt(connection: apsw.Connection, path: Path, scope: Scope) -> None:
    """Write the scope into a ledger that was just made, and check one that was not.

    Raises:
        ShardError: it is another scope's.
    """
    with translated(path):
        meta = read_meta(connection)
        if not meta:
            connection.execute(
                "INSERT OR IGNORE INTO meta VALUES ('scope', ?), ('format', ?)", (scope.key, str(FORMAT))
            )
            meta = read_meta(connection)
    _require_same(meta, path, scope)
    with translated(path):
        connection.execute(ADDITIONS)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's and the disk's errors into ours.

    Raises:
        LedgerBusyError: locked.
        TransientError: the disk is full: retry when there is room.
        ShardError: damaged, unreadable or no database.
    """
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise LedgerBusyError(f"{path} is locked by another process; retry") from error
    except apsw.FullError as error:
        raise TransientError(f"no space left for {path}; free some, work goes on by itself") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise ShardError(f"{path} is damaged ({error}); restore it from a backup") from error
    except apsw.SQLError as error:  # our statements are right: it is the file that is not what they were written for
        raise ShardError(f"{path} is no ledger of this release ({error}); restore it from a backup") from error
    except (apsw.CantOpenError, apsw.IOError, apsw.PermissionsError, apsw.ReadOnlyError) as error:
        raise ShardError(
            f"{path} cannot be opened or read ({error}); check that it exists and who owns it"
        ) from error
    except UnicodeDecodeError as error:  # SQLite keeps no checksums: a byte of a text was changed on the disk
        raise ShardError(f"{path} holds a text that is none; restore it from a backup") from error
    except OSError as error:
        raise TransientError(f"{error.filename or path}: {error.strerror}; retry once that is mended") from error


def _require_safe_library() -> None:
    version = apsw.sqlitelibversion()
    number = functools.reduce(lambda total, part: total * 1000 + int(part), version.split(".")[:3], 0)
    if number < _FIRST_SAFE_SQLITE:
        raise ShardError(f"SQLite {version} can corrupt ledgers (WAL reset); install apsw >= 3.51.3")
