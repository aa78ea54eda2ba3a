"""Looking after a ledger: what it holds, which vectors an index is built from, and what is still to be purged.

Each step of a purge is noted under the token it began with (`forgetting` lists the notes). A kill leaves the purge
due, and it goes on from the last note; something forgotten meanwhile has a token of its own, and is purged after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.crash_points import CrashPoint, passing
from pipeline.ledger import condensed, word_segments
from pipeline.ledger.connection import read_meta
from pipeline.ledger.forgetting import (
    LAST_PURGE,
    PURGE_DUE,
    PURGE_LOOKED_AT,
    PURGE_MARK,
    PURGE_UP_TO,
    PURGED_FILES,
    PURGED_LEDGER,
)
from pipeline.ledger.ledger import Ledger
from pipeline.ledger.schema import TurnState
from pipeline.registry import Counts

_BLOCK_ROWS = 4_096
_SESSIONS = (
    "SELECT count(*), ifnull(sum(state = 0), 0), ifnull(sum(state = 0 AND closed AND attempts = 0), 0),"
    " min(CASE WHEN state = 0 THEN max(changed_ms + CASE WHEN closed THEN ? ELSE ? END, ifnull(retry_at_ms, 0)) END),"
    " ifnull(sum(state = 0 AND attempts > 0), 0), min(CASE WHEN state = 0 AND closed THEN changed_ms END)"
    " FROM sessions"
)
_SUMMARIES = "SELECT count(*) FROM summaries"
_FOR_EVER = 1 << 62
_RUNG_WITHIN_MS = 2_000
"""A session is condensed right after it was summarised; only when that has not come of it, it is due by itself."""
_ON_THE_WAY = (PURGED_LEDGER, PURGED_FILES, PURGE_UP_TO, PURGE_LOOKED_AT, PURGE_MARK)


@dataclass(frozen=True, slots=True)
class Status:
    """What a ledger holds and what is still to be done with it, in one state of the file.

    Args:
        counts: its turns, traces and sessions by what became of them.
        next_session_due_ms: when the next session is to be summarised, or condensed; None: no session waits.
        purge_due: the token of the last forgetting whose bytes may still be somewhere; None: all are gone.
        last_trace_id: the highest.
        files_purged: whether a purge that is due has only the stream left to look at.
        unsummarised_since_ms: since when the oldest closed session without a summary waits for it.
    """

    counts: Counts
    next_session_due_ms: int | None
    purge_due: str | None
    last_trace_id: int
    files_purged: bool
    unsummarised_since_ms: int | None = None


def status(ledger: Ledger, *, idle_ms: int, settle_ms: int) -> Status:
    """Look once at everything that decides whether a ledger is done with.

    Args:
        ledger: the scope's ledger.
        idle_ms: silence after which an open session is to be summarised.
        settle_ms: silence after which a closed one is.
    """
    with ledger.read() as connection:
        by_state: Any = dict(connection.execute("SELECT state, count(*) FROM turns GROUP BY state"))
        traces: Any = connection.execute("SELECT count(*), ifnull(max(trace_id), 0) FROM traces").fetchone()
        sessions: Any = connection.execute(_SESSIONS, (settle_ms, idle_ms)).fetchone()
        summaries: Any = connection.execute(_SUMMARIES).fetchone()
        meta = read_meta(connection)
        condense_ms = condensed.next_due_ms(connection, idle_ms=idle_ms, settle_ms=settle_ms)
    n_sessions, n_due, n_closed_due, next_due_ms, n_failed, since_ms = sessions
    counts = Counts(
        turns=sum(by_state.values()),
        searchable=by_state.get(TurnState.SEARCHABLE, 0),
        skipped=by_state.get(TurnState.SKIPPED, 0),
        pending=by_state.get(TurnState.PENDING, 0) + by_state.get(TurnState.CLAIMED, 0),
        quarantined=by_state.get(TurnState.QUARANTINED, 0),
        traces=traces[0],
        sessions=n_sessions,
        summarised=summaries[0],
        unsummarised=n_due,
        closed_unsummarised=n_closed_due,
        summary_failed=n_failed,
    )
    due = meta.get(PURGE_DUE)
    is_stream_left = due is not None and meta.get(PURGED_FILES) == due
    if condense_ms is not None:
        next_due_ms = min(next_due_ms or _FOR_EVER, condense_ms + _RUNG_WITHIN_MS)
    return Status(counts, next_due_ms, due, traces[1], files_purged=is_stream_left, unsummarised_since_ms=since_ms)


def n_traces_above(ledger: Ledger, watermark: int, *, at_most: int) -> int:
    """Count traces above a watermark, up to ``at_most``."""
    with ledger.read() as connection:
        row: Any = connection.execute(
            "SELECT count(*) FROM (SELECT 1 FROM traces WHERE trace_id > ? LIMIT ?)", (watermark, at_most)
        ).fetchone()
    return int(row[0])


def vector_blocks(
    ledger: Ledger, dimension: int, up_to: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Yield ids ``(n,) int64`` ascending and vectors ``(n, d) float32`` of all traces up to an id, block by block."""
    after = 0
    while True:
        with ledger.read() as connection:
            rows: Any = connection.execute(
                "SELECT trace_id, vector FROM vectors WHERE trace_id > ? AND trace_id <= ? ORDER BY trace_id LIMIT ?",
                (after, up_to, _BLOCK_ROWS),
            ).fetchall()
        if not rows:
            return
        after = rows[-1][0]
        flat = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2").astype(np.float32)
        yield np.array([row[0] for row in rows], dtype=np.int64), flat.reshape(len(rows), dimension)


