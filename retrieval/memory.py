"""One door for a bot: open the memory, ask, get hits with their context.

Reads the data folder the pipeline writes; needs no broker and no running process. The embedding model is loaded at
the first question, with onnxruntime alone; a model that was never exported is exported first, in a child process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final, TypedDict

from pipeline.errors import ConfigError
from pipeline.records import NEUTRAL, Mood, Scope
from pipeline.settings import ContextSettings, RetrievalSettings, Settings, load_settings
from pipeline.shards import Shards
from retrieval.arguments import checked
from retrieval.cognitive_score import Weights
from retrieval.context.context import ContextWriter
from retrieval.context.entries.entry import Outcome
from retrieval.context.session.session_memory import SessionMemory, SessionResources
from retrieval.fused.model import Models, models_of
from retrieval.fused_retriever import FusedRetriever
from retrieval.hits import Retrieval, to_hit
from retrieval.memory_store import MemoryStore, Moment, epoch_ms
from retrieval.passage_search import Found
from retrieval.past_sessions import PastSessions
from retrieval.query_vector import QueryEmbedder
from retrieval.reader import ShardReaders
from retrieval.rerank import Reranker
from retrieval.search.store import ScopeSessions, SessionSearch
from retrieval.session_retriever import SessionRetrieval, SessionRetriever
from retrieval.summary_store import SessionSummaryStore

PROFILES: Final = ("fused", "session")


class _Wanted(TypedDict):
    """What both profiles take."""

    top_sessions: int | None
    chunks_per_session: int | None
    recall_top_k: int
    coverage: bool
    after: Moment | None
    before: Moment | None


class Memory(PastSessions):
    """Everything remembered in one data folder; safe to share between threads, and after a fork.

    Args:
        shards: where the scopes are.
        load_embedder: loads the model; called once, at the first question.
        settings: defaults and weights of a retrieve.
        context: what session memory holds, and where.
        reranker: an optional second opinion.
        models: rank for profile ``fused``, and tell `search` and `context` what answers; the settings' when None.
        clock: gives epoch milliseconds.
        max_open: shards kept open.
        busy_timeout_ms: longest wait for a locked ledger.
        model_survives_fork: False for a model with threads of its own, which a child does not inherit: it loads anew.

    Raises:
        ConfigError: coefficients, the store of session memory, or the template of its contexts, cannot be used.
    """

    def __init__(  # noqa: PLR0913 - all but two have defaults
        self,
        shards: Shards,
        load_embedder: Callable[[], QueryEmbedder],
        *,
        settings: RetrievalSettings | None = None,
        context: ContextSettings | None = None,
        reranker: Reranker | None = None,
        models: Models | None = None,
        clock: Callable[[], int] | None = None,
        max_open: int = 256,
        busy_timeout_ms: int = 30_000,
        model_survives_fork: bool = True,
    ) -> None:
        self._readers = ShardReaders(shards, max_open=max_open, busy_timeout_ms=busy_timeout_ms)
        self._load_embedder = load_embedder
        self._settings = settings or RetrievalSettings()
        self._weights = Weights(**{f.name: getattr(self._settings, f"weight_{f.name}") for f in fields(Weights)})
        self._reranker = reranker
        self._models = models or models_of(self._settings.coefficients, self._settings.beside)
        self._clock = clock
        self._loading = threading.Lock()
        self._loaded: tuple[QueryEmbedder, int] | None = None
        self._model_survives_fork = model_survives_fork
        self._session_resources = SessionResources(self._readers, context or ContextSettings(), clock=clock)
        sessions = SessionSearch(self._readers, lambda: self.embedder, models=self._models, clock=clock or epoch_ms)
        contexts = ContextWriter(
            self._session_resources,
            lambda: self.embedder,
            self.retrieve,
            lambda query, scope: sessions.search(query, scope, profile="keyword"),
            models=self._models,
        )
        super().__init__(sessions, contexts)

    @property
    def embedder(self) -> QueryEmbedder:
        """The embedding model, loaded at the first use."""
        loaded = self._loaded
        if loaded is None or not self._is_usable(loaded[1]):
            with self._readers.gate.passing(), self._loading:
                loaded = self._loaded
                if loaded is None or not self._is_usable(loaded[1]):
                    loaded = self._loaded = (self._load_embedder(), os.getpid())
        return loaded[0]

    @property
    def memory_store(self) -> MemoryStore:
        """The traces, queried by cognitive score."""
        return MemoryStore(self._readers, self.embedder, weights=self._weights, clock=self._clock)

    @property
    def summary_store(self) -> SessionSummaryStore:
        """The session summaries."""
        return SessionSummaryStore(self._readers, self.embedder, clock=self._clock)

    @checked
    def retrieve(  # noqa: PLR0913 - the public surface; all but two have defaults
        self,
        query: str,
        scope: Scope | str,
        mood: Mood | tuple[float, float, float] = NEUTRAL,
        profile: str = "fused",
        *,
        top_sessions: int | None = None,
        chunks_per_session: int | None = None,
        recall_top_k: int | None = None,
        coverage: bool = False,
        after: Moment | None = None,
        before: Moment | None = None,
        asked_at: Moment | None = None,
    ) -> Retrieval:
        """Find what was said about a query in one scope.

        A scope that does not exist gives no hits, and nothing is made on disk. A query longer than the model's limit
        is cut there.

        Args:
            query: what is asked.
            scope: the one scope that is read, or its ``KIND/ID``.
            mood: (valence, arousal, dominance) of asking, each in [-1, 1]; profile ``session`` alone looks at it.
            profile: ``fused`` ranks by words, meaning, speaker, date and what stands around; its score is the
                probability that a hit answers the question. ``session`` selects sessions by their summaries first.
            top_sessions: sessions selected first; the settings' when None.
            chunks_per_session: traces kept of each; the settings' when None.
            recall_top_k: hits returned at most; the settings' when None.
            coverage: give each of ``top_sessions`` sessions its best ``chunks_per_session`` chunks. Profile
                ``session`` then asks the index for them, so that no selected session is left out.
            after: leave out turns said before this time (datetime, ISO 8601 or epoch seconds; without a zone, UTC).
            before: leave out turns said after this time.
            asked_at: when it is asked, for dates such as "last May"; now when None.

        Raises:
            ValueError: a blank query, a negative count, a time or mood that is none; the message names the argument.
            ConfigError: a profile that does not exist; or (ModelMismatchError) the scope was written with another
                model than the settings name.
            PoisonError: the scope is not KIND/ID.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        if profile not in PROFILES:
            raise ConfigError(f"profile {profile!r} does not exist; use one of {', '.join(PROFILES)}")
        where = Scope.parse(scope) if isinstance(scope, str) else scope
        wanted: _Wanted = {
            "top_sessions": top_sessions,
            "chunks_per_session": chunks_per_session,
            "recall_top_k": self._settings.recall_top_k if recall_top_k is None else recall_top_k,
            "coverage": coverage,
            "after": after,
            "before": before,
        }
        with self._readers.gate.passing():
            if profile == "session":
                found = self._session_retriever().retrieve(query, where, Mood(*mood), **wanted)
            else:
                found = self._fused_retriever().retrieve(query, where, Mood(*mood), asked_at=asked_at, **wanted)
            return self._with_neighbours(found, where)

    @checked
    def candidates(self, query: str, scope: Scope | str, *, asked_at: Moment | None = None) -> Found | None:
        """Give everything that profile ``fused`` would rank for a question; None when there is nothing to search.

        Raises:
            ValueError: a blank query, or a time that is none.
            PoisonError: the scope is not KIND/ID.
            ModelMismatchError: the scope was written with another model than the settings name.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        where = Scope.parse(scope) if isinstance(scope, str) else scope
        with self._readers.gate.passing():
            return self._fused_retriever().candidates(query, where, asked_at=asked_at)

    @checked
    def sessions(
        self, scope: Scope | str, *, profile: str = "best", exclude: str | Sequence[str] | None = None
    ) -> ScopeSessions:
        """Give the sessions of one scope as a store to be searched, without the excluded ones."""
        return ScopeSessions(self._sessions, scope, profile=profile, exclude=exclude)

    @checked
    def session_memory(self, scope: Scope | str) -> SessionMemory:
        """Give the memory of one scope's sessions.

        Raises:
            PoisonError: the scope is not KIND/ID.
        """
        return SessionMemory(Scope.parse(scope) if isinstance(scope, str) else scope, self._session_resources)

    @checked
    def remember(  # noqa: PLR0913 - the public surface; all but four have defaults
        self,
        session_id: str,
        scope: Scope | str,
        objective: str,
        conclusion: str,
        key_results: Sequence[str] = (),
        *,
        tools: Sequence[str] = (),
        n_errors: int = 0,
        outcome: Outcome | str = Outcome.UNKNOWN,
        refs: Sequence[str] = (),
        pinned: bool = False,
        entry_id: str | None = None,
    ) -> str:
        """Remember an exchange of a session, on disk on return; gives its id. `SessionMemory.remember` says more.

        Raises:
            ValueError: an argument that cannot be; the message names it.
            PoisonError: a text that cannot be kept, or a scope that is not KIND/ID.
            NotFoundError: the session, or this exchange, was forgotten.
            ShardError: the scope's ledger is damaged.
            TransientError: the disk is full, the ledger locked, or the server of the windows does not answer.
            ConfigError: the data folder cannot be used, or that server refuses us.
        """
        return self.session_memory(scope).remember(
            session_id,
            objective,
            conclusion,
            key_results,
            tools=tools,
            n_errors=n_errors,
            outcome=outcome,
            refs=refs,
            pinned=pinned,
            entry_id=entry_id,
        )

    def close(self) -> None:
        """Close what is open; a later retrieve opens it again."""
        self._readers.close()
        self._session_resources.close()

    def _is_usable(self, loaded_by: int) -> bool:
        return self._model_survives_fork or loaded_by == os.getpid()

    def _session_retriever(self) -> SessionRetriever:
        return SessionRetriever(
            self.summary_store,
            self.memory_store,
            self.embedder,
            self._reranker,
            self._settings.top_sessions,
            self._settings.chunks_per_session,
        )

    def _fused_retriever(self) -> FusedRetriever:
        return FusedRetriever(
            self._readers,
            self.embedder,
            self._reranker,
            self._settings.top_sessions,
            self._settings.chunks_per_session,
            clock=self._clock,
            models=self._models,
            n_neighbours=self._settings.neighbours,
        )

    def _with_neighbours(self, found: SessionRetrieval, scope: Scope) -> Retrieval:
        offsets = [trace.turn_offset for trace in found.retrieved]
        neighbours = found.neighbours or {}
        if offsets and found.neighbours is None:
            with self._readers.view(scope, self.embedder.model_key) as view:
                neighbours = view.neighbours(offsets, self._settings.neighbours) if view else {}
        return Retrieval(tuple(to_hit(trace, scope, neighbours) for trace in found.retrieved), found.diagnostics)


def open_memory(
    data_dir: Path | str | None = None,
    *,
    settings: Settings | None = None,
    embedder: QueryEmbedder | None = None,
    reranker: Reranker | None = None,
    models: Models | None = None,
    clock: Callable[[], int] | None = None,
) -> Memory:
    """Open the memory in a data folder; nothing is created and no model loaded yet.

    Args:
        data_dir: the data folder; the settings' when None.
        settings: those of this process; read from the environment when None.
        embedder: an embedding model that is loaded already, in place of the settings'.
        reranker: an optional second opinion on the best traces; the settings' when None, which is loaded at once.
        models: rank for profile ``fused``, `search` and `context`, in place of the settings'.
        clock: gives epoch milliseconds.

    Raises:
        ConfigError: a setting is out of bounds or unknown; or a reranker, coefficients, session memory's store or its
            template cannot be used.
    """
    chosen = settings or load_settings(data_dir=None if data_dir is None else Path(data_dir))
    folder = chosen.data_dir if data_dir is None else Path(data_dir)
    return Memory(
        Shards(folder),
        (lambda: embedder) if embedder is not None else lambda: _load_embedder(chosen, folder),
        settings=chosen.retrieval,
        context=chosen.context,
        reranker=reranker or _load_reranker(chosen.retrieval.reranker),
        models=models,
        clock=clock,
        max_open=min(chosen.ledger.max_open, 256),
        busy_timeout_ms=chosen.ledger.busy_timeout_ms,
        model_survives_fork=embedder is not None
        or (chosen.embedding.n_threads == 1 and chosen.embedding.backend != "torch"),
    )


def _load_embedder(settings: Settings, data_dir: Path) -> QueryEmbedder:
    from pipeline.embed import load_embedder  # noqa: PLC0415 - a process that asks nothing loads no model

    return load_embedder(
        model=settings.embedding.model,
        backend=settings.embedding.backend,
        models_dir=settings.embedding.cache_dir or data_dir / "models",
        n_threads=settings.embedding.n_threads,
        batch_tokens=settings.embedding.batch_tokens,
    )


def _load_reranker(model: str | None) -> Reranker | None:
    if model is None:
        return None
    from retrieval.cross_encoder import CrossEncoderReranker  # noqa: PLC0415 - imports torch

    return CrossEncoderReranker(model)
