"""What session memory asks a ledger: the turns of one session, and their vectors. SELECTs only.

Callers ask inside one transaction: `card` first, then what changed since the card they know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.errors import ShardError
from pipeline.ledger.reads import Ids, Vectors, carray

REMEMBERED: Final = "remembered:"
"""How the event ids of turns begin that an agent remembered, beside those that platforms publish."""


class SessionTurn(NamedTuple):
    """A turn in its latest revision."""

    turn_offset: int
    turn_id: str
    role: str
    speaker: str | None
    content: str
    timestamp_ms: int
    turn_index: int
    metadata: Mapping[str, Any]

    @property
    def place(self) -> tuple[int, int, str]:
        """Where it stands in its session."""
        return self.timestamp_ms, self.turn_index, self.turn_id


class SessionCard(NamedTuple):
    """A session that has turns.

    ``session_no`` and ``changed`` together grow with every turn that is added, edited or removed.
    """

    session_id: str
    session_no: int
    changed: int
    n_turns: int
    first_ms: int
    last_ms: int


def card(connection: apsw.Connection, session_id: str) -> SessionCard | None:
    """Give a session's card; None when it has no turn."""
    row: Any = connection.execute(f"SELECT {_CARD} FROM cards WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else SessionCard(*row)


def has_turn(connection: apsw.Connection, session_id: str, turn_id: str) -> bool:
    """Tell whether a session has a turn of that id."""
    row = connection.execute("SELECT 1 FROM turns WHERE session_id = ? AND turn_id = ?", (session_id, turn_id))
    return row.fetchone() is not None


def turns_of(connection: apsw.Connection, session_id: str) -> list[SessionTurn]:
    """Fetch a session's turns in their order."""
    rows: Any = connection.execute(
        f"SELECT {_TURN} FROM turns WHERE session_id = ? ORDER BY timestamp_ms, turn_index, turn_id", (session_id,)
    )
    return [_turn(row) for row in rows]


def turns_above(
    connection: apsw.Connection, session_id: str, turn_offset: int, *, look_through: int
) -> list[SessionTurn] | None:
    """Fetch a session's turns above an offset, in no particular order.

    Returns:
        None when more than ``look_through`` turns of the scope are above it: then `turns_of` costs less.
    """
    row: Any = connection.execute("SELECT ifnull(max(turn_offset), 0) FROM turns").fetchone()
    if row[0] - turn_offset > look_through:
        return None
    rows: Any = connection.execute(
        f"SELECT {_TURN} FROM turns WHERE turn_offset > ? AND +session_id = ?", (turn_offset, session_id)
    )
    return [_turn(row) for row in rows]


def offsets_of(connection: apsw.Connection, session_id: str) -> set[int]:
    """Give the offsets of a session's turns, without reading them."""
    return {row[0] for row in connection.execute("SELECT turn_offset FROM turns WHERE session_id = ?", (session_id,))}


def turn_vectors(connection: apsw.Connection, turn_offsets: Sequence[int], dimension: int) -> tuple[Ids, Vectors]:
    """Fetch the vectors ``(n, d) float32`` of all chunks of some turns, and the turn's offset of each.

    Raises:
        ShardError: a vector has another length than the ledger's dimension.
    """
    rows: list[Any] = connection.execute(
        "SELECT turn_offset, vector FROM carray(?) wanted CROSS JOIN traces ON turn_offset = wanted.value"
        " CROSS JOIN vectors USING (trace_id)",
        (carray(np.fromiter(turn_offsets, dtype=np.int64, count=len(turn_offsets))),),
    ).fetchall()
    if any(len(row[1]) != 2 * dimension for row in rows):
        raise ShardError(f"a vector is not of {dimension} float16 numbers; restore the ledger from a backup")
    flat = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2").astype(np.float32)
    offsets: npt.NDArray[np.int64] = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
    return offsets, flat.reshape(len(rows), dimension)


def embedded_above(connection: apsw.Connection, trace_id: int) -> Iterator[int]:
    """Yield the offsets of turns with a trace above a watermark."""
    rows: Any = connection.execute("SELECT DISTINCT turn_offset FROM traces WHERE trace_id > ?", (trace_id,))
    for row in rows:
        yield row[0]


_CARD = "session_id, session_no, changed, n_turns, first_ms, last_ms"
_TURN = "turn_offset, turn_id, role, speaker, content, timestamp_ms, turn_index, metadata"


def _turn(row: Any) -> SessionTurn:
    return SessionTurn._make((*row[:-1], {} if row[-1] == "{}" else _metadata(row[-1])))


def _metadata(text: str) -> Mapping[str, Any]:
    """Read metadata; one that was damaged on the disk says nothing: the checker names it."""
    try:
        found: Mapping[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return found
