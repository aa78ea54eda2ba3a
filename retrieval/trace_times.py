"""When each trace of a shard was said, kept in memory: a time range is then one comparison instead of a join.

Nothing here outlives the process. What was forgotten stays in the list, and newer commits than a reader's own moment
may be in it: what a search finds counts only if its transaction has it.

Why it never goes stale: a trace belongs to one revision of one turn, and a revision's time does not change.
"""

from __future__ import annotations

import threading

import apsw
import numpy as np

from pipeline.ledger import reads
from pipeline.ledger.reads import Ids


class TraceTimes:
    """The times of one shard's traces, 16 bytes each, read once and then only what is new; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: Ids = np.empty(0, dtype=np.int64)
        self._times_ms: Ids = np.empty(0, dtype=np.int64)

    def between(self, connection: apsw.Connection, after_ms: int | None, before_ms: int | None) -> Ids:
        """List, ascending, the traces of turns said between two times, both included; None leaves an end open.

        All that the connection's transaction sees are among them.
        """
        ids, times_ms = self._up_to_date(connection)
        is_inside = np.ones(len(ids), dtype=np.bool_)
        if after_ms is not None:
            is_inside &= times_ms >= after_ms
        if before_ms is not None:
            is_inside &= times_ms <= before_ms
        return ids[is_inside]

    def _up_to_date(self, connection: apsw.Connection) -> tuple[Ids, Ids]:
        with self._lock:
            newest = int(self._ids[-1]) if self._ids.size else 0
            ids, times_ms = reads.trace_times_above(connection, newest)
            if ids.size:
                self._ids = np.concatenate((self._ids, ids))
                self._times_ms = np.concatenate((self._times_ms, times_ms))
            return self._ids, self._times_ms
