"""One scope as a reader sees it, and the scopes a process keeps open.

Owns nothing on disk, and writes nothing but a word for the workers when a snapshot cannot be used; a scope that does
not exist stays that way. A ledger that was removed or
replaced is noticed at the next view.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw
import numpy as np

from pipeline.errors import DimensionMismatchError, ModelMismatchError
from pipeline.ledger import passage_reads, reads
from pipeline.ledger.connection import read_meta
from pipeline.ledger.reads import Ids, Located, SummaryRow, TraceRow, TurnRow, Vectors
from pipeline.records import Scope
from pipeline.shards import Shards
from retrieval.call_for_rebuild import have_rebuilt
from retrieval.connections import Connections, IdleConnections
from retrieval.fork_gate import ForkGate
from retrieval.search.index import SearchIndex, State
from retrieval.trace_search import Generation, Nearest, Read, Trace, TraceSearch
from retrieval.trace_times import TraceTimes

Neighbours = dict[int, tuple[tuple[TurnRow, ...], tuple[TurnRow, ...]]]


@dataclass(frozen=True, slots=True)
class SummaryVectors:
    """The sessions that have a summary, and the summaries' vectors ``(n, d) float32``, row by row."""

    session_ids: tuple[str, ...]
    vectors: Vectors


class ShardReader:
    """Reads one existing shard; safe to share between threads, and after a fork."""

    def __init__(self, shards: Shards, scope: Scope, idle: IdleConnections, *, busy_timeout_ms: int) -> None:
        self.scope = scope
        self.path = shards.ledger_path(scope)
        self.connections = Connections(self.path, scope, idle, busy_timeout_ms=busy_timeout_ms)
        self.trace_search = TraceSearch(shards.folder(scope), lambda: have_rebuilt(shards, scope))
        self.trace_times = TraceTimes()
        self.summary_cache = SummaryCache()
        self.search_index = SearchIndex()

    @contextmanager
    def view(self, model_key: str) -> Iterator[View]:
        """Look at the shard as it is at one moment, with queries of one embedding model.

        Raises:
            ShardError: the ledger is damaged, unreadable or another scope's.
            TransientError: the ledger is locked, or this process has too many files open.
        """
        generation = self.trace_search.current_generation(model_key)
        with self.connections.borrowed() as connection:
            yield View(self, connection, model_key, generation)


