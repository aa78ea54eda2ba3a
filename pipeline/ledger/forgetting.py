"""Forgetting within one transaction, the record of it, and what is still to be purged.

From the commit on no reader finds what was forgotten. Its bytes may last longer: in the WAL, in the free space of
pages, in the snapshot, the summary cache, the stream. Until they are gone a purge is due, noted in ``meta``:

| key | value |
|---|---|
| `purge_due` | token of the last forgetting, about its epoch ms; a purge that began before it does not end it |
| `purged_ledger` | the token up to which the scope's files but its snapshot are purged |
| `purged_files` | the token up to which the scope's own files are purged; only the stream is left then |
| `purge_up_to` | that token, and the stream entry up to which something of it may wait to be ingested |
| `purge_looked_at` | that token, and the stream entry up to which nothing of it was found |
| `purge_mark` | that token, and what the server's file must be rewritten after (`pipeline.stream.append_only`) |
| `last_purge` | token of the last purge that ended; tokens only grow |

A kill at any moment leaves the purge due, and it is done again. ``forgettings`` keeps what each request removed, by
the digest of its event's id: numbers, no names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import apsw

from pipeline.ledger import condensed
from pipeline.ledger.cards import CardWriter
from pipeline.ledger.connection import read_meta
from pipeline.records import Event, ScopeDeleted, SessionClosed, SessionDeleted, Turn, TurnDeleted

PURGE_DUE = "purge_due"
PURGED_LEDGER = "purged_ledger"
PURGED_FILES = "purged_files"
PURGE_UP_TO = "purge_up_to"
PURGE_LOOKED_AT = "purge_looked_at"
PURGE_MARK = "purge_mark"
LAST_PURGE = "last_purge"
FOR_GOOD = 1 << 62
"""A time that nothing is said after."""
_SCOPE = "scope"
_VACATE = "INSERT INTO vacated (session_id, turn_index, first_ms)"
_VACATED_BEFORE = "ON CONFLICT DO UPDATE SET first_ms = min(first_ms, excluded.first_ms)"
_SESSIONS = (  # a row without turns that nobody closed is about to go
    "SELECT session_id FROM turns UNION SELECT session_id FROM summaries"
    " UNION SELECT session_id FROM sessions WHERE closed_ms IS NOT NULL"
)
_OUTCOME = (
    "SELECT was_known, was_forgotten, turns, sessions, summaries, chunks, dead_letters, rewritten, purged_ms"
    " FROM forgettings WHERE digest = ?"
)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one request to forget did.

    Args:
        was_known: whether there was such a scope, session or turn.
        was_forgotten: whether it had been asked for before.
        turns: removed, as the next four.
        sessions: those of which nothing is left.
        summaries: a session that lost a turn loses its summary; it is made again from what is left.
        chunks: with their vectors.
        dead_letters: known once purged.
        rewritten: whether the server then rewrote its append-only file; it may keep none, or not let us ask.
        purged_ms: when the last bytes of it were gone; None: not yet.
    """

    was_known: bool
    was_forgotten: bool
    turns: int
    sessions: int
    summaries: int
    chunks: int
    dead_letters: int
    rewritten: bool
    purged_ms: int | None


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What was forgotten of a session.

    Args:
        up_to_ms: all that was said up to then, with the session or its scope; None: neither was.
        turns: digests of turns that were forgotten one by one.
    """

    up_to_ms: int | None = None
    turns: tuple[str, ...] = ()

    def cover(self, session_id: str, turn_ids: Iterable[str], at_ms: int) -> bool:
        """Tell whether something said at a time was forgotten, or any turn of it."""
        is_earlier = self.up_to_ms is not None and at_ms <= self.up_to_ms
        return is_earlier or any(turn_digest(session_id, turn_id) in self.turns for turn_id in turn_ids)


class Forgetter:
    """Forgets within one transaction; `finish` must be called before its end."""

    def __init__(self, connection: apsw.Connection, cards: CardWriter, now_ms: int) -> None:
        self._db = connection
        self._cards = cards
        self._now_ms = now_ms
        self._has_tombstones = connection.execute("SELECT 1 FROM tombstones LIMIT 1").fetchone() is not None
        self._purges_files = self._purges_stream = False
        self.bereft_sessions: set[str] = set()
        """Sessions that lost something: their summaries are gone, and they themselves if nothing else is left."""

    def forget(self, event: TurnDeleted | SessionDeleted | ScopeDeleted) -> None:
        """Forget what a deletion names, and keep the record of it."""
        self._purges_files = True
        if isinstance(event, TurnDeleted):
            target = _turn_target(event.session_id, event.turn_id)
            self._vacate(event.session_id, event.turn_id)
            removed = self._forget_turn(event.session_id, event.turn_id)
        elif isinstance(event, SessionDeleted):
            target, removed = _session_target(event.session_id), self._forget_session(event.session_id)
        else:
            target, removed = _SCOPE, self._forget_scope(event.timestamp_ms)
        self._db.execute(
            "INSERT INTO forgettings (digest, target, was_known, was_forgotten, turns, sessions, summaries, chunks)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            # A salvage may have lost the event and kept this: what was removed first stands, and is purged again.
            " ON CONFLICT (digest) DO UPDATE SET purged_ms = NULL",
            (event_digest(event.event_id), target, *removed),
        )

    def has_forgotten(self, event: Event) -> TypeGuard[Turn | SessionClosed]:
        """Tell whether what an event would add was forgotten; a deletion adds nothing."""
        if not self._has_tombstones or not isinstance(event, Turn | SessionClosed):  # the common case costs nothing
            return False
        turn_id = event.turn_id if isinstance(event, Turn) else None
        return is_forgotten(self._db, event.session_id, turn_id, event.timestamp_ms)

    def refuse(self, event: Turn | SessionClosed) -> None:
        """See to it that nothing stays anywhere of an event whose like was forgotten."""
        self._purges_stream = True
        if isinstance(event, SessionClosed):
            return
        if not is_forgotten(self._db, event.session_id, None, event.timestamp_ms):  # its session lives on
            values = (event.session_id, event.index, event.timestamp_ms)
            self._db.execute(f"{_VACATE} VALUES (?, ?, ?) {_VACATED_BEFORE}", values)
        n_turns = self._forget_turn(event.session_id, event.turn_id)[2]  # another revision may have come first
        self._purges_files |= n_turns > 0

    def finish(self) -> None:
        """Remove the sessions of which nothing is left, and note what is to be purged."""
        for session_id in sorted(self.bereft_sessions):
            self._db.execute(
                "DELETE FROM sessions WHERE session_id = ?1 AND closed_ms IS NULL"
                " AND NOT EXISTS (SELECT 1 FROM turns WHERE session_id = ?1)",
                (session_id,),
            )
            self._db.execute(
                "DELETE FROM condensed WHERE session_id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = ?1)",
                (session_id,),
            )
        if self._purges_files:
            note_purge_due(self._db, self._now_ms)
        elif self._purges_stream:
            note_purge_due(self._db, self._now_ms, stream_only=True)

    def _forget_turn(self, session_id: str, turn_id: str) -> tuple[int, ...]:
        target = _turn_target(session_id, turn_id)
        was_forgotten = self._is_buried(_session_target(session_id)) or self._is_buried(target)
        if not self._is_buried(_session_target(session_id)):
            self._bury(target, FOR_GOOD)
        n_turns, n_chunks = remove_turns(
            self._db, self._cards, "session_id = ? AND turn_id = ?", (session_id, turn_id)
        )
        if not n_turns:
            return False, was_forgotten, 0, 0, 0, 0
        n_sessions = 0 if self._has_anything_of(session_id) else 1
        return True, was_forgotten, n_turns, n_sessions, self._bereave([session_id]), n_chunks

    def _vacate(self, session_id: str, turn_id: str) -> None:
        self._db.execute(
            f"{_VACATE} SELECT session_id, turn_index, first_ms FROM turns WHERE session_id = ? AND turn_id = ?"
            f" {_VACATED_BEFORE}",
            (session_id, turn_id),
        )

    def _forget_session(self, session_id: str) -> tuple[int, ...]:
        target = _session_target(session_id)
        known = self._db.execute(f"SELECT 1 FROM ({_SESSIONS}) WHERE session_id = ?", (session_id,)).fetchone()
        was_forgotten = self._is_buried(target)
        self._bury(target, FOR_GOOD)
        self._db.execute("DELETE FROM tombstones WHERE target GLOB ?", (f"{target}/*",))  # the session's covers them
        n_turns, n_chunks = remove_turns(self._db, self._cards, "session_id = ?", (session_id,))
        self._db.execute("DELETE FROM vacated WHERE session_id = ?", (session_id,))
        self._db.execute("UPDATE sessions SET closed_ms = NULL WHERE session_id = ?", (session_id,))
        n_summaries = self._bereave([session_id])
        return known is not None, was_forgotten, n_turns, int(known is not None), n_summaries, n_chunks

    def _forget_scope(self, until_ms: int) -> tuple[int, ...]:
        before = self._sessions()
        was_forgotten = self._is_buried(_SCOPE)
        self._bury(_SCOPE, until_ms)
        old = "SELECT session_id, turn_id FROM turns WHERE first_ms <= ?"
        for session_id, turn_id in self._db.execute(old, (until_ms,)).fetchall():
            self._bury(_turn_target(str(session_id), str(turn_id)), FOR_GOOD)
        n_turns, n_chunks = remove_turns(self._db, self._cards, "first_ms <= ?", (until_ms,))
        self._db.execute("DELETE FROM vacated WHERE first_ms <= ?", (until_ms,))
        self._db.execute(
            "UPDATE sessions SET closed = 0, closed_ms = NULL, platform_summary = NULL WHERE closed_ms <= ?",
            (until_ms,),
        )
        n_summaries = self._bereave(before)
        return bool(before), was_forgotten, n_turns, len(before - self._sessions()), n_summaries, n_chunks

    def _bereave(self, session_ids: Iterable[str]) -> int:
        """Remove the summaries of sessions that lost turns: they tell what those said."""
        n_summaries = 0
        for session_id in session_ids:
            self.bereft_sessions.add(session_id)
            self._db.execute("DELETE FROM summaries WHERE session_id = ?", (session_id,))
            n_summaries += self._db.changes()
        return n_summaries

    def _sessions(self) -> set[str]:
        return {str(row[0]) for row in self._db.execute(_SESSIONS)}

    def _has_anything_of(self, session_id: str) -> bool:
        query = (
            "SELECT 1 FROM turns WHERE session_id = ?1"
            " UNION ALL SELECT 1 FROM sessions WHERE session_id = ?1 AND closed_ms IS NOT NULL LIMIT 1"
        )
        return self._db.execute(query, (session_id,)).fetchone() is not None

    def _bury(self, target: str, until_ms: int) -> None:
        self._db.execute(
            "INSERT INTO tombstones VALUES (?, ?) ON CONFLICT (target) DO UPDATE"
            " SET until_ms = max(until_ms, excluded.until_ms)",
            (target, until_ms),
        )
        self._has_tombstones = True

    def _is_buried(self, target: str) -> bool:
        return self._db.execute("SELECT 1 FROM tombstones WHERE target = ?", (target,)).fetchone() is not None


def is_forgotten(connection: apsw.Connection, session_id: str | None, turn_id: str | None, at_ms: int) -> bool:
    """Tell whether something said at a time was forgotten, with its scope, its session, or as a turn."""
    targets = _targets(session_id, turn_id)
    return bool(
        connection.execute(
            f"SELECT 1 FROM tombstones WHERE target IN ({_marks(targets)}) AND until_ms >= ?", (*targets, at_ms)
        ).fetchone()
    )


def tombstones(connection: apsw.Connection, session_id: str) -> Tombstones:
    """Give what was forgotten of a session."""
    of_session = _session_target(session_id)
    found: Any = connection.execute(
        "SELECT max(until_ms) FROM tombstones WHERE target IN (?, ?)", (_SCOPE, of_session)
    ).fetchone()
    turns: Any = connection.execute(
        "SELECT target FROM tombstones WHERE target > ? AND target < ?", (f"{of_session}/", f"{of_session}0")
    ).fetchall()  # "0" comes after "/"
    return Tombstones(found[0], tuple(target.rpartition("/")[2] for (target,) in turns))


def remove_turns(
    connection: apsw.Connection, cards: CardWriter, condition: str, values: tuple[str | int, ...]
) -> tuple[int, int]:
    """Remove turns with all that was made of them; gives how many turns and chunks there were."""
    gone: Any = connection.execute(f"SELECT turn_offset, session_id FROM turns WHERE {condition}", values).fetchall()
    if not gone:
        return 0, 0
    cards.removing(gone)
    offsets = f"SELECT turn_offset FROM turns WHERE {condition}"
    remove_of_traces(connection, f"SELECT trace_id FROM traces WHERE turn_offset IN ({offsets})", values)
    n_removed = []
    condensed.remove_of_turns(connection, offsets, values)
    for statement in (
        f"DELETE FROM traces WHERE turn_offset IN ({offsets})",
        f"DELETE FROM fulltext WHERE rowid IN ({offsets} AND state = 2)",
        f"DELETE FROM turns WHERE {condition}",
    ):
        connection.execute(statement, values)
        n_removed.append(connection.changes())
    return n_removed[2], n_removed[0]


OF_TRACES: Final = ("vectors", "token_vectors", "passages")
"""Tables with at most one row for each trace."""


def remove_of_traces(connection: apsw.Connection, traces: str, values: tuple[Any, ...]) -> None:
    """Remove what is kept of the traces that a query names, but not themselves."""
    for table in OF_TRACES:
        connection.execute(f"DELETE FROM {table} WHERE trace_id IN ({traces})", values)


def note_purge_due(connection: apsw.Connection, now_ms: int, *, stream_only: bool = False) -> None:
    """Note that forgotten bytes may still be in the scope's files and the stream, or in the stream alone."""
    meta = read_meta(connection)
    token = str(max(now_ms, 1 + int(meta.get(PURGE_DUE) or meta.get(LAST_PURGE) or 0)))
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PURGE_DUE, token))
    if stream_only and meta.get(PURGE_DUE) == meta.get(PURGED_FILES):  # nothing was due, or the files were done
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PURGED_FILES, token))


