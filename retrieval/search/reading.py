"""Turns of one session as messages: by place, around a turn, and first and last ones; SELECTs only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw
import numpy as np

from pipeline.records import from_epoch_ms
from retrieval.search.protocol import Message

BOOKENDS: Final = 2
_TALK: Final = "role IN ('user', 'assistant')"
_ORDER: Final = "timestamp_ms, turn_index, turn_id"
_BACKWARDS: Final = "timestamp_ms DESC, turn_index DESC, turn_id DESC"
_COLUMNS: Final = "timestamp_ms, turn_index, turn_id, role, content, speaker"


class Row(NamedTuple):
    """A turn: where it stands in its session, and what it says."""

    time_ms: int
    number: int
    turn_id: str
    role: str
    content: str
    speaker: str | None

    @property
    def place(self) -> tuple[int, int, str]:
        """Where it stands: a session's turns are sorted by this."""
        return self[:3]


class SessionRow(NamedTuple):
    """A session as its card tells it."""

    session_id: str
    n_turns: int
    last_ms: int
    opening: str
    facts: str

    def says(self) -> dict[str, Any]:
        """Give what the session says about itself."""
        found: dict[str, Any] = json.loads(self.facts) if self.facts != "{}" else {}
        return found


def iso(time_ms: int) -> str:
    """Write a time as ISO 8601, in UTC."""
    return from_epoch_ms(time_ms).isoformat()


def message(index: int, row: Row) -> Message:
    """Make the message of a turn; it names its speaker if the turn does."""
    said = {
        "index": index,
        "message_id": row.turn_id,
        "role": row.role,
        "content": row.content,
        "timestamp": iso(row.time_ms),
    }
    return {**said, "speaker": row.speaker} if row.speaker else said


def session(connection: apsw.Connection, session_id: str) -> SessionRow | None:
    """Look a session up."""
    row: Any = connection.execute(
        "SELECT session_id, n_turns, last_ms, opening, facts FROM cards WHERE session_id = ?",
        (session_id,),
    ).fetchone()
    return SessionRow(*row) if row else None


def newest(
    connection: apsw.Connection,
    *,
    limit: int,
    offset: int = 0,
    after_ms: int | None = None,
    before_ms: int | None = None,
    excluded: Sequence[str] = (),
) -> list[SessionRow]:
    """List sessions, automated ones last, those spoken in last first.

    Between two times are those spoken in last at or after the first one, and begun at or before the second.
    """
    rows = connection.execute(
        "SELECT session_id, n_turns, last_ms, opening, facts FROM cards"
        " WHERE (:after IS NULL OR last_ms >= :after) AND (:before IS NULL OR first_ms <= :before)"
        " AND session_id NOT IN (SELECT value FROM json_each(:excluded))"
        " ORDER BY is_automated, last_ms DESC, session_id LIMIT :limit OFFSET :offset",
        {
            "after": after_ms,
            "before": before_ms,
            "excluded": json.dumps(list(excluded)),
            "limit": limit,
            "offset": offset,
        },
    )
    return [SessionRow(*row) for row in rows]


def earliest(connection: apsw.Connection, turn_offsets: Any) -> tuple[int, Row]:
    """Give the turn that stands first in its session among some of one, and its index."""
    row: Any = connection.execute(
        f"SELECT {_N_BEFORE}, {_COLUMNS} FROM (SELECT session_id, {_COLUMNS}"
        "  FROM carray(?) wanted CROSS JOIN turns ON turn_offset = wanted.value"
        f" ORDER BY {_ORDER} LIMIT 1) hit",
        (apsw.carray(np.ascontiguousarray(turn_offsets, dtype=np.int64), flags=apsw.SQLITE_CARRAY_INT64),),
    ).fetchone()
    return row[0], Row(*row[1:])


def index_of(connection: apsw.Connection, session_id: str, row: Row) -> int:
    """Count the turns of a session before one."""
    count: Any = connection.execute(
        "SELECT count(*) FROM turns WHERE session_id = ? AND (timestamp_ms, turn_index, turn_id) < (?, ?, ?)",
        (session_id, *row.place),
    ).fetchone()
    return int(count[0])


def by_id(connection: apsw.Connection, session_id: str, turn_id: str) -> Row | None:
    """Look a turn up."""
    row: Any = connection.execute(
        f"SELECT {_COLUMNS} FROM turns WHERE session_id = ? AND turn_id = ?", (session_id, turn_id)
    ).fetchone()
    return Row(*row) if row else None


def around(connection: apsw.Connection, session_id: str, index: int, window: int) -> list[Message]:
    """Read the turns up to ``window`` before and after a place in a session, itself included."""
    first = max(0, index - window)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM turns WHERE session_id = ? ORDER BY {_ORDER} LIMIT ? OFFSET ?",
        (session_id, index + window + 1 - first, first),
    )
    return [message(place, Row(*row)) for place, row in enumerate(rows, start=first)]


def bookends(connection: apsw.Connection, session_id: str, n_turns: int) -> dict[str, list[Message]]:
    """Read how a session opens and closes: two turns of user or assistant each, none twice; {} for a short one."""
    opening = [(row[0], Row(*row[1:])) for row in connection.execute(_OPENING, (session_id,))]
    closing = [(n_turns - 1 - row[0], Row(*row[1:])) for row in connection.execute(_CLOSING, (session_id,))]
    later = [(index, row) for index, row in reversed(closing) if index > opening[-1][0]]
    if not later:
        return {}
    return {
        "opening": [message(index, row) for index, row in opening],
        "closing": [message(index, row) for index, row in later],
    }


_N_BEFORE, _N_AFTER = (
    "(SELECT count(*) FROM turns u WHERE u.session_id = hit.session_id"
    f" AND (u.timestamp_ms, u.turn_index, u.turn_id) {comparison} (hit.timestamp_ms, hit.turn_index, hit.turn_id))"
    for comparison in "<>"
)
_OPENING, _CLOSING = (
    f"SELECT {n_outside}, {_COLUMNS} FROM turns hit WHERE session_id = ? AND {_TALK}"
    f" ORDER BY {order} LIMIT {BOOKENDS}"
    for n_outside, order in ((_N_BEFORE, _ORDER), (_N_AFTER, _BACKWARDS))
)
