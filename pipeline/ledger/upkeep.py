"""Looking after a ledger: what it holds, which vectors an index is built from, and what is still to be purged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.ledger.events import PURGE_DUE
from pipeline.ledger.ledger import Ledger
from pipeline.registry import Counts

_BLOCK_ROWS = 4_096


def count(ledger: Ledger) -> Counts:
    """Count what the ledger holds, in one state of the file."""
    with ledger.read() as connection:
        row: Any = connection.execute(
            "WITH by_state AS (SELECT state, count(*) AS n FROM turns GROUP BY state),"
            " due AS (SELECT count(*) AS n, ifnull(sum(closed AND attempts = 0), 0) AS closed"
            "  FROM sessions WHERE state = 0)"
            " SELECT (SELECT ifnull(sum(n), 0) FROM by_state),"
            " ifnull((SELECT n FROM by_state WHERE state = 2), 0),"
            " ifnull((SELECT n FROM by_state WHERE state = 3), 0),"
            " ifnull((SELECT sum(n) FROM by_state WHERE state IN (0, 1)), 0),"
            " ifnull((SELECT n FROM by_state WHERE state = 4), 0),"
            " (SELECT count(*) FROM traces), (SELECT count(*) FROM sessions), (SELECT count(*) FROM summaries),"
            " (SELECT n FROM due), (SELECT closed FROM due),"
            " (SELECT ifnull(sum(tokens_in), 0) FROM summaries), (SELECT ifnull(sum(tokens_out), 0) FROM summaries)"
        ).fetchone()
    return Counts(*row)


def has_undone_turns(ledger: Ledger) -> bool:
    """Tell whether a turn is pending or claimed."""
    with ledger.read() as connection:
        return connection.execute("SELECT 1 FROM turns WHERE state IN (0, 1) LIMIT 1").fetchone() is not None


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


def last_trace_id(ledger: Ledger) -> int:
    """Give the greatest trace id there is; 0 when there is none."""
    with ledger.read() as connection:
        row: Any = connection.execute("SELECT ifnull(max(trace_id), 0) FROM traces").fetchone()
    return int(row[0])


def purge_due(ledger: Ledger) -> str | None:
    """Tell since when forgotten bytes may still lie in snapshots, the summary cache or the WAL."""
    return ledger.meta().get(PURGE_DUE)


def summary_digests(ledger: Ledger) -> set[str]:
    """List the digests of the texts that the stored summaries cover."""
    with ledger.read() as connection:
        return {str(row[0]) for row in connection.execute("SELECT digest FROM summaries")}


def end_purge(ledger: Ledger, since: str) -> None:
    """Note that all bytes forgotten up to ``since`` are gone; empties the WAL as its last step."""
    with ledger.write() as connection:
        connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (PURGE_DUE, since))
    ledger.truncate_wal()


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
