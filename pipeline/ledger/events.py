"""Applying events to a ledger, so that the order in which they arrive leaves no trace.

A turn is kept in its greatest (revision, timestamp, event id). Deletions win over turns that come before or after
them: a tombstone stays, as a digest that tells nobody what was forgotten. Any permutation and duplication of the same
events ends in the same turns.

Why: a deleted turn or session stays deleted whatever arrives later; a deleted scope only up to the deletion's own
timestamp, because the user who asked to be forgotten may come back. A turn with any revision that old goes with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import apsw

from pipeline.crash_points import CrashPoint, passing
from pipeline.ledger.cards import CardWriter
from pipeline.ledger.ledger import Ledger
from pipeline.records import (
    SESSION_TAG_PREFIX,
    Event,
    ScopeDeleted,
    SessionClosed,
    SessionDeleted,
    Turn,
    TurnDeleted,
)

_FOR_GOOD = 1 << 62
PURGE_DUE = "purge_due"
"""Key in ``meta``: forgotten bytes may still be in the WAL, a snapshot or the summary cache."""


class Outcome(StrEnum):
    """What an event did to the ledger."""

    APPLIED = "applied"
    EDITED = "edited"
    SUPERSEDED = "superseded"
    DUPLICATE = "duplicate"
    FORGOTTEN = "forgotten"


def apply(ledger: Ledger, events: Sequence[Event], *, now_ms: int) -> list[Outcome]:
    """Apply events in one transaction; durable once `disk.flush` has returned.

    Returns:
        One outcome per event, in order.

    Raises:
        ShardError: the ledger is damaged; none of the events is applied.
        TransientError: the disk is full or the ledger locked; none is applied, try again.
    """
    passing(CrashPoint.BEFORE_BEGIN)
    with ledger.write() as connection:
        batch = _Batch(connection, now_ms)
        outcomes = [batch.apply(event) for event in events]
        batch.finish()
        passing(CrashPoint.AFTER_INSERT)
    passing(CrashPoint.AFTER_COMMIT)
    return outcomes


class _Batch:
    """The events of one transaction; touches each session's row once."""

    def __init__(self, connection: apsw.Connection, now_ms: int) -> None:
        self._db = connection
        self._now_ms = now_ms
        self._changed_sessions: set[str] = set()
        self._bereft_sessions: set[str] = set()
        self._purge = False
        self._cards = CardWriter(connection)
        self._has_tombstones = connection.execute("SELECT 1 FROM tombstones LIMIT 1").fetchone() is not None

    def apply(self, event: Event) -> Outcome:
        fresh = self._db.execute(
            "INSERT INTO events (event_id, type, received_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1",
            (event.event_id, type(event).__name__, self._now_ms),
        ).fetchone()
        if fresh is None:
            return Outcome.DUPLICATE
        if isinstance(event, Turn):
            return self._turn(event)
        if isinstance(event, SessionClosed):
            return self._session_closed(event)
        self._purge = True
        self._forget(event)
        return Outcome.APPLIED

    def finish(self) -> None:
        self._db.executemany(
            "INSERT INTO sessions (session_id, changed_ms) VALUES (?, ?) ON CONFLICT (session_id) DO UPDATE SET"
            " version = version + 1, state = 0, changed_ms = excluded.changed_ms,"
            " attempts = 0, retry_at_ms = NULL, failure = NULL",
            [(session_id, self._now_ms) for session_id in sorted(self._changed_sessions | self._bereft_sessions)],
        )
        for session_id in sorted(self._bereft_sessions):
            # A summary tells what its forgotten turns said; it is made again from what is left.
            self._db.execute("DELETE FROM summaries WHERE session_id = ?", (session_id,))
            self._db.execute(
                "DELETE FROM sessions WHERE session_id = ?1 AND closed_ms IS NULL"
                " AND NOT EXISTS (SELECT 1 FROM turns WHERE session_id = ?1)",
                (session_id,),
            )
        self._cards.finish()
        if self._purge:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PURGE_DUE, str(self._now_ms)))

    def _turn(self, turn: Turn) -> Outcome:
        if self._is_forgotten(turn.session_id, turn.turn_id, turn.timestamp_ms):
            self._forget_turn(turn.session_id, turn.turn_id)  # another revision of it may have come first
            self._purge = True
            return Outcome.FORGOTTEN
        known: Any = self._db.execute(
            "SELECT turn_offset, first_ms, revision, timestamp_ms, event_id FROM turns"
            " WHERE session_id = ? AND turn_id = ?",
            (turn.session_id, turn.turn_id),
        ).fetchone()
        first_ms = turn.timestamp_ms
        if known is not None:
            turn_offset, known_first_ms, *rank = known
            first_ms = min(first_ms, known_first_ms)
            if (turn.revision, turn.timestamp_ms, turn.event_id) <= tuple(rank):
                self._db.execute("UPDATE turns SET first_ms = ? WHERE turn_offset = ?", (first_ms, turn_offset))
                return Outcome.SUPERSEDED
            self._remove_turns("turn_offset = ?", (turn_offset,))
        self._db.execute(_INSERT_TURN, (*_turn_row(turn), first_ms))
        self._cards.added(turn)
        self._changed_sessions.add(turn.session_id)
        return Outcome.APPLIED if known is None else Outcome.EDITED

    def _session_closed(self, event: SessionClosed) -> Outcome:
        if self._is_forgotten(event.session_id, None, event.timestamp_ms):
            return Outcome.FORGOTTEN
        self._db.execute(
            "INSERT INTO sessions (session_id, closed, platform_summary, closed_ms, changed_ms)"
            " VALUES (?, 1, ?, ?, ?)"
            " ON CONFLICT (session_id) DO UPDATE SET closed = 1,"
            # The latest closing says which summary counts; on a tie the one with a summary, then the greater text.
            " platform_summary = CASE WHEN (excluded.closed_ms, ifnull(excluded.platform_summary, ''))"
            "   >= (ifnull(closed_ms, 0), ifnull(platform_summary, '')) THEN excluded.platform_summary"
            "   ELSE platform_summary END,"
            " closed_ms = max(ifnull(closed_ms, 0), excluded.closed_ms)",
            (event.session_id, event.summary, event.timestamp_ms, self._now_ms),
        )
        self._changed_sessions.add(event.session_id)
        return Outcome.APPLIED

    def _forget(self, event: TurnDeleted | SessionDeleted | ScopeDeleted) -> None:
        if isinstance(event, TurnDeleted):
            self._forget_turn(event.session_id, event.turn_id)
        elif isinstance(event, SessionDeleted):
            self._bury(_session_target(event.session_id), _FOR_GOOD)
            within = f"{_session_target(event.session_id)}/*"
            self._db.execute("DELETE FROM tombstones WHERE target GLOB ?", (within,))  # the session's covers them
            self._remove_turns("session_id = ?", (event.session_id,))
            self._db.execute("UPDATE sessions SET closed_ms = NULL WHERE session_id = ?", (event.session_id,))
            self._bereft_sessions.add(event.session_id)
        else:
            self._forget_scope(event.timestamp_ms)

    def _forget_turn(self, session_id: str, turn_id: str) -> None:
        if not self._is_buried(_session_target(session_id)):
            self._bury(_turn_target(session_id, turn_id), _FOR_GOOD)
        self._remove_turns("session_id = ? AND turn_id = ?", (session_id, turn_id))
        self._bereft_sessions.add(session_id)

    def _forget_scope(self, until_ms: int) -> None:
        self._bury("scope", until_ms)
        old = "SELECT session_id, turn_id FROM turns WHERE first_ms <= ?"
        for session_id, turn_id in self._db.execute(old, (until_ms,)).fetchall():
            self._bury(_turn_target(str(session_id), str(turn_id)), _FOR_GOOD)
        self._remove_turns("first_ms <= ?", (until_ms,))
        self._db.execute(
            "UPDATE sessions SET closed = 0, closed_ms = NULL, platform_summary = NULL WHERE closed_ms <= ?",
            (until_ms,),
        )
        self._bereft_sessions.update(str(row[0]) for row in self._db.execute("SELECT session_id FROM sessions"))
        self._bereft_sessions |= self._changed_sessions

    def _bury(self, target: str, until_ms: int) -> None:
        self._db.execute(
            "INSERT INTO tombstones VALUES (?, ?) ON CONFLICT (target) DO UPDATE"
            " SET until_ms = max(until_ms, excluded.until_ms)",
            (target, until_ms),
        )
        self._has_tombstones = True

    def _is_buried(self, target: str) -> bool:
        return self._db.execute("SELECT 1 FROM tombstones WHERE target = ?", (target,)).fetchone() is not None

    def _is_forgotten(self, session_id: str, turn_id: str | None, timestamp_ms: int) -> bool:
        if not self._has_tombstones:  # the common case costs nothing
            return False
        targets = ["scope", _session_target(session_id), _turn_target(session_id, turn_id or "")]
        return bool(
            self._db.execute(
                "SELECT 1 FROM tombstones WHERE target IN (?, ?, ?) AND until_ms >= ?", (*targets, timestamp_ms)
            ).fetchone()
        )

    def _remove_turns(self, condition: str, values: tuple[str | int, ...]) -> None:
        gone = self._db.execute(f"SELECT turn_offset, session_id FROM turns WHERE {condition}", values).fetchall()
        self._cards.removing((int(str(offset)), str(session_id)) for offset, session_id in gone)
        offsets = f"SELECT turn_offset FROM turns WHERE {condition}"
        for statement in (
            f"DELETE FROM vectors WHERE trace_id IN (SELECT trace_id FROM traces WHERE turn_offset IN ({offsets}))",
            f"DELETE FROM traces WHERE turn_offset IN ({offsets})",
            f"DELETE FROM fulltext WHERE rowid IN ({offsets} AND state = 2)",
            f"DELETE FROM turns WHERE {condition}",
        ):
            self._db.execute(statement, values)


_INSERT_TURN = (
    "INSERT INTO turns (session_id, turn_id, event_id, revision, role, speaker, content, timestamp_ms, turn_index,"
    " tags, mood, metadata, first_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _turn_row(turn: Turn) -> tuple[str | int | None, ...]:
    return (
        turn.session_id,
        turn.turn_id,
        turn.event_id,
        turn.revision,
        turn.role,
        turn.speaker,
        turn.content,
        turn.timestamp_ms,
        turn.index,
        _json([SESSION_TAG_PREFIX + turn.session_id, *turn.tags]),
        None if turn.mood is None else _json(list(turn.mood)),
        _json(dict(turn.metadata)),
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _session_target(session_id: str) -> str:
    return _digest("session", session_id)


def _turn_target(session_id: str, turn_id: str) -> str:
    return f"{_session_target(session_id)}/{_digest('turn', session_id, turn_id)}"


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=16, person=b"turnstream-tomb").hexdigest()
