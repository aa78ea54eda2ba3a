"""Retrieval in one stage: candidates by words and by meaning, ranked by one small model that sees both.

Reads one scope and changes nothing. Nothing is a gate: sessions, speakers, dates and neighbours are evidence. The
score of a hit is the probability that it answers the question, so that a question about something that was never said
says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import numpy as np

from pipeline.ledger import passage_reads, reads
from pipeline.ledger.reads import Ids, Vectors
from pipeline.records import NEUTRAL, Mood, Scope
from retrieval import passage_search
from retrieval.arguments import checked, checked_with, require_scope
from retrieval.embedded_question import Asked, ask
from retrieval.fused.model import Models, bundled_models
from retrieval.fused.passages import Floats
from retrieval.fused.ranking import Coverage, rank
from retrieval.memory_store import Moment, ScoredTrace, epoch_ms, time_range
from retrieval.passage_search import Found, Place
from retrieval.query_vector import QueryEmbedder, require_words
from retrieval.reader import Neighbours, ShardReaders, View
from retrieval.rerank import Reranker, reranked
from retrieval.session_retriever import Diagnostics, SessionRetrieval
from retrieval.summary_store import SessionMatch

NO_TOKEN_VECTORS: Final = "fused:no-token-vectors"  # noqa: S105 - tokens of a text
NO_WORDS: Final = "fused:no-words"
NO_VECTORS: Final = "fused:no-vectors"
RERANKED: Final = 30
"""Hits that a reranker reads, or as many as are wanted if that is more."""


class FusedRetriever:
    """Finds and ranks passages of one scope at a time; safe to share between threads.

    Args:
        readers: the open shards.
        embedder: embeds questions; without token vectors (`TokenEmbedder`) ranking does without, too.
        reranker: reads the best hits again.
        default_top_sessions: sessions named in the diagnostics, and given their best chunks by ``coverage``.
        default_chunks_per_session: chunks that ``coverage`` gives each of them.
        clock: gives epoch milliseconds; what "last May" is seen from.
        models: rank; the bundled ones when None.
        n_neighbours: turns before and after each hit that are read in the same view; none are with a reranker, which
            has yet to choose the hits.
    """

    @checked
    def __init__(
        self,
        readers: ShardReaders,
        embedder: QueryEmbedder,
        reranker: Reranker | None = None,
        default_top_sessions: int = 5,
        default_chunks_per_session: int = 3,
        *,
        clock: Callable[[], int] | None = None,
        models: Models | None = None,
        n_neighbours: int = 0,
    ) -> None:
        self._readers = readers
        self._embedder = embedder
        self._reranker = reranker
        self._default_top_sessions = default_top_sessions
        self._default_chunks_per_session = default_chunks_per_session
        self._clock = clock or epoch_ms
        self._models = models or bundled_models()
        self._n_neighbours = 0 if reranker else n_neighbours

    @checked_with(scope=require_scope)
    def retrieve(  # noqa: PLR0913 - the same as the other profile's; all but two have defaults
        self,
        query: str,
        scope: Scope,
        mood: Mood = NEUTRAL,  # noqa: ARG002 - the same signature; how the asker feels does not tell what was said
        *,
        top_sessions: int | None = None,
        chunks_per_session: int | None = None,
        recall_top_k: int = 10,
        coverage: bool = False,
        after: Moment | None = None,
        before: Moment | None = None,
        asked_at: Moment | None = None,
    ) -> SessionRetrieval:
        """Find what answers a question in one scope.

        Args:
            query: what is asked; the model reads its first few hundred tokens.
            scope: the one scope that is read.
            mood: not looked at.
            top_sessions: sessions that ``coverage`` is for, and that the diagnostics name.
            chunks_per_session: chunks that ``coverage`` gives each of them.
            recall_top_k: hits returned at most.
            coverage: give each of the best sessions its best chunks, before further chunks of any of them.
            after: leave out turns said before this time.
            before: leave out turns said after this time.
            asked_at: the time of asking, for dates such as "last May"; the clock's when None.

        Raises:
            ValueError: a blank query, a negative count, or a time that is none; the message names the argument.
            ModelMismatchError: the scope was written with another model than the embedder's.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        n_sessions = self._default_top_sessions if top_sessions is None else top_sessions
        n_chunks = self._default_chunks_per_session if chunks_per_session is None else chunks_per_session
        require_words(query)
        limits = time_range(after, before)
        now_ms = time_range(asked_at, None)[0]
        retrieve = _Retrieve(
            scope, self._readers, self._embedder, self._models, self._clock() if now_ms is None else now_ms
        )
        if recall_top_k == 0 or not retrieve.ask(query):
            return retrieve.finished([])
        n_ranked = recall_top_k if self._reranker is None else max(recall_top_k, RERANKED)
        with retrieve.view() as view:
            if view is None:  # forgotten meanwhile
                return retrieve.finished([])
            ranked = retrieve.ranked(view, limits, n_ranked, n_sessions, n_chunks if coverage else 0)
            retrieve.note_neighbours(view, ranked, self._n_neighbours)
        if self._reranker is not None:
            ranked = retrieve.reread(ranked, self._reranker)
        return retrieve.finished(ranked[:recall_top_k])

    @checked_with(scope=require_scope)
    def candidates(self, query: str, scope: Scope, *, asked_at: Moment | None = None) -> Found | None:
        """Give everything ranking sees of a question, before it ranks; None when there is nothing to search.

        Raises:
            ValueError: a blank query, or a time that is none.
            ModelMismatchError: the scope was written with another model than the embedder's.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        require_words(query)
        now_ms = time_range(asked_at, None)[0]
        retrieve = _Retrieve(
            scope, self._readers, self._embedder, self._models, self._clock() if now_ms is None else now_ms
        )
        if not retrieve.ask(query):
            return None
        with retrieve.view() as view:
            if view is None:
                return None
            found = retrieve.found(view, (None, None), None)
            return replace(found, passages=found.passages.read())


class _Retrieve:
    """One retrieve on its way, and what there is to say about it."""

    def __init__(
        self, scope: Scope, readers: ShardReaders, embedder: QueryEmbedder, models: Models, asked_ms: int
    ) -> None:
        self._started = time.perf_counter()
        self._scope = scope
        self._readers = readers
        self._embedder = embedder
        self._models = models
        self._asked_ms = asked_ms
        self._asked: Asked | None = None
        self._times: dict[str, float] = {}
        self._n_scanned = 0
        self._answer_is_likely = True
        self._sessions: tuple[SessionMatch, ...] = ()
        self._stages: dict[str, tuple[int, ...]] = {}
        self._reasons: dict[str, str] = {}
        self._neighbours: Neighbours | None = None

    def view(self) -> AbstractContextManager[View | None]:
        """Look at the scope as it is now."""
        return self._readers.view(self._scope, self._embedder.model_key)

    def ask(self, query: str) -> bool:
        """Embed the question; without anything to search it is not, and False is the answer.

        Why a view of its own: what is forgotten while the model reads is not found any more.
        """
        with self.view() as view:
            if view is None or not view.has_traces():
                return False
            names = passage_reads.speakers(view.connection)
        started = time.perf_counter()
        self._asked = ask(query, names, self._embedder)
        self._times["embedding_ms"] = 1000 * (time.perf_counter() - started)
        return True

    def ranked(
        self, view: View, limits: tuple[int | None, int | None], limit: int, n_sessions: int, n_each: int
    ) -> list[ScoredTrace]:
        """Find and rank candidates; the best ``limit`` of them, ``n_each`` at least of each of the best sessions."""
        assert self._asked is not None
        also = best_of_sessions(view, self._asked.embedded.vector, n_sessions, n_each) if n_each else None
        found = self.found(view, limits, also)
        started = time.perf_counter()
        ranked = self._scored(view, found, limit, n_sessions, n_each)
        self._note_found(found)
        self._times["scoring_ms"] = 1000 * (time.perf_counter() - started)
        return ranked

    def note_neighbours(self, view: View, ranked: Sequence[ScoredTrace], n: int) -> None:
        """Read up to ``n`` turns before and after each; 0: not here."""
        if n:
            self._neighbours = view.neighbours([trace.turn_offset for trace in ranked], n)

    def found(self, view: View, limits: tuple[int | None, int | None], also: Ids | None) -> Found:
        """Find the candidates between two times."""
        assert self._asked is not None
        return passage_search.find(
            view,
            self._asked,
            asked_ms=self._asked_ms,
            after_ms=limits[0],
            before_ms=limits[1],
            also=also,
            with_summaries=self._models.needs_summaries,
        )

    def reread(self, ranked: list[ScoredTrace], reranker: Reranker) -> list[ScoredTrace]:
        """Blend the reranker's relevance into the scores, and sort by them."""
        assert self._asked is not None
        started = time.perf_counter()
        read, failure = reranked(reranker, self._asked.asking.text, ranked)
        self._times["rerank_ms"] = 1000 * (time.perf_counter() - started)
        if failure:
            self._reasons["rerank"] = f"rerank failed, kept as they were ranked: {failure}"
        return read

    def finished(self, retrieved: Sequence[ScoredTrace]) -> SessionRetrieval:
        """Hand over."""
        self._stages["returned"] = tuple(trace.trace_id for trace in retrieved)
        diagnostics = Diagnostics(
            candidates_scanned=self._n_scanned,
            total_ms=1000 * (time.perf_counter() - self._started),
            sessions=self._sessions,
            answer_is_likely=self._answer_is_likely,
            stages=self._stages,
            escalations=tuple(name for name in self._reasons if name.startswith("fused:")),
            reasons=self._reasons,
            **self._times,
        )
        return SessionRetrieval(tuple(retrieved), diagnostics, self._neighbours)

    def _scored(self, view: View, found: Found, limit: int, n_sessions: int, n_each: int) -> list[ScoredTrace]:
        """Rank and choose; best first."""
        has_tokens = len(found.passages.tokens) > 0 and len(found.question.token_vectors) > 0
        model = self._models.with_tokens if has_tokens else self._models.without_tokens
        ranking = rank(
            found.question,
            found.passages,
            model,
            mean_words=found.mean_words,
            limit=limit,
            coverage=Coverage(n_sessions, n_each) if n_each else None,
        )
        self._answer_is_likely = ranking.answer_is_likely
        self._note_pool(found, ranking.all_scores)
        places = [found.places[row] for row in ranking.rows]
        self._name_sessions(places, ranking.probabilities, n_sessions)
        parts = [dict(zip(model.features, row, strict=True)) for row in ranking.parts.tolist()]
        return _traces(view, places, ranking.probabilities, parts)

    def _note_pool(self, found: Found, scores: Floats) -> None:
        order = found.passages.candidates[np.argsort(-scores, kind="stable")]
        self._stages["pool"] = tuple(found.places.trace_ids[order].tolist())

    def _name_sessions(self, places: Sequence[Place], probabilities: Floats, n: int) -> None:
        """Keep the best sessions, each with the score of its best passage."""
        best: dict[str, float] = {}
        for place, probability in zip(places, probabilities.tolist(), strict=True):
            best.setdefault(place.turn.session_id, probability)
        self._sessions = tuple(SessionMatch(*pair) for pair in list(best.items())[:n])

    def _note_found(self, found: Found) -> None:
        self._n_scanned = len(found.passages.candidates)
        self._times |= {"vector_ms": found.vector_ms, "words_ms": found.words_ms}
        if found.snapshot_problem:
            self._reasons["snapshot"] = found.snapshot_problem
        if not found.question.token_vectors.shape[1]:
            self._reasons[NO_TOKEN_VECTORS] = f"{self._embedder.model_key} gives no token vectors"
        elif found.passages.n and not len(found.passages.tokens):
            self._reasons[NO_TOKEN_VECTORS] = "the ledger has none; 'turnstream doctor --repair' has them made"
        if not found.n_matching:
            self._reasons[NO_WORDS] = "no turn shares a word with the question that not every turn has"
        if not found.n_near:
            self._reasons[NO_VECTORS] = "nothing was embedded yet in that time"


