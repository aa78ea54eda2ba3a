"""Looking after a ledger: what it holds, which vectors an index is built from, and what is still to be purged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.ledger.events import PURGE_DUE
from pipeline.ledger.ledger import Ledger
from pipeline.ledger.schema import ASIDE
from pipeline.registry import Counts

_BLOCK_ROWS = 4_096
_COUNT = f"""
WITH aside AS (SELECT state, count(*) AS n FROM turns WHERE {ASIDE} GROUP BY state),
  due AS (SELECT count(*) AS n, ifnull(sum(closed AND attempts = 0), 0) AS closed FROM sessions WHERE state = 0),
  turns_in_all AS (SELECT count(*) AS n FROM turns)
SELECT (SELECT n FROM turns_in_all),
  (SELECT n FROM turns_in_all) - ifnull((SELECT sum(n) FROM aside), 0),
  ifnull((SELECT n FROM aside WHERE state = 3), 0),
  ifnull((SELECT sum(n) FROM aside WHERE state IN (0, 1)), 0),
  ifnull((SELECT n FROM aside WHERE state = 4), 0),
  (SELECT count(*) FROM traces), (SELECT count(*) FROM sessions), (SELECT count(*) FROM summaries),
  (SELECT n FROM due), (SELECT closed FROM due),
  (SELECT ifnull(sum(tokens_in), 0) FROM summaries), (SELECT ifnull(sum(tokens_out), 0) FROM summaries)
"""


def count(ledger: Ledger) -> Counts:
    """Count what the ledger holds, in one state of the file."""
    with ledger.read() as connection:
        row: Any = connection.execute(_COUNT).fetchone()
    return Counts(*row)


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
            "SELECT turn_offset, session_id, turn_id, attempts, failure FROM turns"
            f" WHERE {ASIDE} AND state = 4"
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
