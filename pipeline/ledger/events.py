"""Applying events to a ledger, so that the order in which they arrive leaves no trace.

A turn is kept in its greatest (revision, timestamp, event id). Deletions win over turns that come before or after
them: a tombstone stays, as a digest that tells nobody what was forgotten. Of an event applied only a digest of its id
is kept: enough to know it again, and nothing of it once it is forgotten. Any permutation and duplication of the same
events ends in the same turns.

Why: a deleted turn or session stays deleted whatever arrives later; a deleted scope only up to the deletion's own
timestamp, because the user who asked to be forgotten may come back. A turn with any revision that old goes with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import apsw

from pipeline.crash_points import CrashPoint, passing
from pipeline.ledger.cards import CardWriter
from pipeline.ledger.forgetting import PURGE_DUE, Forgetter, event_digest, remove_turns
from pipeline.ledger.ledger import Ledger
from pipeline.records import SESSION_TAG_PREFIX, Event, SessionClosed, Turn

__all__ = ["PURGE_DUE", "Outcome", "apply", "is_applied"]


class Outcome(StrEnum):
    """What an event did to the ledger."""

    APPLIED = "applied"
    EDITED = "edited"
    SUPERSEDED = "superseded"
    DUPLICATE = "duplicate"
    FORGOTTEN = "forgotten"


def apply(
    ledger: Ledger,
    events: Sequence[Event],
    *,
    now_ms: int,
    require: Callable[[apsw.Connection], None] | None = None,
) -> list[Outcome]:
    """Apply events in one transaction; durable once `disk.flush` has returned.

    Args:
        ledger: the scope's.
        events: its own, in order.
        now_ms: when they are received.
        require: called first in the transaction; what it raises is raised, and nothing is applied.

    Returns:
        One outcome per event, in order.

    Raises:
        ShardError: the ledger is damaged; none of the events is applied.
        TransientError: the disk is full or the ledger locked; none is applied, try again.
    """
    passing(CrashPoint.BEFORE_BEGIN)
    with ledger.write() as connection:
        if require is not None:
            require(connection)
        batch = _Batch(connection, now_ms)
        outcomes = batch.apply(events)
        batch.finish()
        passing(CrashPoint.AFTER_INSERT)
    passing(CrashPoint.AFTER_COMMIT)
    return outcomes


def is_applied(connection: apsw.Connection, event_id: str) -> bool:
    """Tell whether an event was applied; one that was superseded or refused as forgotten was, too."""
    row = connection.execute("SELECT 1 FROM events WHERE digest = ?", (event_digest(event_id),)).fetchone()
    return row is not None


class _Batch:
    """The events of one transaction; touches each session's row once."""

    def __init__(self, connection: apsw.Connection, now_ms: int) -> None:
        self._db = connection
        self._now_ms = now_ms
        self._changed_sessions: set[str] = set()
        self._cards = CardWriter(connection)
        self._forgetter = Forgetter(connection, self._cards, now_ms)

    def apply(self, events: Sequence[Event]) -> list[Outcome]:
        """Apply events in order. Digests fall anywhere in their table: they are looked up and written together."""
        digests = [event_digest(event.event_id) for event in events]
        known = {bytes(row[0]) for row in self._db.execute(_KNOWN, (_blobs(digests),))} if digests else set()
        outcomes, fresh = [], []
        for digest, event in zip(digests, events, strict=True):
            if digest in known:
                if self._forgetter.has_forgotten(event):  # a replay brought it into the stream again
                    self._forgetter.refuse(event)
                outcomes.append(Outcome.DUPLICATE)
                continue
            known.add(digest)
            fresh.append((digest, type(event).__name__, self._now_ms))
            outcomes.append(self._apply(event))
        self._db.executemany("INSERT INTO events (digest, type, received_ms) VALUES (?, ?, ?)", sorted(fresh))
        return outcomes

    def finish(self) -> None:
        changed = sorted(self._changed_sessions | self._forgetter.bereft_sessions)
        self._db.executemany(
            "INSERT INTO sessions (session_id, changed_ms) VALUES (?, ?) ON CONFLICT (session_id) DO UPDATE SET"
            " version = version + 1, state = 0, changed_ms = excluded.changed_ms,"
            " attempts = 0, retry_at_ms = NULL, failure = NULL",
            [(session_id, self._now_ms) for session_id in changed],
        )
        self._forgetter.finish()
        self._cards.finish()

    def _apply(self, event: Event) -> Outcome:
        if self._forgetter.has_forgotten(event):
            self._forgetter.refuse(event)
            return Outcome.FORGOTTEN
        if isinstance(event, Turn):
            return self._turn(event)
        if isinstance(event, SessionClosed):
            return self._session_closed(event)
        self._forgetter.forget(event)
        return Outcome.APPLIED

    def _turn(self, turn: Turn) -> Outcome:
        row = _turn_row(turn)
        self._db.execute(_INSERT_NEW_TURN, (*row, turn.timestamp_ms))  # most are new: nobody is asked before
        is_new = self._db.changes() > 0
        if not is_new:
            known: Any = self._db.execute(_KNOWN_TURN, (turn.session_id, turn.turn_id)).fetchone()
            turn_offset, known_first_ms, *rank = known
            first_ms = min(turn.timestamp_ms, known_first_ms)
            if (turn.revision, turn.timestamp_ms, turn.event_id) <= tuple(rank):
                self._db.execute("UPDATE turns SET first_ms = ? WHERE turn_offset = ?", (first_ms, turn_offset))
                return Outcome.SUPERSEDED
            remove_turns(self._db, self._cards, "turn_offset = ?", (turn_offset,))
            self._db.execute(_INSERT_TURN, (*row, first_ms))
        self._cards.added(turn)
        self._changed_sessions.add(turn.session_id)
        return Outcome.APPLIED if is_new else Outcome.EDITED

    def _session_closed(self, event: SessionClosed) -> Outcome:
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


_KNOWN = "SELECT digest FROM carray(?) wanted CROSS JOIN events ON digest = wanted.value"
_KNOWN_TURN = (
    "SELECT turn_offset, first_ms, revision, timestamp_ms, event_id FROM turns WHERE session_id = ? AND turn_id = ?"
)
_INSERT_TURN = (
    "INSERT INTO turns (session_id, turn_id, event_id, revision, role, speaker, content, timestamp_ms, turn_index,"
    " tags, mood, metadata, first_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_NEW_TURN = f"{_INSERT_TURN} ON CONFLICT (session_id, turn_id) DO NOTHING"


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


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode  # kept: making one costs


def _blobs(values: Sequence[bytes]) -> apsw.CArrayBinding:
    return apsw.carray(tuple(values), flags=apsw.SQLITE_CARRAY_BLOB)
