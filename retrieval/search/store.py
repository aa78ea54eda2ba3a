"""Past sessions of any scope: searched, read on, listed; and those of one scope as a searchable store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw
import numpy as np

from pipeline.errors import ConfigError, NotFoundError
from pipeline.ledger import passage_reads, reads
from pipeline.ledger.reads import Located
from pipeline.records import Scope
from retrieval.arguments import checked
from retrieval.embedded_question import Asked, ask
from retrieval.fused.model import Models
from retrieval.memory_store import Moment, epoch_ms
from retrieval.query_vector import QueryEmbedder
from retrieval.reader import ShardReaders
from retrieval.search import search as shown
from retrieval.search.best import BestRanking, Near
from retrieval.search.evidence import EvidenceRanking
from retrieval.search.index import State
from retrieval.search.protocol import Limits, Message, SessionHit, SessionSummary
from retrieval.search.ranking import PROFILES, KeywordRanking, Ranking
from retrieval.trace_search import Nearest

_Page = Callable[[apsw.Connection, State, Ranking], list[SessionHit]]
_N_NEAR: Final = 100
_REMEMBERED: Final = 256


class SessionSearch:
    """Looks at past sessions; safe to share between threads.

    Args:
        readers: the open shards.
        load_embedder: gives the embedding model, when profile `best` first has vectors to compare with.
        models: read the best turns again, for profile `best`; those of profile `fused`.
        clock: gives epoch milliseconds; what "last May" is seen from.
    """

    def __init__(
        self,
        readers: ShardReaders,
        load_embedder: Callable[[], QueryEmbedder],
        *,
        models: Models,
        clock: Callable[[], int] = epoch_ms,
    ) -> None:
        self._readers = readers
        self._load_embedder = load_embedder
        self._models = models
        self._questions = _Questions()
        self._clock = clock

    @checked
    def search(  # noqa: PLR0913 - the public surface; all but two have defaults
        self,
        query: str,
        scope: Scope | str,
        *,
        limit: int = 5,
        window: int = 5,
        offset: int = 0,
        profile: str = "best",
        after: Moment | None = None,
        before: Moment | None = None,
        role: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> list[SessionHit]:
        """Find the sessions a query is about, best first, each with the turns around its best one.

        A blank query, or a scope that does not exist, finds nothing.

        Args:
            query: a question (profile `best`), or words and parts of words (`keyword`).
            scope: the one scope that is read, or its ``KIND/ID``.
            limit: sessions at most, 1 to 50.
            window: turns shown before and after the best one, 0 to 50.
            offset: sessions to leave out, those of the pages before.
            profile: how sessions are ranked.
            after: count only turns said at or after this time (datetime, ISO 8601 or epoch seconds; else UTC).
            before: count only turns said at or before this time.
            role: count only turns of this role, or of one of these.
            exclude: the session, or sessions, to leave out, such as the current one.

        Raises:
            ValueError: an argument that cannot be; the message names it.
            ConfigError: a profile that does not exist, or another embedding model than the scope was written with.
            PoisonError: the scope is not KIND/ID.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        shown.require_query(query)
        shown.require_page(limit, offset)
        shown.require_within("window", window, 0, shown.MOST_AROUND)
        if profile not in PROFILES:
            raise ConfigError(f"profile {profile!r} does not exist; use one of {', '.join(PROFILES)}")
        limits, where = shown.valid_limits(after, before, role, exclude), shown.scope_of(scope)
        if not query.strip():
            return []

        def page(connection: apsw.Connection, state: State, ranking: Ranking) -> list[SessionHit]:
            return shown.found(connection, state, ranking, limit=limit, window=window, offset=offset)

        with self._readers.gate.passing():
            with self._readers.words(where) as opened:
                if opened is None:
                    return []
                if profile == "keyword":
                    return page(*opened, KeywordRanking(*opened, query, limits))
                if not reads.has_traces(opened[0]):
                    return page(*opened, _best(*opened, query, limits, None))
                names = passage_reads.speakers(opened[0])
            return self._by_words_and_meaning(query, where, names, limits, page)

    def _by_words_and_meaning(
        self, query: str, scope: Scope, names: list[str], limits: Limits, page: _Page
    ) -> list[SessionHit]:
        embedder = self._load_embedder()
        asked = self._questions.of(query, names, embedder)
        with self._readers.view(scope, embedder.model_key) as view:
            if view is None:
                return []
            state = view.words()
            near = view.nearest_places(
                asked.embedded.vector, _N_NEAR, after_ms=limits.after_ms, before_ms=limits.before_ms
            )
            ranking = _best(view.connection, state, query, limits, _by_turn(near))
            if isinstance(ranking, BestRanking):
                ranking = EvidenceRanking(
                    view, ranking, asked, near, limits, state.cards, models=self._models, asked_ms=self._clock()
                )
            return page(view.connection, state, ranking)

    @checked
    def window(
        self,
        session_id: str,
        scope: Scope | str,
        around_message_id: str | int | None = None,
        *,
        window: int = 5,
    ) -> list[Message]:
        """Read the turns around one of a session.

        Args:
            session_id: the session.
            scope: the scope it is in, or its ``KIND/ID``.
            around_message_id: an index or a ``message_id``; the last turn when None.
            window: turns shown before and after it, 0 to 50.

        Raises:
            ValueError: an argument that cannot be; the message names it.
            NotFoundError: there is no such session or turn.
            PoisonError: the scope is not KIND/ID.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        shown.require_within("window", window, 0, shown.MOST_AROUND)
        where = shown.scope_of(scope)
        with self._readers.words(where) as opened:
            if opened is None:
                raise NotFoundError(f"session_id: {where} does not exist, so it has no session; check the scope")
            return shown.window_around(opened[0], session_id, around_message_id, window)

    @checked
    def recent(
        self,
        scope: Scope | str,
        *,
        limit: int = 10,
        offset: int = 0,
        after: Moment | None = None,
        before: Moment | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> list[SessionSummary]:
        """List sessions, those spoken in last first, automated ones after all others.

        Args:
            scope: the one scope that is read, or its ``KIND/ID``.
            limit: sessions at most, 1 to 50.
            offset: sessions to leave out, those of the pages before.
            after: only sessions spoken in at or after this time.
            before: only sessions begun at or before this time.
            exclude: the session, or sessions, to leave out.

        Raises:
            ValueError: an argument that cannot be; the message names it.
            PoisonError: the scope is not KIND/ID.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        shown.require_page(limit, offset)
        limits = shown.valid_limits(after, before, None, exclude)
        with self._readers.words(shown.scope_of(scope)) as opened:
            return [] if opened is None else shown.listed(opened[0], limits, limit=limit, offset=offset)


