"""Retrieval in two stages: first the sessions a query is about, then the best traces of those sessions.

Reads one scope and changes nothing.

Source: stages, defaults, fallbacks and their names are those of the AgentOS SessionRetriever documentation. Unlike
the original, the query is embedded once, and every fallback says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import DimensionMismatchError, ModelMismatchError, ShardError, TransientError
from pipeline.ledger.reads import Vectors
from pipeline.records import NEUTRAL, SESSION_TAG_PREFIX, Mood, Scope
from retrieval.arguments import checked, checked_with, require_scope
from retrieval.memory_store import MemoryQuery, MemoryStore, Moment, ScoredTrace, time_range
from retrieval.query_vector import QueryEmbedder, require_words, to_vector
from retrieval.reader import Neighbours
from retrieval.rerank import Reranker, best_first, reranked
from retrieval.summary_store import SessionMatch, SessionSummaryStore

STAGE1_EMPTY: Final = "session-retriever:stage1-empty"
STAGE2_EMPTY: Final = "session-retriever:stage2-empty"
OVER_FETCH: Final = 3
"""Traces asked for in stage 2 for each one that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What a retrieve looked at, how long it took (milliseconds), and why it did what it did.

    ``stages`` holds trace ids after each stage: ``pool``, ``completed`` (with coverage), ``of_selected_sessions``,
    ``merged``, ``returned``; of profile ``fused``: ``pool``, ``returned``. ``answer_is_likely`` is False when that
    profile doubts that anything in the scope answers the question.
    ``reasons`` explains each escalation by its name, and under ``rerank`` and ``snapshot`` what could not be used.
    """

    candidates_scanned: int = 0
    embedding_ms: float = 0.0
    stage1_ms: float = 0.0
    words_ms: float = 0.0
    vector_ms: float = 0.0
    scoring_ms: float = 0.0
    rerank_ms: float = 0.0
    total_ms: float = 0.0
    sessions: tuple[SessionMatch, ...] = ()
    answer_is_likely: bool = True
    stages: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    escalations: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionRetrieval:
    """Scored traces, best first, how they were found, and what stands around them, if that was read."""

    retrieved: tuple[ScoredTrace, ...]
    diagnostics: Diagnostics
    neighbours: Neighbours | None = None


class SessionRetriever:
    """Finds sessions, then traces in them; safe to share between threads.

    Args:
        summary_store: stage 1.
        memory_store: stage 2.
        embedder: embeds the query, once for both.
        reranker: reads the best traces again; None leaves them in the order of their cognitive score.
        default_top_sessions: sessions selected when a retrieve does not say.
        default_chunks_per_session: traces kept of each when a retrieve does not say.
    """

    @checked
    def __init__(
        self,
        summary_store: SessionSummaryStore,
        memory_store: MemoryStore,
        embedder: QueryEmbedder,
        reranker: Reranker | None = None,
        default_top_sessions: int = 5,
        default_chunks_per_session: int = 3,
    ) -> None:
        self._summary_store = summary_store
        self._memory_store = memory_store
        self._embedder = embedder
        self._reranker = reranker
        self._default_top_sessions = default_top_sessions
        self._default_chunks_per_session = default_chunks_per_session

    @checked_with(scope=require_scope)
    def retrieve(  # noqa: PLR0913 - the contract; all but two have defaults
        self,
        query: str,
        scope: Scope,
        mood: Mood | tuple[float, float, float] = NEUTRAL,
        *,
        top_sessions: int | None = None,
        chunks_per_session: int | None = None,
        recall_top_k: int = 10,
        session_tag_prefix: str = SESSION_TAG_PREFIX,
        coverage: bool = False,
        after: Moment | None = None,
        before: Moment | None = None,
    ) -> SessionRetrieval:
        """Find what was said about a query in one scope.

        Args:
            query: what is asked; the model reads its first few hundred tokens.
            scope: the one scope that is read.
            mood: the mood of asking.
            top_sessions: sessions selected in stage 1.
            chunks_per_session: traces kept of each.
            recall_top_k: traces returned at most.
            session_tag_prefix: begins the tag that names a trace's session.
            coverage: ask for each selected session's nearest chunks beside the pool, so that none is empty-handed.
            after: leave out turns said before this time.
            before: leave out turns said after this time.

        Raises:
            ValueError: a blank query, a negative count, a time or mood that is none; the message names the argument.
            ModelMismatchError: the scope was written with another model than the embedder's.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        n_sessions = self._default_top_sessions if top_sessions is None else top_sessions
        n_chunks = self._default_chunks_per_session if chunks_per_session is None else chunks_per_session
        require_words(query)
        time_range(after, before)
        retrieve = _Retrieve(
            query, scope, Mood(*mood), self._embedder, self._summary_store, self._memory_store, (after, before)
        )
        if not retrieve.select_sessions(n_sessions):
            return retrieve.without_sessions(recall_top_k)
        pool = retrieve.pool(n_sessions * n_chunks * OVER_FETCH)
        if coverage:
            pool = retrieve.completed(pool, n_chunks)
        groups = retrieve.grouped(pool, session_tag_prefix)
        if not groups:
            return retrieve.without_filter(pool, recall_top_k)
        merged = [trace for group in groups.values() for trace in group[:n_chunks]]
        return retrieve.finished(retrieve.ordered(merged, self._reranker), recall_top_k)