def note_dead_letter(connection: apsw.Connection, session_id: str | None, turn_id: str | None) -> None:
    """Count a dead letter, about to be dropped, with the request to forget that it belongs to."""
    targets = _targets(session_id, turn_id)
    connection.execute(
        "UPDATE forgettings SET dead_letters = dead_letters + 1 WHERE digest = (SELECT digest FROM forgettings"
        f" WHERE target IN ({_marks(targets)}) AND purged_ms IS NULL ORDER BY length(target) LIMIT 1)",
        targets,
    )


def outcome(connection: apsw.Connection, event_id: str) -> Forgotten | None:
    """Give what the request to forget with this event id did; None: it was not applied here."""
    row: Any = connection.execute(_OUTCOME, (event_digest(event_id),)).fetchone()
    if row is None:
        return None
    known, forgotten, turns, sessions, summaries, chunks, letters, rewritten, purged_ms = row
    return Forgotten(
        was_known=bool(known),
        was_forgotten=bool(forgotten),
        turns=turns,
        sessions=sessions,
        summaries=summaries,
        chunks=chunks,
        dead_letters=letters,
        rewritten=bool(rewritten),
        purged_ms=purged_ms,
    )


def event_digest(event_id: str) -> bytes:
    """Give what is kept of an event's id."""
    return hashlib.blake2b(event_id.encode(), digest_size=16, person=b"turnstream-event").digest()


def _targets(session_id: str | None, turn_id: str | None) -> list[str]:
    if session_id is None:
        return [_SCOPE]
    of_session = [_SCOPE, _session_target(session_id)]
    return of_session if turn_id is None else [*of_session, _turn_target(session_id, turn_id)]


def _marks(values: list[str]) -> str:
    return ", ".join("?" * len(values))


def _session_target(session_id: str) -> str:
    return _digest("session", session_id)


def _turn_target(session_id: str, turn_id: str) -> str:
    return f"{_session_target(session_id)}/{turn_digest(session_id, turn_id)}"


def turn_digest(session_id: str, turn_id: str) -> str:
    """Give what is kept of a turn's id."""
    return _digest("turn", session_id, turn_id)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=16, person=b"turnstream-tomb").hexdigest()
