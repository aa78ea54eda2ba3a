"""Nearest traces of one shard: the mapped snapshot, and by brute force the ledger's traces above its watermark.

Owns nothing on disk and writes nothing. A damaged or missing snapshot costs speed, never answers: every trace is then
above the watermark; its owner is told, who has it built anew. A new generation and a new commit are noticed at the
next search.

Why: a forgotten turn stays in the snapshot until the next one is built, so what a search finds counts only if the
ledger still has it; the search widens until enough of it does.
Why: a ledger restored from a backup gives out trace ids again that a newer snapshot knows as other traces; a snapshot
ahead of its ledger is therefore not used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import apsw
import numpy as np
import numpy.typing as npt
import structlog

from pipeline.errors import ShardError
from pipeline.ledger import reads
from pipeline.ledger.reads import Ids, Vectors
from pipeline.snapshot import Snapshot, SnapshotStore
from retrieval.tail import Tail

_KIND: Final = "traces"
_NOT_PUBLISHED: Final = "no snapshot yet, every trace was read from the ledger"
_SCAN_BLOCK: Final = 20_000
log = structlog.get_logger()

Scores = npt.NDArray[np.float32]


class _Trace(Protocol):
    """What is read of a trace: its id at least."""

    @property
    def trace_id(self) -> int: ...


Trace = TypeVar("Trace", bound=_Trace)
Read = Callable[[apsw.Connection, Ids], list[Trace]]
"""Fetches those of some traces that exist."""


@dataclass(frozen=True, slots=True)
class Nearest(Generic[Trace]):
    """The live traces nearest a query, nearest first, with their cosine ``(n,) float32``."""

    traces: list[Trace]
    similarities: Scores
    snapshot_problem: str = ""

    def first(self, k: int) -> Nearest[Trace]:
        """Give the ``k`` nearest of them."""
        return Nearest(self.traces[:k], self.similarities[:k], self.snapshot_problem)


@dataclass(frozen=True, slots=True)
class Generation:
    """A snapshot that was looked at, or the reason why none is used."""

    stamp: Any = None
    snapshot: Snapshot | None = None
    problem: str = _NOT_PUBLISHED
    opening: int = 0
    """Numbers the looks: a file that is damaged while it is open is looked at again under the same stamp."""

    def is_untouched(self) -> bool:
        """Tell whether nobody wrote to the file since it was checked."""
        return self.snapshot is None or self.snapshot.is_untouched()

    @property
    def watermark(self) -> int:
        """The trace id up to which the snapshot answers."""
        return 0 if self.snapshot is None else self.snapshot.watermark


@dataclass(frozen=True, slots=True)
class _Known:
    """What threads share; replaced as a whole, never changed."""

    model_key: str
    generation: Generation | None
    tail: Tail
    floor: int = 0
    last_id: int = 0


class TraceSearch:
    """Searches one shard's traces; safe to share between threads, and after a fork.

    Args:
        folder: the shard's.
        on_rejected: called when a snapshot could not be used.
    """

    def __init__(self, folder: Path, on_rejected: Callable[[], None]) -> None:
        self._on_rejected = on_rejected
        self._name = folder.name
        self._snapshots = SnapshotStore(folder)
        self._opening = threading.Lock()
        self._opened: Generation | None = None
        self._updating = threading.Lock()
        self._known: _Known | None = None

    def current_generation(self, model_key: str) -> Generation:
        """Open the newest snapshot unless it is open; call it before the ledger's transaction begins.

        Why: a snapshot opened later may be ahead of what the transaction sees, which is how a restored ledger looks.
        """
        with self._opening:
            stamp = self._snapshots.stamp(_KIND)
            opened = self._opened
            if opened is None or opened.stamp != stamp or not opened.is_untouched():
                self._opened = opened = self._open(stamp, model_key, 1 + (opened.opening if opened else 0))
            return opened

    def nearest(
        self,
        connection: apsw.Connection,
        generation: Generation,
        query: Vectors,
        k: int,
        *,
        model_key: str,
        allowed: Ids | None,
        read: Read[Trace],
    ) -> Nearest[Trace]:
        """Find the ``k`` live traces nearest a query ``(d,) float32, L2-normalised``; fewer only when fewer exist.

        ``read`` gives what is wanted of those that exist.

        Raises:
            ShardError: a vector in the ledger has the wrong length.
        """
        known = self._up_to_date(connection, generation, model_key, query.shape[0])
        search = _Search(connection, known, query, allowed, read)
        traces, similarities = search.run(k)
        problem = known.generation.problem if known.generation else ""
        return Nearest(traces, similarities, problem)

    def _open(self, stamp: Any, model_key: str, opening: int) -> Generation:
        try:
            snapshot = self._snapshots.open(_KIND, model_key=model_key)
        except ShardError as error:
            log.warning("snapshot.rejected", shard=self._name, error=str(error))
            self._on_rejected()
            return Generation(stamp, None, f"not used: {error}", opening)
        return Generation(stamp, snapshot, _NOT_PUBLISHED if snapshot is None else "", opening)

    def _up_to_date(
        self, connection: apsw.Connection, generation: Generation, model_key: str, dimension: int
    ) -> _Known:
        with self._updating:
            known = self._known
            if known is None or known.model_key != model_key:
                known = _Known(model_key, None, Tail(dimension))
            if known.generation is None or known.generation.opening != generation.opening:
                known = _with_generation(known, self._checked(connection, generation))
            ids, vectors = reads.vectors_above(connection, known.last_id, dimension)
            if ids.size:
                known = replace(known, tail=known.tail.extended(ids, vectors), last_id=int(ids[-1]))
            self._known = known
            return known

    def _checked(self, connection: apsw.Connection, generation: Generation) -> Generation:
        if generation.watermark <= reads.last_trace_id(connection):
            return generation
        log.warning("snapshot.rejected", shard=self._name, error="ahead of its ledger")
        problem = "not used: ahead of its ledger; was that restored from a backup?"
        return replace(generation, snapshot=None, problem=problem)


def _with_generation(known: _Known, generation: Generation) -> _Known:
    watermark = generation.watermark
    if watermark < known.floor:  # the tail does not reach down so far: read it again
        known = replace(known, tail=Tail(known.tail.vectors.shape[1]), last_id=watermark)
    return replace(
        known,
        generation=generation,
        tail=known.tail.above(watermark),
        floor=watermark,
        last_id=max(known.last_id, watermark),
    )


class _Search(Generic[Trace]):
    """One search for the nearest live traces."""

    def __init__(
        self, connection: apsw.Connection, known: _Known, query: Vectors, allowed: Ids | None, read: Read[Trace]
    ) -> None:
        self._connection = connection
        self._read: Read[Trace] = read
        self._snapshot = known.generation.snapshot if known.generation else None
        self._watermark = known.floor
        self._query = query
        self._allowed = allowed
        self._tail_ids, tail_vectors = known.tail.ids, known.tail.vectors
        if allowed is not None:
            is_allowed = is_among(self._tail_ids, allowed)
            self._tail_ids, tail_vectors = self._tail_ids[is_allowed], tail_vectors[is_allowed]
        self._tail_scores: Scores = tail_vectors @ query
        self._rows: dict[int, Trace] = {}
        self._looked_up: set[int] = set()

    def run(self, k: int) -> tuple[list[Trace], Scores]:
        width = k
        while width:
            scores, ids, is_complete = self._candidates(width)
            if not is_complete:  # an approximate index visits only some of its lists
                scores, ids = self._scan_ledger(width)
            self._look_up(ids)
            is_live = np.fromiter((i in self._rows for i in ids.tolist()), dtype=bool, count=len(ids))
            if len(ids) < width or int(is_live.sum()) >= k:
                return [self._rows[i] for i in ids[is_live][:k].tolist()], scores[is_live][:k]
            width *= 2
        return [], np.empty(0, dtype=np.float32)

    def _candidates(self, width: int) -> tuple[Scores, Ids, bool]:
        """Give the ``width`` nearest of snapshot and tail, and whether the snapshot gave all it should.

        Among allowed ids all of an index is looked at; what it then does not give was forgotten.
        """
        if self._snapshot is None:
            return *_best(self._tail_scores, self._tail_ids, width), True
        n_known = self._snapshot.count
        if self._allowed is not None:
            n_known = int(np.searchsorted(self._allowed, self._watermark, side="right"))
        wanted = min(width, n_known)
        if wanted == 0:
            return *_best(self._tail_scores, self._tail_ids, width), True
        scores, ids = self._snapshot.search(self._query, wanted, allowed_ids=self._allowed)
        is_complete = self._allowed is not None or len(ids) >= wanted
        all_scores, all_ids = np.concatenate((scores, self._tail_scores)), np.concatenate((ids, self._tail_ids))
        return *_best(all_scores, all_ids, width), is_complete

    def _scan_ledger(self, width: int) -> tuple[Scores, Ids]:
        ids = reads.trace_ids_up_to(self._connection, self._watermark)
        scores, best_ids = self._tail_scores, self._tail_ids
        for start in range(0, len(ids), _SCAN_BLOCK):
            block = ids[start : start + _SCAN_BLOCK]
            found, vectors = reads.vectors_of(self._connection, block, self._query.shape[0])
            scores = np.concatenate((scores, vectors @ self._query))
            best_ids = np.concatenate((best_ids, found))
            scores, best_ids = _best(scores, best_ids, width)
        return _best(scores, best_ids, width)

    def _look_up(self, ids: Ids) -> None:
        new = [i for i in ids.tolist() if i not in self._looked_up]
        self._looked_up.update(new)
        for row in self._read(self._connection, np.array(new, dtype=np.int64)):
            self._rows[row.trace_id] = row


def is_among(ids: Ids, allowed: Ids) -> npt.NDArray[np.bool_]:
    """Tell which ids are allowed; both ascending. Why not ``isin``: it costs by the many, not by the few."""
    if not allowed.size:
        return np.zeros(len(ids), dtype=np.bool_)
    places = np.searchsorted(allowed, ids).clip(max=len(allowed) - 1)
    return np.asarray(allowed[places] == ids)


def _best(scores: Scores, ids: Ids, k: int) -> tuple[Scores, Ids]:
    """Give the ``k`` greatest scores, descending; equal ones by id, so that an answer never varies."""
    if len(scores) > k:
        kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        scores, ids = scores[kept], ids[kept]
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]
