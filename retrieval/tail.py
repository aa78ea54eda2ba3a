"""The traces no snapshot knows yet: their vectors, read from the ledger and kept to be searched by brute force.

Nothing here outlives the process; after a crash the tail is read again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.ledger.reads import Ids, Vectors

_SPARE_ROWS: Final = 64


class Tail:
    """Ids (ascending) and vectors ``(n, d) float32, rows L2-normalised`` of traces above a watermark.

    Immutable to its readers: ``extended`` shares the buffers and writes only past this tail's end. It may be called
    on the latest tail alone.
    """

    __slots__ = ("_all_ids", "_all_vectors", "ids", "vectors")

    def __init__(self, dimension: int) -> None:
        self._all_ids = np.empty(0, dtype=np.int64)
        self._all_vectors = np.empty((0, dimension), dtype=np.float32)
        self.ids = self._all_ids
        self.vectors = self._all_vectors

    def extended(self, ids: Ids, vectors: Vectors) -> Tail:
        """Give this tail with newer traces at its end."""
        start, stop = len(self.ids), len(self.ids) + len(ids)
        longer = Tail(self.vectors.shape[1])
        longer._all_ids, longer._all_vectors = self._room_for(stop)
        longer._all_ids[start:stop] = ids
        longer._all_vectors[start:stop] = vectors
        longer.ids = longer._all_ids[:stop]
        longer.vectors = longer._all_vectors[:stop]
        return longer

    def above(self, watermark: int) -> Tail:
        """Give the part of this tail that lies above a newer watermark, in buffers of its own."""
        first = int(np.searchsorted(self.ids, watermark, side="right"))
        return Tail(self.vectors.shape[1]).extended(self.ids[first:], self.vectors[first:])

    def _room_for(self, n: int) -> tuple[Ids, Vectors]:
        if n <= len(self._all_ids):
            return self._all_ids, self._all_vectors
        capacity = n + n // 4 + _SPARE_ROWS  # geometric, so that growing stays cheap
        ids = np.empty(capacity, dtype=np.int64)
        vectors = np.empty((capacity, self.vectors.shape[1]), dtype=np.float32)
        ids[: len(self.ids)], vectors[: len(self.ids)] = self.ids, self.vectors
        return ids, vectors
