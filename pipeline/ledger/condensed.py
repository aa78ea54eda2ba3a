"""What is made of turns to say much in little: facts that a user stated, and summaries of groups of exchanges.

Both go in the transaction that removes a turn they are from. Neither is needed: a reader makes what is missing.

A fact belongs to its turn, and ``facts_up_to`` says up to which turn facts were looked for, and by which rules; facts
and that mark are written together, so a kill repeats a piece of work or does not. A theme is known by the digest of
what it summarises: whatever becomes of the session, it is never taken for another group's. ``condensed`` says which
version of a session its themes are of; a negative one counts how often work on it began and did not end, a current
one with attempts is of a session that was given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import apsw
import numpy as np

from pipeline.crash_points import CrashPoint, passing
from pipeline.errors import ShardError
from pipeline.ledger.ledger import Ledger

ASKING_ROLES: Final = ("user", "human")
"""Who states facts about himself."""
TABLES: Final = ("facts", "facts_up_to", "themes", "theme_turns", "condensed")
_OF_USERS: Final = f"lower(role) IN ({', '.join(repr(role) for role in ASKING_ROLES)})"


class UserTurn(NamedTuple):
    """A user's turn, to be looked through for facts."""

    turn_offset: int
    session_id: str
    turn_id: str
    speaker: str | None
    content: str
    timestamp_ms: int
    turn_index: int


class FactRow(NamedTuple):
    """A stored fact with what its turn tells of it."""

    turn_offset: int
    session_id: str
    turn_id: str
    speaker: str | None
    timestamp_ms: int
    turn_index: int
    ordinal: int
    key: str
    value: str
    confidence: float


class NewFact(NamedTuple):
    """A fact to be stored: the turn it is from, its number there, and what it states."""

    turn_offset: int
    ordinal: int
    key: str
    value: str
    confidence: float


@dataclass(frozen=True, slots=True)
class NewTheme:
    """A group's summary to be stored, the digest of what it is of, and the turns that tells."""

    digest: bytes
    text: str
    model_id: str
    turn_offsets: tuple[int, ...]


class ThemeRow(NamedTuple):
    """A stored summary of a group."""

    digest: bytes
    text: str
    model_id: str


class Uncondensed(NamedTuple):
    """A session whose themes are not of its latest version; ``n_ended`` workers ended on it."""

    session_id: str
    version: int
    attempts: int
    n_ended: int = 0


def has_tables(connection: apsw.Connection) -> bool:
    """Tell whether the ledger was written to since there are such tables."""
    return not missing_tables(connection)


def missing_tables(connection: apsw.Connection) -> list[str]:
    """Name the tables of facts and themes that the ledger has not."""
    found = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in TABLES if table not in found]


def stamp(connection: apsw.Connection) -> tuple[int, int, int]:
    """Give a value that changes with every turn added, edited or removed, and with what is stored of facts."""
    row: Any = connection.execute(
        "SELECT ifnull(max(seq) FILTER (WHERE name = 'turns'), 0),"
        " ifnull(max(seq) FILTER (WHERE name = 'word_gaps'), 0) FROM sqlite_sequence"
    ).fetchone()
    up_to: Any = (0,)
    if has_tables(connection):
        up_to = connection.execute("SELECT ifnull(max(turn_offset), 0) FROM facts_up_to").fetchone()
    return row[0], row[1], up_to[0]


def facts_up_to(connection: apsw.Connection, rules: int) -> int:
    """Give the offset up to which turns were looked through for facts by these rules; 0: none was."""
    if not has_tables(connection):
        return 0
    row: Any = connection.execute("SELECT turn_offset FROM facts_up_to WHERE rules = ?", (rules,)).fetchone()
    return 0 if row is None else int(row[0])


def facts(connection: apsw.Connection, rules: int, above: int = 0) -> list[FactRow]:
    """Fetch the facts stored by these rules of the turns above an offset, in no particular order."""
    if not facts_up_to(connection, rules):
        return []
    rows: Any = connection.execute(
        "SELECT turn_offset, session_id, turn_id, speaker, timestamp_ms, turn_index, ordinal, key, value, confidence"
        " FROM facts CROSS JOIN turns USING (turn_offset) WHERE facts.turn_offset > ?",
        (above,),
    )
    return [FactRow._make(_whole(connection, row, row[7:9], row[9])) for row in rows]


def user_turns_above(connection: apsw.Connection, turn_offset: int, limit: int = -1) -> list[UserTurn]:
    """Fetch users' turns above an offset, by offset."""
    rows: Any = connection.execute(
        "SELECT turn_offset, session_id, turn_id, speaker, content, timestamp_ms, turn_index FROM turns"
        f" WHERE turn_offset > ? AND {_OF_USERS} ORDER BY turn_offset LIMIT ?",
        (turn_offset, limit),
    )
    return [UserTurn._make(row) for row in rows]


