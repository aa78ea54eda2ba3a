"""The vectors of a session's entries, a row each: grown in place, since copying 10 000 of them takes 20 ms.

Owns nothing on disk. What was handed out before shows new values in the rows of entries that changed since.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import numpy as np

from pipeline.ledger import session_reads
from pipeline.ledger.reads import Vectors
from retrieval.context.entries.entry import Entry


class EntryVectors:
    """One session's, for one thread at a time."""

    def __init__(self) -> None:
        self.not_embedded: set[int] = set()
        """Offsets of turns that have no vector yet."""
        self._rows: Vectors = np.empty((0, 0), dtype=np.float32)
        self._n_rows = 0

    @property
    def n_bytes(self) -> int:
        """What they take."""
        return self._rows.nbytes

    def view(self) -> Vectors:
        """Give the rows ``(n, d) float32``, not to be written to."""
        rows = self._rows[: self._n_rows]
        rows.flags.writeable = False
        return rows

    def arrange(self, sources: Sequence[int], dimension: int) -> None:
        """Have as many rows as there are sources, each a copy of the row it names; zeros for -1."""
        before, self._n_rows = self._rows, len(sources)
        self._rows = np.zeros((self._n_rows, dimension), dtype=np.float32)
        moved = [(at, source) for at, source in enumerate(sources) if source >= 0]
        if moved and before.shape[1] == dimension:
            to, source = np.array(moved).T
            self._rows[to] = before[source]

    def resize(self, n_rows: int) -> None:
        """Have so many rows; what is in new ones is to be read."""
        if n_rows > len(self._rows):
            grown = np.zeros((n_rows + n_rows // 4, self._rows.shape[1]), dtype=np.float32)
            grown[: self._n_rows] = self._rows[: self._n_rows]
            self._rows = grown
        self._n_rows = n_rows

    def read(self, connection: apsw.Connection, entries: Sequence[Entry], stale: Sequence[int]) -> None:
        """Read the rows of some entries: the mean direction of their turns' vectors, of length 1.

        Raises:
            ShardError: a vector has another length than the ledger's dimension.
        """
        if not stale:
            return
        homes = {offset: at for at in stale for offset in entries[at].turn_offsets}
        offsets, found = session_reads.turn_vectors(connection, list(homes), self._rows.shape[1])
        self.not_embedded |= homes.keys()
        self.not_embedded.difference_update(offsets.tolist())
        rows = np.array([homes[offset] for offset in offsets.tolist()], dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        at, starts = np.unique(rows[order], return_index=True)
        without = np.setdiff1d(np.asarray(stale, dtype=np.int64), at)
        if without.size:
            self._rows[without] = 0
        if at.size:
            sums = np.add.reduceat(found[order], starts, axis=0)
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            self._rows[at] = sums / np.maximum(lengths, np.finfo(np.float32).tiny)
