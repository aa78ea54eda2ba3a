"""One vector per summarised session of a scope: which sessions is a query about?

Summaries rest in the scope's ledger and are searched by brute force: a scope has thousands of sessions at most, and a
matrix product over them takes less time than opening an index. What is indexed here is durable on return.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.ledger import Ledger, sessions
from pipeline.ledger.connection import create
from pipeline.ledger.disk import flush
from pipeline.ledger.reads import SummaryRow
from pipeline.ledger.work import require_model
from pipeline.records import Scope
from retrieval.arguments import checked_with, require_scope, require_text_or_vector
from retrieval.connections import readable
from retrieval.memory_store import epoch_ms
from retrieval.query_vector import QueryEmbedder, require_words, to_vector
from retrieval.reader import ShardReaders

COLLECTION_PREFIX: Final = "cogmem_sessions"
_GIVEN: Final = "given"
"""Who wrote a summary that was indexed by hand."""


class SessionMatch(NamedTuple):
    """A session and how near its summary is to the query (cosine)."""

    session_id: str
    similarity: float


class SessionSummaryStore:
    """The session summaries of one scope at a time; safe to share between threads.

    Args:
        readers: the open shards.
        embedder: embeds summaries and queries.
        clock: gives epoch milliseconds.
    """

    def __init__(
        self, readers: ShardReaders, embedder: QueryEmbedder, *, clock: Callable[[], int] | None = None
    ) -> None:
        self._readers = readers
        self._embedder = embedder
        self._clock = clock or epoch_ms

    @staticmethod
    @checked_with(scope=require_scope)
    def collection(scope: Scope) -> str:
        """Name the scope's collection, as in ``cogmem_sessions_user_u42``."""
        return scope.collection(COLLECTION_PREFIX)

    @checked_with(scope=require_scope)
    def exists(self, scope: Scope) -> bool:
        """Tell whether any session of the scope has a summary."""
        with self._readers.view(scope, self._embedder.model_key) as view:
            return view is not None and view.has_summaries()

    @checked_with(scope=require_scope)
    def index_session(self, scope: Scope, session_id: str, summary: str, session_date: str | None = None) -> None:
        """Embed and keep a session's summary, in place of an earlier one; a blank summary changes nothing.

        Raises:
            PoisonError: the session id, the summary or its date holds NUL or a lone surrogate.
            ModelMismatchError: the scope was written with another model.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked or the disk full; try again.
        """
        text = summary.strip()
        if not text:
            return
        new = sessions.NewSummary(
            session_id=session_id,
            text=text,
            digest=hashlib.sha256(text.encode()).hexdigest(),
            model_id=_GIVEN,
            vector=self._embedder.embed([text])[0],
            session_date=session_date,
        )
        with self._writing(scope) as ledger:
            sessions.put_summary(ledger, new, now_ms=self._clock(), model_key=self._embedder.model_key)

    @checked_with(query=require_text_or_vector, scope=require_scope)
    def query_sessions(self, query: str | npt.NDArray[np.floating], scope: Scope, top_k: int) -> list[SessionMatch]:
        """Find the ``top_k`` sessions whose summaries are nearest, nearest first.

        A scope without summaries gives [] without embedding the query.

        Raises:
            ValueError: a blank query or a negative count.
            DimensionMismatchError: the query vector has another dimension than the summaries.
            ModelMismatchError: the scope was written with another model.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        # A vector costs nothing more; a text is embedded only if there is something to compare it with.
        if top_k == 0 or (isinstance(query, str) and require_words(query) and not self.exists(scope)):
            return []
        vector = to_vector(query, self._embedder)
        with self._readers.view(scope, self._embedder.model_key) as view:
            if view is None:
                return []
            known = view.summary_vectors(vector)
        similarities = known.vectors @ vector
        n_surplus = len(similarities) - top_k
        floor = np.partition(similarities, n_surplus)[n_surplus] if n_surplus > 0 else -np.inf
        matches = [
            SessionMatch(known.session_ids[i], float(similarities[i])) for i in np.flatnonzero(similarities >= floor)
        ]
        return sorted(matches, key=lambda match: (-match.similarity, match.session_id))[:top_k]

    @checked_with(scope=require_scope)
    def delete_session(self, scope: Scope, session_id: str) -> bool:
        """Remove a session's summary; its turns stay. Durable on return.

        Returns:
            Whether there was one.

        Raises:
            PoisonError: the session id holds NUL or a lone surrogate.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        if not self.exists(scope):
            return False
        with self._writing(scope) as ledger:
            return sessions.delete_summary(ledger, session_id)

    @checked_with(scope=require_scope)
    def list_sessions(self, scope: Scope) -> list[SummaryRow]:
        """List the scope's summaries by session id.

        Raises:
            ShardError: the scope's ledger is damaged.
        """
        with self._readers.view(scope, self._embedder.model_key) as view:
            return [] if view is None else view.summaries()

    @checked_with(scope=require_scope)
    def re_embed(self, scope: Scope) -> int:
        """Embed every summary of the scope again, from its kept text. Durable on return.

        Returns:
            How many.

        Raises:
            ModelMismatchError: the scope was written with another model; its traces would still be that model's.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked or the disk full; try again.
        """
        rows = self.list_sessions(scope)
        if not rows:
            return 0
        vectors = self._embedder.embed([row.text for row in rows])
        with self._writing(scope) as ledger:
            with ledger.write() as connection:
                require_model(ledger, connection, self._embedder.model_key, self._embedder.dimension)
            return sum(
                sessions.replace_vector(ledger, row.session_id, row.text, vector)
                for row, vector in zip(rows, vectors, strict=True)
            )

    @contextmanager
    def _writing(self, scope: Scope) -> Iterator[Ledger]:
        """Lend the scope's ledger, made when missing; what the block commits is on disk once it has ended."""
        shards = self._readers.shards
        path = shards.ledger_path(scope)
        is_new = not path.exists()
        if is_new:
            shards.create(scope)
            create(path)
        with readable(path):
            opened = Ledger.open(path, scope, busy_timeout_ms=self._readers.busy_timeout_ms, is_new=is_new)
        with closing(opened) as ledger, readable(path):
            yield ledger
            flush([ledger])