def present(connection: apsw.Connection, turn_offsets: Iterable[int]) -> set[int]:
    """Give those of the offsets that are turns."""
    wanted = np.fromiter(turn_offsets, dtype=np.int64)
    if not wanted.size:
        return set()
    rows: Any = connection.execute(
        "SELECT turn_offset FROM carray(?) wanted CROSS JOIN turns ON turn_offset = wanted.value",
        (apsw.carray(wanted, flags=apsw.SQLITE_CARRAY_INT64),),
    )
    return {row[0] for row in rows}


def last_offset(connection: apsw.Connection) -> int:
    """Give the greatest offset ever given to a turn."""
    row: Any = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'turns'").fetchone()
    return 0 if row is None else int(row[0])


def put_facts(ledger: Ledger, found: Sequence[NewFact], *, rules: int, above: int, up_to: int) -> bool:
    """Store the facts of the turns above one offset, up to another.

    Returns:
        False when somebody else was faster: nothing was stored.
    """
    passing(CrashPoint.BEFORE_FACTS)
    with ledger.write() as connection:
        if facts_up_to(connection, rules) != above:
            return False
        if not above:  # by other rules, or none yet
            connection.execute("DELETE FROM facts")
            connection.execute("DELETE FROM facts_up_to")
        connection.executemany(
            "INSERT OR REPLACE INTO facts SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS"
            " (SELECT 1 FROM turns WHERE turn_offset = ?1)",  # it may have been forgotten meanwhile
            found,
        )
        connection.execute("INSERT OR REPLACE INTO facts_up_to VALUES (?, ?)", (rules, up_to))
    passing(CrashPoint.AFTER_FACTS)
    return True


def summaries(connection: apsw.Connection, digests: Sequence[bytes]) -> dict[bytes, ThemeRow]:
    """Fetch those of the summaries that are stored.

    Raises:
        ShardError: one is none.
    """
    if not digests or not has_tables(connection):
        return {}
    rows: Any = connection.execute(
        "SELECT digest, text, model_id FROM carray(?) wanted CROSS JOIN themes ON digest = wanted.value",
        (apsw.carray(tuple(digests), flags=apsw.SQLITE_CARRAY_BLOB),),
    )
    return {bytes(row[0]): ThemeRow(*_whole(connection, row, row[1:])) for row in rows}


def _whole(connection: apsw.Connection, row: Any, texts: Sequence[object], number: object = 0.0) -> Any:
    """Give a row whose columns are what they should be: SQLite stores whatever it is given.

    Raises:
        ShardError: they are not.
    """
    if all(isinstance(text, str) for text in texts) and isinstance(number, float):
        return row
    raise ShardError(
        f"{connection.filename} holds a fact or theme that is none; 'turnstream doctor --repair' has it made again"
    )


def due(ledger: Ledger, *, now_ms: int, idle_ms: int, settle_ms: int, limit: int) -> list[Uncondensed]:
    """List sessions to be condensed now: closed and settled or silent, embedded, and changed since; oldest first."""
    with ledger.read() as connection:
        rows: Any = connection.execute(
            f"SELECT session_id, version, attempts_made, n_ended FROM ({_UNCONDENSED}) WHERE due_ms <= :now"
            " ORDER BY due_ms, session_id LIMIT :limit",
            {"idle": idle_ms, "settle": settle_ms, "now": now_ms, "limit": limit},
        ).fetchall()
        return [Uncondensed(*row) for row in rows]


def next_due_ms(connection: apsw.Connection, *, idle_ms: int, settle_ms: int) -> int | None:
    """Tell when the next session is to be condensed; None: none waits."""
    row: Any = connection.execute(
        f"SELECT min(due_ms) FROM ({_UNCONDENSED})", {"idle": idle_ms, "settle": settle_ms}
    ).fetchone()
    return None if row is None else row[0]


def begin(ledger: Ledger, session: Uncondensed) -> bool:
    """Note, before anything is risked, that a session is condensed now; what comes of it overwrites the note.

    Returns:
        False when there is nothing to do any more: it changed, or somebody else was faster.
    """
    with ledger.write() as connection:
        if not _is_version(connection, session) or _is_condensed(connection, session):
            return False
        connection.execute(
            "INSERT OR REPLACE INTO condensed VALUES (?, ?, ?, NULL)",
            (session.session_id, -1 - session.n_ended, session.attempts),
        )
    return True


