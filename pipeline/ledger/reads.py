"""What readers ask a ledger: SELECTs only, over a connection that is already known to be the scope's.

Only what exists is returned: forgetting a turn deletes its rows in the same transaction, so a missing row is a
forgotten or edited one. Callers that need several answers about one moment ask inside one transaction.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.errors import ShardError
from pipeline.ledger.schema import TurnState

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
_NO_ROW: Final = np.array([np.iinfo(np.int64).min])


class TraceRow(NamedTuple):
    """A trace with its turn's fields but not its text, which may be large."""

    trace_id: int
    turn_offset: int
    start: int
    stop: int
    strength: float
    stability_ms: float
    valence: float
    confidence: float
    last_accessed_ms: int
    session_id: str
    turn_id: str
    role: str
    speaker: str | None
    timestamp_ms: int
    tags_json: str

    @property
    def tags(self) -> tuple[str, ...]:
        """The turn's tags, its session's first."""
        return _tags(self.tags_json)


class Located(NamedTuple):
    """A trace, and the turn that it is of."""

    trace_id: int
    turn_offset: int


class TurnRow(NamedTuple):
    """A turn as a reader shows it."""

    turn_offset: int
    session_id: str
    turn_id: str
    role: str
    speaker: str | None
    content: str
    timestamp_ms: int


class SummaryRow(NamedTuple):
    """A session's summary."""

    session_id: str
    text: str
    model_id: str
    session_date: str | None
    summarised_ms: int


class Extent(NamedTuple):
    """How much a scope holds, and when an event of it was last applied; None: never."""

    n_sessions: int
    n_turns: int
    n_searchable: int
    last_event_ms: int | None


@functools.lru_cache(maxsize=1_024)
def _tags(tags_json: str) -> tuple[str, ...]:
    """Parse once what all turns of a session often share.

    Raises:
        ShardError: they were damaged on the disk.
    """
    try:
        return tuple(json.loads(tags_json))
    except ValueError as error:
        raise ShardError(
            "a turn's tags are damaged; 'turnstream doctor --verify' names the turn: publish it again with a higher"
            " revision, or forget it"
        ) from error


def located(connection: apsw.Connection, trace_ids: Ids) -> list[Located]:
    """Tell of which turns the traces that exist are, in no particular order."""
    if not trace_ids.size:
        return []
    rows = connection.execute(
        "SELECT trace_id, turn_offset FROM carray(?) wanted CROSS JOIN traces ON trace_id = wanted.value",
        (carray(trace_ids),),
    )
    return list(map(Located._make, rows))


def traces(connection: apsw.Connection, trace_ids: Ids) -> list[TraceRow]:
    """Fetch the traces that exist, in no particular order."""
    if not trace_ids.size:
        return []
    rows = connection.execute(
        "SELECT trace_id, t.turn_offset, start, stop, strength, stability_ms, valence, confidence, last_accessed_ms,"
        " session_id, turn_id, role, speaker, timestamp_ms, tags"
        " FROM carray(?) wanted CROSS JOIN traces t ON trace_id = wanted.value"
        " CROSS JOIN turns u ON u.turn_offset = t.turn_offset",
        (carray(trace_ids),),
    )
    return list(map(TraceRow._make, rows))


def texts(connection: apsw.Connection, turn_offsets: Ids) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Fetch the text and the tags of turns by offset.

    Raises:
        ShardError: the tags were damaged on the disk.
    """
    rows: Any = connection.execute(
        "SELECT turn_offset, content, tags FROM carray(?) wanted CROSS JOIN turns ON turn_offset = wanted.value",
        (carray(turn_offsets),),
    )
    return {offset: (content, _tags(tags_json)) for offset, content, tags_json in rows}


def contents(connection: apsw.Connection, turn_offsets: Sequence[int]) -> dict[int, str]:
    """Fetch the text of turns by offset.

    Why: apart from the traces, so that a long turn with many chunks is read once.
    """
    if not turn_offsets:
        return {}
    wanted = np.unique(np.asarray(turn_offsets, dtype=np.int64))
    return dict(
        connection.execute(
            "SELECT turn_offset, content FROM carray(?) wanted CROSS JOIN turns ON turn_offset = wanted.value",
            (carray(wanted),),
        )
    )


def vectors_above(connection: apsw.Connection, trace_id: int, dimension: int) -> tuple[Ids, Vectors]:
    """Fetch the ids (ascending) and vectors ``(n, d) float32`` of the traces above a watermark.

    Raises:
        ShardError: a vector has another length than the ledger's dimension.
    """
    rows = connection.execute(
        "SELECT trace_id, vector FROM vectors WHERE trace_id > ? ORDER BY trace_id", (trace_id,)
    ).fetchall()
    return _ids_and_vectors(rows, dimension)


def vectors_of(connection: apsw.Connection, trace_ids: Ids, dimension: int) -> tuple[Ids, Vectors]:
    """Fetch the ids and vectors ``(n, d) float32`` of those of the given traces that exist.

    Raises:
        ShardError: a vector has another length than the ledger's dimension.
    """
    if not trace_ids.size:
        return _ids_and_vectors([], dimension)
    rows = connection.execute(
        "SELECT trace_id, vector FROM carray(?) wanted CROSS JOIN vectors ON trace_id = wanted.value",
        (carray(trace_ids),),
    ).fetchall()
    return _ids_and_vectors(rows, dimension)


def trace_times_above(connection: apsw.Connection, trace_id: int) -> tuple[Ids, Ids]:
    """Fetch the ids (ascending) of the traces above a watermark, and when their turns were said (epoch ms)."""
    rows = connection.execute(
        "SELECT trace_id, timestamp_ms FROM traces CROSS JOIN turns USING (turn_offset) WHERE trace_id > ?"
        " ORDER BY trace_id",
        (trace_id,),
    ).fetchall()
    both = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return both[:, 0].copy(), both[:, 1].copy()


def trace_ids_up_to(connection: apsw.Connection, trace_id: int) -> Ids:
    """List, ascending, the traces up to a watermark, itself included."""
    rows = connection.execute(
        "SELECT trace_id FROM traces WHERE trace_id <= ? ORDER BY trace_id", (trace_id,)
    ).fetchall()
    return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))


def last_trace_id(connection: apsw.Connection) -> int:
    """Give the greatest trace id ever given out, forgotten ones included."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'traces'").fetchone()
    return row[0] if row else 0