class View:
    """What a shard holds at one moment; valid inside its ``with`` block."""

    def __init__(
        self, reader: ShardReader, connection: apsw.Connection, model_key: str, generation: Generation
    ) -> None:
        self._reader = reader
        self.connection = connection
        self._model_key = model_key
        self._generation = generation

    def words(self) -> State:
        """Give what the shard holds of words and sessions; ask for it before anything else of the view.

        Raises:
            ShardError: the ledger is damaged.
        """
        return self._reader.search_index.up_to_date(self.connection)

    def nearest(
        self, query: Vectors, k: int, *, after_ms: int | None = None, before_ms: int | None = None
    ) -> Nearest[TraceRow]:
        """Find the ``k`` traces nearest a query ``(d,) float32, L2-normalised``, said between two times.

        Both ends are included, and applied inside the search: ``k`` traces are found if as many exist.

        Raises:
            DimensionMismatchError: the query has another dimension than the shard.
            ModelMismatchError: the shard's vectors are another model's.
            ShardError: the ledger is damaged.
        """
        return self._nearest(query, k, after_ms, before_ms, reads.traces)

    def nearest_places(
        self, query: Vectors, k: int, *, after_ms: int | None = None, before_ms: int | None = None
    ) -> Nearest[Located]:
        """Do the same, without a turn's fields: 0.2 ms instead of 0.4 for fifty.

        Raises:
            DimensionMismatchError: the query has another dimension than the shard.
            ModelMismatchError: the shard's vectors are another model's.
            ShardError: the ledger is damaged.
        """
        return self._nearest(query, k, after_ms, before_ms, reads.located)

    def _nearest(
        self, query: Vectors, k: int, after_ms: int | None, before_ms: int | None, read: Read[Trace]
    ) -> Nearest[Trace]:
        if not self._has_vectors(query):
            return Nearest([], np.empty(0, dtype=np.float32))
        allowed = None
        if after_ms is not None or before_ms is not None:
            allowed = self._reader.trace_times.between(self.connection, after_ms, before_ms)
        return self._reader.trace_search.nearest(
            self.connection, self._generation, query, k, model_key=self._model_key, allowed=allowed, read=read
        )

    def nearest_of_sessions(
        self,
        query: Vectors,
        session_ids: Sequence[str],
        k: int,
        *,
        after_ms: int | None = None,
        before_ms: int | None = None,
    ) -> tuple[Ids, Vectors]:
        """Find the ``k`` traces of each session, said between two times, that are nearest a query.

        Returns:
            Their ids, ascending, and their cosines, of all sessions together.

        Raises:
            DimensionMismatchError: the query has another dimension than the shard.
            ModelMismatchError: the shard's vectors are another model's.
            ShardError: the ledger is damaged.
        """
        found: dict[int, float] = {}
        if session_ids and self._has_vectors(query):
            found_of = passage_reads.traces_of_sessions(self.connection, session_ids, after_ms, before_ms)
            for of_session in found_of.values():
                ids, vectors = reads.vectors_of(self.connection, np.sort(of_session), query.shape[0])
                cosines = vectors @ query
                best = np.lexsort((ids, -cosines))[:k]
                found |= zip(ids[best].tolist(), cosines[best].tolist(), strict=True)
        ordered = sorted(found)
        return np.array(ordered, dtype=np.int64), np.array([found[i] for i in ordered], dtype=np.float32)

    def summary_vectors(self, query: Vectors) -> SummaryVectors:
        """Give the summaries' vectors, after checking that they can be compared with a query ``(d,) float32``.

        Raises:
            DimensionMismatchError: the query has another dimension than the shard.
            ModelMismatchError: the shard's vectors are another model's.
            ShardError: the ledger is damaged.
        """
        if not self.has_summaries() or not self._has_vectors(query):
            return SummaryVectors((), np.empty((0, query.shape[0]), dtype=np.float32))
        return self._reader.summary_cache.up_to_date(self.connection, self._model_key, query.shape[0])

    def has_traces(self) -> bool:
        """Tell whether there is anything to search."""
        return reads.has_traces(self.connection)

    def has_summaries(self) -> bool:
        """Tell whether any session has a summary."""
        return reads.summary_stamp(self.connection)[1] > 0

    def summaries(self) -> list[SummaryRow]:
        """List the summaries by session id."""
        return reads.summaries(self.connection)

    def contents(self, turn_offsets: Sequence[int]) -> dict[int, str]:
        """Fetch the text of turns by offset."""
        return reads.contents(self.connection, turn_offsets)

    def neighbours(self, turn_offsets: Sequence[int], n: int) -> Neighbours:
        """Fetch up to ``n`` turns before and after each turn in its session."""
        return reads.neighbours(self.connection, turn_offsets, n)

    def _has_vectors(self, query: Vectors) -> bool:
        meta = read_meta(self.connection)
        written_by = meta.get("model_key")
        if written_by is None:
            return False
        dimension = int(meta["dimension"])
        if query.shape != (dimension,):
            raise DimensionMismatchError(
                f"the query vector has shape {query.shape}, the memory of {self._reader.scope} holds vectors of"
                f" {dimension} numbers by {written_by}; embed the query with that model"
            )
        if written_by != self._model_key:
            raise ModelMismatchError(
                f"the memory of {self._reader.scope} was embedded with {written_by}, the settings name"
                f" {self._model_key}; set TURNSTREAM_EMBEDDING__MODEL and __BACKEND back,"
                " or backfill into a new data folder"
            )
        return True