def take_back(ledger: Ledger, session: Uncondensed) -> None:
    """Undo `begin`: what ended the work was nothing of the session's."""
    with ledger.write() as connection:
        _take_back(connection, session)


def give_up(ledger: Ledger, session: Uncondensed) -> None:
    """Leave a session to its readers until it changes."""
    with ledger.write() as connection:
        if _is_version(connection, session):
            connection.execute(
                "INSERT OR REPLACE INTO condensed VALUES (?, ?, ?, NULL)",
                (session.session_id, session.version, session.n_ended),
            )


def put_themes(ledger: Ledger, session: Uncondensed, new: Sequence[NewTheme], current: Iterable[bytes]) -> bool:
    """Store a session's themes, and keep of the known ones those that are still current.

    Returns:
        False when the session changed meanwhile: nothing was stored.
    """
    passing(CrashPoint.BEFORE_THEMES)
    with ledger.write() as connection:
        if not _is_version(connection, session):
            _take_back(connection, session)
            return False
        _keep_only(connection, session.session_id, current)
        _insert(connection, session.session_id, new)
        connection.execute(
            "INSERT OR REPLACE INTO condensed VALUES (?, ?, 0, NULL)", (session.session_id, session.version)
        )
    passing(CrashPoint.AFTER_THEMES)
    return True


def postpone(ledger: Ledger, session: Uncondensed, new: Sequence[NewTheme], *, retry_at_ms: int) -> None:
    """Have a session condensed again later; what was made so far is kept."""
    with ledger.write() as connection:
        if not _is_version(connection, session):
            _take_back(connection, session)
            return
        _insert(connection, session.session_id, new)
        connection.execute(
            "INSERT OR REPLACE INTO condensed VALUES (?, 0, ?, ?)",
            (session.session_id, session.attempts + 1, retry_at_ms),
        )


def remove_of_turns(connection: apsw.Connection, offsets: str, values: tuple[Any, ...]) -> None:
    """Remove what was made of the turns that a query names; inside the caller's transaction."""
    of_turns = f"SELECT digest FROM theme_turns WHERE turn_offset IN ({offsets})"
    connection.execute(f"DELETE FROM facts WHERE turn_offset IN ({offsets})", values)
    doomed = [(row[0],) for row in connection.execute(f"{of_turns} GROUP BY digest", values).fetchall()]
    for table in ("themes", "theme_turns"):
        connection.executemany(f"DELETE FROM {table} WHERE digest = ?", doomed)


def _is_version(connection: apsw.Connection, session: Uncondensed) -> bool:
    row = connection.execute(
        "SELECT 1 FROM sessions WHERE session_id = ? AND version = ?", (session.session_id, session.version)
    ).fetchone()
    return row is not None


def _is_condensed(connection: apsw.Connection, session: Uncondensed) -> bool:
    row = connection.execute(
        "SELECT 1 FROM condensed WHERE session_id = ? AND version = ?", (session.session_id, session.version)
    ).fetchone()
    return row is not None


def _take_back(connection: apsw.Connection, session: Uncondensed) -> None:
    connection.execute(
        "UPDATE condensed SET version = version + 1 WHERE session_id = ? AND version < 0", (session.session_id,)
    )


def _insert(connection: apsw.Connection, session_id: str, new: Sequence[NewTheme]) -> None:
    for theme in new:
        connection.execute(
            "INSERT OR REPLACE INTO themes VALUES (?, ?, ?, ?)",
            (theme.digest, session_id, theme.text, theme.model_id),
        )
        connection.executemany(
            "INSERT OR REPLACE INTO theme_turns VALUES (?, ?)",
            [(offset, theme.digest) for offset in theme.turn_offsets],
        )


def _keep_only(connection: apsw.Connection, session_id: str, current: Iterable[bytes]) -> None:
    kept = set(current)
    stored = connection.execute("SELECT digest FROM themes WHERE session_id = ?", (session_id,)).fetchall()
    stale = [(row[0],) for row in stored if row[0] not in kept]
    for table in ("themes", "theme_turns"):
        connection.executemany(f"DELETE FROM {table} WHERE digest = ?", stale)


_UNCONDENSED: Final = (
    "SELECT s.session_id, s.version, iif(c.version <= 0, c.attempts, 0) AS attempts_made,"
    " max(0, -ifnull(c.version, 0)) AS n_ended,"
    " max(s.changed_ms + CASE WHEN s.closed THEN :settle ELSE :idle END, ifnull(c.retry_at_ms, 0)) AS due_ms"
    " FROM sessions s LEFT JOIN condensed c USING (session_id) WHERE c.version IS NOT s.version"
    " AND s.session_id NOT IN (SELECT session_id FROM turns WHERE state IN (0, 1))"
)