def has_traces(connection: apsw.Connection) -> bool:
    """Tell whether any trace exists."""
    return connection.execute("SELECT 1 FROM traces LIMIT 1").fetchone() is not None


def neighbours(
    connection: apsw.Connection, turn_offsets: Sequence[int], n: int
) -> dict[int, tuple[tuple[TurnRow, ...], tuple[TurnRow, ...]]]:
    """Fetch up to ``n`` turns before and after each turn in its session, each list in the session's order."""
    if n == 0 or not turn_offsets:
        return {}
    around = {
        offset: (json.loads(before)[::-1], json.loads(after))
        for offset, before, after in connection.execute(
            NEIGHBOURS, (carray(np.unique(np.asarray(turn_offsets, dtype=np.int64))), n)
        )
    }
    rows = turns(connection, [offset for pair in around.values() for side in pair for offset in side])
    return {
        offset: (tuple(rows[o] for o in before), tuple(rows[o] for o in after))
        for offset, (before, after) in around.items()
    }


def turns(connection: apsw.Connection, turn_offsets: Sequence[int]) -> dict[int, TurnRow]:
    """Fetch the turns that exist, by offset."""
    if not turn_offsets:
        return {}
    rows = connection.execute(
        "SELECT turn_offset, session_id, turn_id, role, speaker, content, timestamp_ms"
        " FROM carray(?) wanted CROSS JOIN turns ON turn_offset = wanted.value",
        (carray(np.unique(np.asarray(turn_offsets, dtype=np.int64))),),
    )
    return {row[0]: TurnRow(*row) for row in rows}


_EARLIER, _LATER = (
    "(SELECT json_group_array(turn_offset) FROM (SELECT turn_offset FROM turns u"
    " WHERE u.session_id = hit.session_id"
    f" AND (u.timestamp_ms, u.turn_index, u.turn_id) {comparison} (hit.timestamp_ms, hit.turn_index, hit.turn_id)"
    f" ORDER BY u.timestamp_ms {order}, u.turn_index {order}, u.turn_id {order} LIMIT ?2))"
    for comparison, order in (("<", "DESC"), (">", "ASC"))
)
NEIGHBOURS = (
    f"SELECT hit.turn_offset, {_EARLIER}, {_LATER}"
    " FROM carray(?1) wanted CROSS JOIN turns hit ON hit.turn_offset = wanted.value"
)


def summary_stamp(connection: apsw.Connection) -> tuple[int, int]:
    """Give a value that changes whenever the set of summaries does: the greatest summary id and their number."""
    rows: list[Any] = connection.execute("SELECT ifnull(max(summary_id), 0), count(*) FROM summaries").fetchall()
    return rows[0][0], rows[0][1]


def summary_vectors(connection: apsw.Connection, dimension: int) -> tuple[tuple[str, ...], Vectors]:
    """Fetch every summary's session id and vector ``(n, d) float32``, oldest summary first.

    Raises:
        ShardError: a vector has another length than the ledger's dimension.
    """
    rows: list[Any] = connection.execute("SELECT session_id, vector FROM summaries ORDER BY summary_id").fetchall()
    return tuple(row[0] for row in rows), _vectors([row[1] for row in rows], dimension)


def summaries(connection: apsw.Connection) -> list[SummaryRow]:
    """List the summaries by session id."""
    return [
        SummaryRow(*row)
        for row in connection.execute(
            "SELECT session_id, text, model_id, session_date, summarised_ms FROM summaries ORDER BY session_id"
        )
    ]


def extent(connection: apsw.Connection) -> Extent:
    """Tell how much there is."""
    (row,) = connection.execute(
        "SELECT (SELECT count(*) FROM cards), (SELECT count(*) FROM turns),"
        " (SELECT count(*) FROM turns WHERE state = ?), (SELECT max(received_ms) FROM events)",
        (TurnState.SEARCHABLE,),
    )
    return Extent(*row)


def _ids_and_vectors(rows: list[Any], dimension: int) -> tuple[Ids, Vectors]:
    ids = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
    return ids, _vectors([row[1] for row in rows], dimension)


def _vectors(blobs: list[bytes], dimension: int) -> Vectors:
    if set(map(len, blobs)) - {2 * dimension}:
        raise ShardError(f"a vector is not of {dimension} float16 numbers; restore the ledger from a backup")
    return np.frombuffer(b"".join(blobs), dtype="<f2").reshape(len(blobs), dimension).astype(np.float32)


def carray(values: Ids) -> apsw.CArrayBinding:
    """Bind integers as one parameter of a statement; of none, which apsw cannot bind, one that no row has."""
    bound = np.ascontiguousarray(values, dtype=np.int64) if len(values) else _NO_ROW
    return apsw.carray(bound, flags=apsw.SQLITE_CARRAY_INT64)