class SummaryCache:
    """A scope's summary vectors, read again when the set of summaries has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamp: tuple[str, int, int] | None = None
        self._vectors = SummaryVectors((), np.empty((0, 0), dtype=np.float32))

    def up_to_date(self, connection: apsw.Connection, model_key: str, dimension: int) -> SummaryVectors:
        """Give the vectors as the connection's transaction sees them.

        Raises:
            ShardError: a vector has the wrong length.
        """
        stamp = (model_key, *reads.summary_stamp(connection))
        with self._lock:
            if self._stamp != stamp:
                self._vectors = SummaryVectors(*reads.summary_vectors(connection, dimension))
                self._stamp = stamp
            return self._vectors


class ShardReaders:
    """The shards one process keeps open, least recently used first to go; safe to share between threads.

    Args:
        shards: where the shards are.
        max_open: shards kept open, each with a mapped snapshot.
        max_idle: connections kept open while nobody reads, over all shards, at three file descriptors each; by the
            process's limit when None.
        busy_timeout_ms: longest wait for a locked ledger.
    """

    def __init__(
        self, shards: Shards, *, max_open: int = 256, max_idle: int | None = None, busy_timeout_ms: int = 30_000
    ) -> None:
        self.shards = shards
        self.busy_timeout_ms = busy_timeout_ms
        self.idle = IdleConnections(max_idle)
        self.gate = ForkGate(self.idle.close_all)
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[Scope, tuple[tuple[int, int], ShardReader]] = OrderedDict()

    @contextmanager
    def view(self, scope: Scope, model_key: str) -> Iterator[View | None]:
        """Look at a scope as it is at one moment; None when it does not exist.

        Raises:
            ShardError: the ledger is damaged, unreadable or another scope's.
            TransientError: the ledger is locked, or this process has too many files open.
        """
        with self.gate.passing():
            reader = self._reader(scope)
            if reader is None:
                yield None
            else:
                with reader.view(model_key) as view:
                    yield view

    @contextmanager
    def words(self, scope: Scope) -> Iterator[tuple[apsw.Connection, State] | None]:
        """Look at a scope's words and sessions as they are at one moment, without vectors; None when it is not there.

        Raises:
            ShardError: the ledger is damaged, unreadable or another scope's.
            TransientError: the ledger is locked, or this process has too many files open.
        """
        with self.gate.passing():
            reader = self._reader(scope)
            if reader is None:
                yield None
            else:
                with reader.connections.borrowed() as connection:
                    yield connection, reader.search_index.up_to_date(connection)

    @contextmanager
    def session_view(self, scope: Scope) -> Iterator[tuple[apsw.Connection, ShardReader] | None]:
        """Look at a scope's rows as they are at one moment; None when it is not there.

        The reader is another one once the ledger was replaced: what is known of the old one counts no more.

        Raises:
            ShardError: the ledger is damaged, unreadable or another scope's.
            TransientError: the ledger is locked, or this process has too many files open.
        """
        with self.gate.passing():
            reader = self._reader(scope)
            if reader is None:
                yield None
            else:
                with reader.connections.borrowed() as connection:
                    yield connection, reader

    def close(self) -> None:
        """Close every shard; a later view opens it again."""
        with self.gate.passing():
            with self._lock:
                readers, self._open = [reader for _, reader in self._open.values()], OrderedDict()
            for reader in readers:
                reader.connections.retire()

    def _reader(self, scope: Scope) -> ShardReader | None:
        open_one = self._open.get(scope)
        identity = _identity(open_one[1].path if open_one else self.shards.ledger_path(scope))
        retired = []
        with self._lock:
            known = self._open.get(scope)
            if known is not None and known[0] != identity:  # purged, or restored from a backup
                retired.append(self._open.pop(scope)[1])
            if identity is None:
                reader = None
            elif scope in self._open:
                self._open.move_to_end(scope)
                reader = self._open[scope][1]
            else:
                reader = ShardReader(self.shards, scope, self.idle, busy_timeout_ms=self.busy_timeout_ms)
                self._open[scope] = (identity, reader)
            while len(self._open) > self._max_open:
                retired.append(self._open.popitem(last=False)[1][1])
        for surplus in retired:
            surplus.connections.retire()
        return reader


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino
