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

from pipeline.errors import ConfigError, LedgerBusyError, ModelMismatchError, TransientError
from pipeline.ledger import passage_reads
from pipeline.records import Scope
from retrieval.context import answering, elsewhere
from retrieval.context.condensing.condensed import CondensedScopes
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.layout import budget, pinned, tokens
from retrieval.context.layout.answer import Context
from retrieval.context.layout.block import Layout
from retrieval.context.relevance import cosines
from retrieval.context.session.archive import SessionEntries
from retrieval.context.session.session_memory import SessionMemory, SessionStore
from retrieval.context.strategies.protocol import Asked, CountTokens, Offer, Strategy
from retrieval.embedded_question import ask
from retrieval.fused.model import Models
from retrieval.hits import Retrieval
from retrieval.query_vector import QueryEmbedder, require_not_negative
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
_MOST_ENTRIES_KEPT: Final = 50_000
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
        store: the session memories.
        load_embedder: gives the embedding model, when an objective is first compared with entries that have vectors.
        retrieve: finds what other sessions say.
        search: the same without the model.
        models: tell what answers an objective; those of profile `fused`.

    Raises:
        ConfigError: the template cannot be used.
    """

    def __init__(
        self,
        store: SessionStore,
        load_embedder: Callable[[], QueryEmbedder],
        retrieve: Retrieve,
        search: Search,
        *,
        models: Models,
    ) -> None:
        self._store = store
        self._load_embedder = load_embedder
        self._retrieve = retrieve
        self._search = search
        self._models = models
        self._layout = Layout.read(store.settings.template)
        self._facts = _FactsKept(_MOST_ENTRIES_KEPT)
        self._condensed = CondensedScopes(store.readers)

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
        name = self._store.settings.strategy if strategy is None else strategy
        chosen = resolved(name)
        room = self._store.settings.max_tokens_for_context if max_tokens is None else max_tokens
        require_not_negative(max_tokens=room)
        aim = objective if objective and objective.strip() else None
        notes: list[str] = []
        with self._store.readers.gate.passing():
            found = SessionMemory(where, self._store).entries(session_id)
            if found.entries:
                asked = self._asked(where, session_id, found, name, aim, room, notes)
                offer = pinned.first(chosen.offer(asked), asked)
            elif across_sessions and aim is not None and name in _ACROSS_SESSIONS:
                offer = self._from_elsewhere(session_id, where, aim, notes)
            else:
                self._facts.drop((where, session_id))
                offer = Offer(pieces=())
        return budget.fit(offer, room, count_tokens, layout=self._layout, strategy=name, notes=notes)

    def _asked(
        self,
        scope: Scope,
        session_id: str,
        found: SessionEntries,
        strategy: str,
        objective: str | None,
        room: int,
        notes: list[str],
    ) -> Asked:
        facts = None if strategy == "fixed" else self._facts.of((scope, session_id), found)
        asked = Asked(
            entries=found.entries if facts is None else facts.entries,
            vectors=found.vectors,
            objective=objective,
            objective_vector=None,
            now_ms=self._store.clock(),
            settings=self._store.settings,
            max_tokens=room,
            facts=facts,
            condensed=self._condensed.of(scope, session_id),
        )
        if objective is None or facts is None:
            return asked
        return self._embedded(asked, objective, facts, scope, found.model_key, notes)

    def _embedded(
        self, asked: Asked, objective: str, facts: EntryFacts, scope: Scope, model_key: str | None, notes: list[str]
    ) -> Asked:
        """Embed the objective and compare it with the entries; a note where that cannot be.

        Raises:
            ModelMismatchError: the entries' vectors are another model's.
        """
        if model_key is None:
            notes.append("by words alone: nothing of this scope is embedded yet")
            return asked
        try:
            embedder = self._load_embedder()
        except _MODEL_FAILS as error:
            notes.append(f"{_NO_MODEL} ({error})")
            return asked
        if embedder.model_key != model_key:
            raise ModelMismatchError(
                f"the memory of {scope} was embedded with {model_key}, the settings name {embedder.model_key};"
                " set TURNSTREAM_EMBEDDING__MODEL and __BACKEND back, or backfill into a new data folder"
            )
        with self._store.readers.view(scope, model_key) as view:
            names = passage_reads.speakers(view.connection) if view else []
        try:
            question = ask(objective, names, embedder)
        except _MODEL_FAILS as error:
            notes.append(f"{_NO_MODEL} ({error})")
            return asked
        compared = replace(asked, objective_vector=question.embedded.vector)
        by_words, by_meaning = facts.bm25(objective), cosines(compared)
        with self._store.readers.view(scope, model_key) as view:
            if view is None:  # forgotten meanwhile
                return compared
            likely = answering.chances(
                view,
                question,
                asked.entries,
                by_words,
                by_meaning,
                models=self._models,
                asked_ms=asked.now_ms,
            )
        return replace(compared, chances=likely)

    def _from_elsewhere(self, session_id: str, scope: Scope, objective: str, notes: list[str]) -> Offer:
        notes.append("nothing is known of this session: the scope's other sessions were asked")
        try:
            quotes = elsewhere.quotes_of(self._retrieve(objective, scope).hits)
        except (ModelMismatchError, LedgerBusyError):
            raise
        except _MODEL_FAILS as error:
            notes.append(f"{_NO_MODEL} ({error})")
            quotes = elsewhere.quotes_of_sessions(self._search(elsewhere.telling_words(objective), scope))
        return elsewhere.offer(quotes, session_id)


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
    """What is known of the sessions asked about lately, so many entries in all; safe to share between threads."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Scope, str], EntryFacts] = OrderedDict()

    def of(self, key: tuple[Scope, str], found: SessionEntries) -> EntryFacts:
        """Give the facts about these entries, read anew only as far as they changed."""
        with self._lock:
            known = self._known.get(key)
        facts = known if known is not None and known.is_about(found.entries) else EntryFacts(found.entries, known)
        with self._lock:
            self._known[key] = facts
            self._known.move_to_end(key)
            n_entries = sum(len(one.entries) for one in self._known.values())
            while len(self._known) > 1 and n_entries > self._max_entries:
                n_entries -= len(self._known.popitem(last=False)[1].entries)
        return facts

    def drop(self, key: tuple[Scope, str]) -> None:
        """Keep nothing of a session."""
        with self._lock:
            self._known.pop(key, None)