class ScopeSessions:
    """The sessions of one scope, as `SearchableSessionStoreProtocol` has it.

    Args:
        search: looks at sessions.
        scope: whose.
        profile: how sessions are ranked.
        exclude: sessions left out of every search and list, such as the current one.
    """

    def __init__(
        self,
        search: SessionSearch,
        scope: Scope | str,
        *,
        profile: str = "best",
        exclude: str | Sequence[str] | None = None,
    ) -> None:
        self._search, self._scope, self._profile, self._exclude = search, scope, profile, exclude

    def search(self, query: str, *, limit: int = 5, window: int = 5) -> list[SessionHit]:
        """Find the sessions a query is about; raises what `SessionSearch.search` does."""
        return self._search.search(
            query, self._scope, limit=limit, window=window, profile=self._profile, exclude=self._exclude
        )

    def window(
        self, session_id: str, around_message_id: str | None = None, *, window: int = 5
    ) -> list[dict[str, Any]]:
        """Read the turns around one of a session; raises what `SessionSearch.window` does."""
        return self._search.window(session_id, self._scope, around_message_id, window=window)

    def recent(self, *, limit: int = 10) -> list[SessionSummary]:
        """List the sessions spoken in last; raises what `SessionSearch.recent` does."""
        return self._search.recent(self._scope, limit=limit, exclude=self._exclude)


class _Questions:
    """The last queries as the model sees them: the next page asks the same again. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str, tuple[str, ...]], Asked] = OrderedDict()

    def of(self, query: str, names: list[str], embedder: QueryEmbedder) -> Asked:
        key = (embedder.model_key, query, tuple(names))
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        asked = ask(query, names, embedder)
        with self._lock:
            self._known[key] = asked
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return asked


def _best(connection: apsw.Connection, state: State, query: str, limits: Limits, near: Near | None) -> Ranking:
    best = BestRanking(connection, state, query, limits, near)
    return best if best.finds_any() else KeywordRanking(connection, state, query, limits)


def _by_turn(nearest: Nearest[Located]) -> Near:
    best: dict[int, float] = {}
    for trace, similarity in zip(nearest.traces, nearest.similarities.tolist(), strict=True):
        best[trace.turn_offset] = max(best.get(trace.turn_offset, 0.0), similarity)
    offsets = np.array(sorted(best), dtype=np.int64)
    return Near(offsets, np.array([best[offset] for offset in offsets.tolist()]))