def best_of_sessions(view: View, vector: Vectors, n_sessions: int, n_chunks: int) -> Ids:
    """Ask for the traces nearest a vector in each of the sessions whose summaries are nearest it.

    Raises:
        DimensionMismatchError: the vector has another dimension than the shard's.
        ModelMismatchError: the shard was written with another model.
        ShardError: the ledger is damaged.
    """
    summaries = view.summary_vectors(vector)
    nearest = np.argsort(-(summaries.vectors @ vector), kind="stable")[:n_sessions]
    return view.nearest_of_sessions(vector, [summaries.session_ids[i] for i in nearest], n_chunks)[0]


def _traces(
    view: View, places: Sequence[Place], probabilities: Floats, parts: Sequence[Mapping[str, float]]
) -> list[ScoredTrace]:
    offsets = np.unique(np.array([place.turn.turn_offset for place in places], dtype=np.int64))
    texts = reads.texts(view.connection, offsets)
    return [
        ScoredTrace(
            trace_id=place.trace_id,
            turn_offset=place.turn.turn_offset,
            turn_id=place.turn.turn_id,
            session_id=place.turn.session_id,
            role=place.turn.role,
            speaker=place.turn.speaker,
            text=texts[place.turn.turn_offset][0][place.start : place.stop],
            timestamp_ms=place.turn.timestamp_ms,
            tags=texts[place.turn.turn_offset][1],
            score=float(probability),
            cognitive_score=float(probability),
            parts=added,
        )
        for place, probability, added in zip(places, probabilities, parts, strict=True)
    ]
