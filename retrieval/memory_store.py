"""The traces of a scope, queried by cognitive score."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.ledger import reads
from pipeline.ledger.reads import TraceRow, Vectors
from pipeline.records import NEUTRAL, Mood, Scope
from retrieval.arguments import checked_with, require_moment, require_scope, require_text_or_vector
from retrieval.cognitive_score import ScoreParts, Weights, score
from retrieval.query_vector import QueryEmbedder, require_words, to_vector
from retrieval.reader import ShardReaders, View
from retrieval.trace_search import Nearest

COLLECTION_PREFIX: Final = "cogmem"
OVER_FETCH: Final = 2
"""Nearest vectors scored for each trace returned. Source: the AgentOS MemoryStore."""

Moment = datetime | str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTrace:
    """A trace with its text, its turn's fields and its score.

    ``score`` is the cognitive score (or, in profile ``fused``, the probability), unless a reranker blended it;
    ``relevance`` is the reranker's own.
    """

    trace_id: int
    turn_offset: int
    turn_id: str
    session_id: str
    role: str
    speaker: str | None
    text: str
    timestamp_ms: int
    tags: tuple[str, ...]
    score: float
    cognitive_score: float
    parts: ScoreParts | Mapping[str, float]
    relevance: float | None = None

    def blended(self, score: float, relevance: float) -> ScoredTrace:
        """Give this trace with a reranked score."""
        return replace(self, score=score, relevance=relevance)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuery:
    """The best traces, best first, and what finding them took."""

    scored: tuple[ScoredTrace, ...] = ()
    candidates_scanned: int = 0
    embedding_ms: float = 0.0
    vector_ms: float = 0.0
    scoring_ms: float = 0.0
    snapshot_problem: str = ""


class MemoryStore:
    """Queries the traces of one scope at a time; safe to share between threads.

    Args:
        readers: the open shards.
        embedder: embeds queries; its model must be the one the scope was written with.
        weights: of the cognitive score.
        clock: gives epoch milliseconds.
    """

    def __init__(
        self,
        readers: ShardReaders,
        embedder: QueryEmbedder,
        *,
        weights: Weights | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._readers = readers
        self._embedder = embedder
        self._weights = weights or Weights()
        self._clock = clock or epoch_ms

    @staticmethod
    @checked_with(scope=require_scope)
    def collection(scope: Scope) -> str:
        """Name the scope's collection, as in ``cogmem_user_u42``."""
        return scope.collection(COLLECTION_PREFIX)

    @checked_with(scope=require_scope)
    def exists(self, scope: Scope) -> bool:
        """Tell whether the scope has any trace."""
        with self._readers.view(scope, self._embedder.model_key) as view:
            return view is not None and view.has_traces()

    @checked_with(query=require_text_or_vector, scope=require_scope)
    def query(
        self,
        query: str | npt.NDArray[np.floating],
        scope: Scope,
        *,
        top_k: int,
        mood: Mood | tuple[float, float, float] = NEUTRAL,
        after: Moment | None = None,
        before: Moment | None = None,
        now_ms: int | None = None,
    ) -> MemoryQuery:
        """Find the ``top_k`` traces with the best cognitive score among the ``2 * top_k`` nearest.

        A scope that does not exist, or has nothing to search, gives an empty answer without embedding the query.

        Args:
            query: text (cut at the model's limit) or a vector ``(d,)``.
            scope: the one scope that is read.
            top_k: traces wanted; fewer come back only when fewer exist.
            mood: the mood of asking.
            after: leave out turns said before this time.
            before: leave out turns said after this time.
            now_ms: the time of asking; the clock's when None.

        Raises:
            ValueError: a blank query, a negative count, a time or mood that is none; the message names the argument.
            DimensionMismatchError: the vector has another dimension than the scope's.
            ModelMismatchError: the scope was written with another model.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        after_ms, before_ms = time_range(after, before)
        # A vector costs nothing more; a text is embedded only if there is something to compare it with.
        if top_k == 0 or (isinstance(query, str) and require_words(query) and not self.exists(scope)):
            return MemoryQuery()
        started = time.perf_counter()
        vector = to_vector(query, self._embedder)
        embedded = time.perf_counter()
        with self._readers.view(scope, self._embedder.model_key) as view:
            if view is None:
                return MemoryQuery()
            nearest = view.nearest(vector, OVER_FETCH * top_k, after_ms=after_ms, before_ms=before_ms)
            searched = time.perf_counter()
            best = self._best(view, nearest, top_k, Mood(*mood), self._clock() if now_ms is None else now_ms)
        return MemoryQuery(
            scored=best,
            candidates_scanned=len(nearest.traces),
            embedding_ms=1000 * (embedded - started),
            vector_ms=1000 * (searched - embedded),
            scoring_ms=1000 * (time.perf_counter() - searched),
            snapshot_problem=nearest.snapshot_problem,
        )

    @checked_with(scope=require_scope)
    def query_sessions(
        self,
        vector: Vectors,
        scope: Scope,
        session_ids: Sequence[str],
        *,
        top_k: int,
        mood: Mood | tuple[float, float, float] = NEUTRAL,
        after: Moment | None = None,
        before: Moment | None = None,
    ) -> tuple[ScoredTrace, ...]:
        """Score the ``top_k`` traces of each session that are nearest a vector ``(d,) float32, L2-normalised``.

        Raises:
            ValueError: a negative count, a time or mood that is none; the message names the argument.
            DimensionMismatchError: the vector has another dimension than the scope's.
            ModelMismatchError: the scope was written with another model.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        after_ms, before_ms = time_range(after, before)
        with self._readers.view(scope, self._embedder.model_key) as view:
            if view is None:
                return ()
            ids, cosines = view.nearest_of_sessions(
                vector, session_ids, top_k, after_ms=after_ms, before_ms=before_ms
            )
            similarity = dict(zip(ids.tolist(), cosines.tolist(), strict=True))
            traces = reads.traces(view.connection, ids)
            nearest = Nearest(traces, np.array([similarity[trace.trace_id] for trace in traces], dtype=np.float32))
            return self._best(view, nearest, len(traces), Mood(*mood), self._clock())

    def _best(
        self, view: View, nearest: Nearest[TraceRow], top_k: int, mood: Mood, now_ms: int
    ) -> tuple[ScoredTrace, ...]:
        scores, terms = score(nearest.traces, nearest.similarities, now_ms=now_ms, mood=mood, weights=self._weights)
        trace_ids = np.array([trace.trace_id for trace in nearest.traces], dtype=np.int64)
        order = np.lexsort((trace_ids, -scores))[:top_k].tolist()
        texts = view.contents([nearest.traces[i].turn_offset for i in order])
        return tuple(_scored(nearest.traces[i], texts, float(scores[i]), terms[i].tolist()) for i in order)


def _scored(trace: TraceRow, texts: dict[int, str], score: float, terms: list[float]) -> ScoredTrace:
    return ScoredTrace(
        trace_id=trace.trace_id,
        turn_offset=trace.turn_offset,
        turn_id=trace.turn_id,
        session_id=trace.session_id,
        role=trace.role,
        speaker=trace.speaker,
        text=texts[trace.turn_offset][trace.start : trace.stop],
        timestamp_ms=trace.timestamp_ms,
        tags=trace.tags,
        score=score,
        cognitive_score=score,
        parts=ScoreParts(*terms),
    )


def time_range(after: Moment | None, before: Moment | None) -> tuple[int | None, int | None]:
    """Read both ends of a time range as epoch milliseconds; an end without a zone is UTC.

    Raises:
        ValueError: an end is no time, or the range ends before it begins.
    """
    after_ms = None if after is None else require_moment("after", after)
    before_ms = None if before is None else require_moment("before", before)
    if after_ms is not None and before_ms is not None and after_ms > before_ms:
        raise ValueError("after: is later than before; swap them")
    return after_ms, before_ms


def epoch_ms() -> int:
    """Give the present in epoch milliseconds."""
    return time.time_ns() // 1_000_000