def summary_digests(ledger: Ledger) -> set[str]:
    """List the digests of the texts that the stored summaries cover."""
    with ledger.read() as connection:
        return {str(row[0]) for row in connection.execute("SELECT digest FROM summaries")}


def purge_ledger(ledger: Ledger) -> None:
    """Remove the last forgotten bytes from the ledger's own file and WAL; killed in between, do it again.

    Raises:
        TransientError: somebody is reading what was forgotten, or the disk is full; the purge is still due.
        ShardError: the ledger is damaged.

    Why the full text is merged: a table without content only notes that a row is gone, and keeps its words.
    """
    with ledger.write() as connection:
        connection.execute("INSERT INTO fulltext (fulltext) VALUES ('optimize')")
        word_segments.close_gaps(connection)
    ledger.rewrite()
    passing(CrashPoint.BEFORE_CHECKPOINT)
    ledger.truncate_wal()
    passing(CrashPoint.AFTER_CHECKPOINT)


def note_files_purged(ledger: Ledger, token: str) -> None:
    """Note that nothing forgotten up to a purge's token is left in the scope's folder."""
    with ledger.write() as connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PURGED_FILES, token))


def purge_note(ledger: Ledger, key: str, token: str) -> str | None:
    """Read what was noted on the way to a purge's end; None: nothing yet."""
    noted_for, _, value = ledger.meta().get(key, "").partition(" ")
    return value if noted_for == token else None


def note_purge(ledger: Ledger, key: str, token: str, value: str) -> None:
    """Note something on the way to a purge's end; it is gone with it, and when more is forgotten."""
    with ledger.write() as connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, f"{token} {value}"))


def end_purge(ledger: Ledger, token: str, *, now_ms: int, rewritten: bool) -> bool:
    """Note that all that was forgotten up to a purge's token is gone; False: more was forgotten meanwhile.

    Args:
        ledger: the scope's ledger.
        token: what the purge began with.
        now_ms: the time.
        rewritten: whether the server rewrote its append-only file; it may keep none, or have refused.
    """
    with ledger.write() as connection:
        connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (PURGE_DUE, token))
        if not connection.changes():
            return False
        connection.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in _ON_THE_WAY])
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (LAST_PURGE, token))
        connection.execute(
            "UPDATE forgettings SET purged_ms = ?, rewritten = ? WHERE purged_ms IS NULL", (now_ms, rewritten)
        )
    return True


def quarantined(ledger: Ledger, *, limit: int = 100) -> list[dict[str, Any]]:
    """List quarantined turns with their reasons, without their text."""
    with ledger.read() as connection:
        rows: Any = connection.execute(
            "SELECT turn_offset, session_id, turn_id, attempts, failure FROM turns WHERE state = 4"
            " ORDER BY turn_offset LIMIT ?",
            (limit,),
        ).fetchall()
    names = ("turn_offset", "session_id", "turn_id", "attempts", "failure")
    return [{"scope": ledger.scope.key, **dict(zip(names, row, strict=True))} for row in rows]


def unsummarised(ledger: Ledger, *, limit: int = 100) -> list[dict[str, Any]]:
    """List sessions whose summary failed, with the reason and the time of the next try."""
    with ledger.read() as connection:
        rows: Any = connection.execute(
            "SELECT session_id, attempts, failure, retry_at_ms FROM sessions WHERE state = 0 AND attempts > 0"
            " ORDER BY retry_at_ms LIMIT ?",
            (limit,),
        ).fetchall()
    names = ("session_id", "attempts", "failure", "retry_at_ms")
    return [{"scope": ledger.scope.key, **dict(zip(names, row, strict=True))} for row in rows]
