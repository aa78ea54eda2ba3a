"""Write the block of a session for the next prompt: its entries, a strategy's offer, and what of it fits.

Nothing of another scope can get in: the ledger that is read is the scope's. Nothing of another session does, unless
it is asked for and the session has no history.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, cast

from pipeline import tokens
from pipeline.errors import ConfigError, ModelMismatchError, TransientError
from pipeline.ledger import passage_reads, session_reads
from pipeline.ledger.connection import read_meta
from pipeline.records import Scope
from retrieval.arguments import checked
from retrieval.context import elsewhere
from retrieval.context.condensing.condensed import CondensedScopes
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.layout import budget, pinned
from retrieval.context.layout.answer import Context
from retrieval.context.layout.block import Layout
from retrieval.context.protocol import Asked, CountTokens, Offer, Strategy
from retrieval.context.ranking import answering, relevance
from retrieval.context.session.session_cache import SessionEntries
from retrieval.context.session.session_memory import SessionMemory, SessionResources
from retrieval.embedded_question import Asked as Embedded
from retrieval.embedded_question import ask
from retrieval.fused.model import Models
from retrieval.hits import Retrieval
from retrieval.query_vector import QueryEmbedder
from retrieval.search.protocol import SessionHit

STRATEGIES: Final = {
    "fixed": "Fixed",
    "importance": "Importance",
    "semantic": "Semantic",
    "hierarchical": "Hierarchical",
    "dynamic": "Dynamic",
    "adaptive": "Adaptive",
}
"""Names, each a module in `strategies`, and its class."""
_ACROSS_SESSIONS: Final = frozenset({"dynamic", "hierarchical"})
_MAX_BYTES_KEPT: Final = 256 << 20
"""Of facts and the texts they are about."""
_NOT_ASKED: Final = (
    "nothing is known of this session, and no other was asked: that takes an objective,"
    f" and strategy {' or '.join(sorted(_ACROSS_SESSIONS))}"
)
_NOT_EMBEDDED: Final = "by words alone: nothing of this scope is embedded yet"
_NO_MODEL: Final = "by words alone: the embedding model cannot be used"
_MODEL_FAILS: Final = (ConfigError, TransientError, OSError, RuntimeError)
"""What a model may raise that is missing, cannot be loaded, or breaks at a text."""


class Retrieve(Protocol):
    """Finds what was said about a query in one scope."""

    def __call__(self, query: str, scope: Scope | str, /) -> Retrieval:
        """Find hits."""
        ...


class Search(Protocol):
    """Finds the sessions of one scope that hold words of a query, without a model."""

    def __call__(self, query: str, scope: Scope, /) -> list[SessionHit]:
        """Find sessions, each with its best turn."""
        ...


class ContextWriter:
    """Writes contexts; safe to share between threads, and after a fork.

    Args:
        shared: what session memories work with.
        load_embedder: gives the embedding model, when an objective is first compared with entries that have vectors.
        retrieve: finds what other sessions say.
        search: the same without the model.
        models: tell what answers an objective; those of profile `fused`.

    Raises:
        ConfigError: the template cannot be used.
    """

    def __init__(
        self,
        shared: SessionResources,
        load_embedder: Callable[[], QueryEmbedder],
        retrieve: Retrieve,
        search: Search,
        *,
        models: Models,
    ) -> None:
        self._shared = shared
        self._load_embedder = load_embedder
        self._retrieve = retrieve
        self._search = search
        self._models = models
        self._layout = Layout.read(shared.settings.template)
        self._facts = _FactsKept(_MAX_BYTES_KEPT)
        self._condensed = CondensedScopes(shared.readers)

    @checked
    def context(
        self,
        session_id: str,
        scope: Scope | str,
        objective: str | None = None,
        strategy: str | None = None,
        max_tokens: int | None = None,
        *,
        across_sessions: bool = False,
        count_tokens: CountTokens = tokens.count,
    ) -> Context:
        """Write what a session's past holds for the next prompt, as a fenced block that keeps its budget.

        Without the embedding model, words alone decide, and a note says so. A session without history gives "".

        Args:
            session_id: the session.
            scope: whose, or its ``KIND/ID``.
            objective: what is to be done next, usually what the user just said.
            strategy: how it is condensed; the settings' when None.
            max_tokens: never exceeded, headings and fence included; the settings' when None.
            across_sessions: where this session has no history, let strategies ``dynamic`` and ``hierarchical`` quote
                the scope's other sessions, each with its date.
            count_tokens: the tokenizer's count; by default a token for every three bytes.

        Raises:
            ValueError: a blank session id, a negative budget, or weights that are all 0; the message names it.
            ConfigError: a strategy that does not exist; or (ModelMismatchError) the scope was written with another
                model than the settings name.
            PoisonError: the scope is not KIND/ID.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked, or the server of the windows does not answer; try again.
        """
        where = Scope.parse(scope) if isinstance(scope, str) else scope
        name = self._shared.settings.strategy if strategy is None else strategy
        chosen = resolved(name)
        room = self._shared.settings.max_tokens_for_context if max_tokens is None else max_tokens
        aim = objective if objective and objective.strip() else None
        notes: list[str] = []
        with self._shared.readers.gate.passing():
            model = self._model_for(where, session_id, name, aim)
            found = SessionMemory(where, self._shared).entries(session_id)
            if found.entries:
                asked = self._asked(where, session_id, found, name, aim, room, model, notes)
                offer = pinned.first(chosen.offer(asked), asked)
            elif across_sessions and aim is not None and name in _ACROSS_SESSIONS:
                offer = self._from_elsewhere(session_id, where, aim, notes)
            else:
                if across_sessions:
                    notes.append(_NOT_ASKED)
                self._facts.drop((where, session_id))
                offer = Offer(pieces=())
        return budget.fit(offer, room, count_tokens, layout=self._layout, strategy=name, notes=notes)

    def _model_for(self, scope: Scope, session_id: str, strategy: str, objective: str | None) -> QueryEmbedder | str:
        """Load the model if there is something to compare by it; else tell why there is none.

        Why before the entries are read: it may take seconds, and what is forgotten meanwhile is not to be shown.
        """
        if objective is None or strategy == "fixed":
            return ""
        with self._shared.readers.session_view(scope) as opened:
            is_embedded = (
                opened is not None
                and session_reads.card(opened[0], session_id) is not None
                and read_meta(opened[0]).get("model_key") is not None
            )
        return self._loaded() if is_embedded else _NOT_EMBEDDED

    def _loaded(self) -> QueryEmbedder | str:
        try:
            return self._load_embedder()
        except _MODEL_FAILS as error:
            return f"{_NO_MODEL} ({error})"

    def _asked(
        self,
        scope: Scope,
        session_id: str,
        found: SessionEntries,
        strategy: str,
        objective: str | None,
        room: int,
        model: QueryEmbedder | str,
        notes: list[str],
    ) -> Asked:
        facts = None if strategy == "fixed" else self._facts.of((scope, session_id), found)
        asked = Asked(
            entries=found.entries if facts is None else facts.entries,
            vectors=found.vectors,
            objective=objective,
            objective_vector=None,
            now_ms=self._shared.clock(),
            settings=self._shared.settings,
            max_tokens=room,
            facts=facts,
            condensed=self._condensed.of(scope, session_id),
        )
        if objective is None or facts is None:
            return asked
        if isinstance(model, str) or found.model_key is None:
            notes.append(model if isinstance(model, str) else _NOT_EMBEDDED)
            return asked
        return self._embedded(asked, objective, facts, scope, found.model_key, model, notes)

    def _embedded(
        self,
        asked: Asked,
        objective: str,
        facts: EntryFacts,
        scope: Scope,
        model_key: str,
        embedder: QueryEmbedder,
        notes: list[str],
    ) -> Asked:
        """Embed the objective and compare it with the entries; a note where that cannot be.

        Raises:
            ModelMismatchError: the entries' vectors are another model's.
        """
        if embedder.model_key != model_key:
            raise ModelMismatchError(
                f"the memory of {scope} was embedded with {model_key}, the settings name {embedder.model_key};"
                " set TURNSTREAM_EMBEDDING__MODEL and __BACKEND back, or backfill into a new data folder"
            )
        with self._shared.readers.view(scope, model_key) as view:
            names = passage_reads.speakers(view.connection) if view else []
        question = _question(objective, names, embedder)
        if isinstance(question, str):
            notes.append(question)
            return asked
        embedded = replace(asked, objective_vector=question.embedded.vector)
        compared = relevance.compared(embedded, facts)
        with self._shared.readers.view(scope, model_key) as view:
            if view is None:  # forgotten meanwhile
                return replace(embedded, compared=compared)
            likely = answering.chances(
                view,
                question,
                asked.entries,
                compared,
                models=self._models,
                asked_ms=asked.now_ms,
            )
        return replace(embedded, compared=replace(compared, chances=likely))

    def _from_elsewhere(self, session_id: str, scope: Scope, objective: str, notes: list[str]) -> Offer:
        notes.append("nothing is known of this session: the scope's other sessions were asked")
        model = self._loaded()
        # Tried here: what fails in a retrieve that has a model is not the model.
        tried = model if isinstance(model, str) else _question(objective, [], model)
        if isinstance(tried, str):
            notes.append(tried)
            quotes = self._quotes_by_words(objective, scope)
        else:
            hits = self._retrieve(objective, scope).hits
            quotes = elsewhere.quotes_of(hits) if hits else self._quotes_by_words(objective, scope)
        return elsewhere.offer(quotes, session_id)

    def _quotes_by_words(self, objective: str, scope: Scope) -> list[elsewhere.Quote]:
        """Quote what shares words: it is there from the commit on, embedded or not."""
        return elsewhere.quotes_of_sessions(self._search(elsewhere.telling_words(objective), scope))


def _question(objective: str, names: list[str], embedder: QueryEmbedder) -> Embedded | str:
    """Embed an objective, or tell why that cannot be."""
    try:
        return ask(objective, names, embedder)
    except _MODEL_FAILS as error:
        return f"{_NO_MODEL} ({error})"


def resolved(name: str) -> Strategy:
    """Give the strategy of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy {name!r} does not exist; use one of {', '.join(STRATEGIES)}")
    module = importlib.import_module(f"retrieval.context.strategies.{name}")
    return cast("Strategy", getattr(module, STRATEGIES[name])())


class _FactsKept:
    """What is known of the sessions asked about lately, so many bytes in all, but always the last one's.

    Safe to share between threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Scope, str], tuple[EntryFacts, int]] = OrderedDict()
        self.n_bytes = 0

    def of(self, key: tuple[Scope, str], found: SessionEntries) -> EntryFacts:
        """Give the facts about these entries, read anew only as far as they changed."""
        with self._lock:
            known, _ = self._known.get(key, (None, 0))
        facts = known if known is not None and known.is_about(found.entries) else EntryFacts(found.entries, known)
        size = facts.size_bytes + found.vectors.nbytes  # it holds on to them, see `EntryFacts.beside`
        with self._lock:
            self._remove(key)
            self._known[key] = facts, size
            self.n_bytes += size
            while len(self._known) > 1 and self.n_bytes > self._max_bytes:
                self._remove(next(iter(self._known)))
        return facts

    def drop(self, key: tuple[Scope, str]) -> None:
        """Keep nothing of a session."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: tuple[Scope, str]) -> None:
        if (removed := self._known.pop(key, None)) is not None:
            self.n_bytes -= removed[1]