class _Retrieve:
    """One retrieve on its way through the stages, and what there is to say about it."""

    def __init__(
        self,
        query: str,
        scope: Scope,
        mood: Mood,
        embedder: QueryEmbedder,
        summary_store: SessionSummaryStore,
        memory_store: MemoryStore,
        time_limits: tuple[Moment | None, Moment | None],
    ) -> None:
        self._started = time.perf_counter()
        self._query = query
        self._scope = scope
        self._mood = mood
        self._embedder = embedder
        self._summary_store = summary_store
        self._memory_store = memory_store
        self._after, self._before = time_limits
        self._vector: Vectors | None = None
        self._sessions: list[SessionMatch] = []
        self._found = MemoryQuery()
        self._embedding_ms = self._stage1_ms = self._rerank_ms = 0.0
        self._stages: dict[str, tuple[int, ...]] = {}
        self._escalations: list[str] = []
        self._reasons: dict[str, str] = {}

    def select_sessions(self, n: int) -> bool:
        """Stage 1. Tell whether any session was selected."""
        started = time.perf_counter()
        reason = "top_sessions is 0" if n == 0 else self._query_summaries(n)
        self._stage1_ms = 1000 * (time.perf_counter() - started) - self._embedding_ms
        if not self._sessions:
            self._escalate(STAGE1_EMPTY, reason)
        return bool(self._sessions)

    def pool(self, n: int) -> Sequence[ScoredTrace]:
        """Stage 2: one query of the memory store."""
        query = self._query if self._vector is None else self._vector
        self._found = self._memory_store.query(
            query, self._scope, top_k=n, mood=self._mood, after=self._after, before=self._before
        )
        self._embedding_ms += self._found.embedding_ms if self._vector is None else 0.0
        if self._found.snapshot_problem:
            self._reasons["snapshot"] = self._found.snapshot_problem
        self._note("pool", self._found.scored)
        return self._found.scored

    def completed(self, pool: Sequence[ScoredTrace], n: int) -> Sequence[ScoredTrace]:
        """Add the ``n`` nearest traces of each selected session to the pool; best first."""
        assert self._vector is not None
        selected = [match.session_id for match in self._sessions]
        of_sessions = self._memory_store.query_sessions(
            self._vector, self._scope, selected, top_k=n, mood=self._mood, after=self._after, before=self._before
        )
        known = {trace.trace_id for trace in pool}
        complete = best_first([*pool, *(trace for trace in of_sessions if trace.trace_id not in known)])
        self._note("completed", complete)
        return complete

    def grouped(self, pool: Sequence[ScoredTrace], prefix: str) -> dict[str, list[ScoredTrace]]:
        """Keep the traces of selected sessions, by session, both in the pool's order."""
        selected = {match.session_id for match in self._sessions}
        groups: dict[str, list[ScoredTrace]] = {}
        for trace in pool:
            session_id = session_of(trace.tags, prefix)
            if session_id is not None and session_id in selected:
                groups.setdefault(session_id, []).append(trace)
        self._note("of_selected_sessions", [trace for group in groups.values() for trace in group])
        return groups

    def ordered(self, merged: Sequence[ScoredTrace], reranker: Reranker | None) -> list[ScoredTrace]:
        """Rerank, or sort by cognitive score."""
        self._note("merged", merged)
        if reranker is None:
            return best_first(merged)
        started = time.perf_counter()
        ordered, failure = reranked(reranker, self._query, merged)
        self._rerank_ms = 1000 * (time.perf_counter() - started)
        if failure:
            self._reasons["rerank"] = f"rerank failed, kept session by session: {failure}"
        return ordered

    def without_sessions(self, n: int) -> SessionRetrieval:
        """Fall back to one plain query of the memory store."""
        return self.finished(self.pool(n), n)

    def without_filter(self, pool: Sequence[ScoredTrace], n: int) -> SessionRetrieval:
        """Fall back to the pool as it is."""
        self._escalate(
            STAGE2_EMPTY,
            f"none of the {len(pool)} traces in the pool belongs to a selected session" if pool else "empty pool",
        )
        return self.finished(pool, n)

    def finished(self, ordered: Sequence[ScoredTrace], n: int) -> SessionRetrieval:
        """Cut to the number wanted and hand over."""
        retrieved = tuple(ordered[:n])
        self._note("returned", retrieved)
        diagnostics = Diagnostics(
            candidates_scanned=self._found.candidates_scanned,
            embedding_ms=self._embedding_ms,
            stage1_ms=self._stage1_ms,
            vector_ms=self._found.vector_ms,
            scoring_ms=self._found.scoring_ms,
            rerank_ms=self._rerank_ms,
            total_ms=1000 * (time.perf_counter() - self._started),
            sessions=tuple(self._sessions),
            stages=self._stages,
            escalations=tuple(self._escalations),
            reasons=self._reasons,
        )
        return SessionRetrieval(retrieved, diagnostics)

    def _query_summaries(self, n: int) -> str:
        """Query stage 1 and give the reason why nothing came of it, if nothing did."""
        try:
            if not self._summary_store.exists(self._scope):
                return "cold scope: no session has a summary yet"
            self._embed()
            assert self._vector is not None
            self._sessions = self._summary_store.query_sessions(self._vector, self._scope, n)
        except (DimensionMismatchError, ModelMismatchError) as error:
            return f"dimension mismatch: {error}"
        except (ShardError, TransientError) as error:
            return f"error: {error}"
        return "cold scope: the summaries were forgotten meanwhile"

    def _embed(self) -> None:
        started = time.perf_counter()
        self._vector = to_vector(self._query, self._embedder)
        self._embedding_ms = 1000 * (time.perf_counter() - started)

    def _escalate(self, name: str, reason: str) -> None:
        self._escalations.append(name)
        self._reasons[name] = reason

    def _note(self, stage: str, traces: Sequence[ScoredTrace]) -> None:
        self._stages[stage] = tuple(trace.trace_id for trace in traces)


def session_of(tags: Sequence[str], prefix: str) -> str | None:
    """Give what follows the prefix in the first tag that starts with it, as it is; None without such a tag."""
    return next((tag[len(prefix) :] for tag in tags if tag.startswith(prefix)), None)
