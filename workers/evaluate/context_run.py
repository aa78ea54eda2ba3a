"""Asking every question of every conversation in every way, and measuring what the blocks hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, Final

from pipeline.records import Scope, Turn
from pipeline.settings import ContextSettings
from retrieval import Memory
from retrieval.context.context import STRATEGIES
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.layout import budget
from retrieval.context.layout.answer import Context
from retrieval.context.protocol import Asked, Strategy
from workers.evaluate import evidence, metrics
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.context_methods import Everything, Nothing, WordsOnly
from workers.evaluate.evidence import Foreign, TurnWords

OWN: Final = "conversation"
ANOTHER: Final = "another"
_ALL_TOKENS: Final = 10_000_000
COMPARED: Final = (Nothing.name, *STRATEGIES, WordsOnly.name, Everything.name)
"""Every way to make a block, in the order of the report."""


class Clock:
    """Says what time it is: that of the question which is asked."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        """Give epoch milliseconds."""
        return self.now_ms


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, and a different one that shares its scope."""

    scope: Scope
    turns: Sequence[Turn]
    another: Sequence[Turn]
    asked_at_ms: int


@dataclass(frozen=True, slots=True)
class Row:
    """The means over all questions, of one way at one budget.

    Args:
        method: a strategy, or what it is compared with.
        max_tokens: the budget; None: there is none.
        told: share of the evidence turns that the block tells.
        quoted: share of them that it quotes word for word.
        n_tokens: tokens of the block, spent.
        p50_ms: time to build it, the question's embedding included.
        p95_ms: 95 of 100 are faster.
        session_leaks: turns of the scope's other session, in all blocks.
        scope_leaks: turns of other scopes, in all blocks.
        by_category: ``told`` of each category of questions.
    """

    method: str
    max_tokens: int | None
    told: float
    quoted: float
    n_tokens: float
    p50_ms: float
    p95_ms: float
    session_leaks: int
    scope_leaks: int
    by_category: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and what they are about."""

    dataset: str
    n_questions: int
    n_sessions: int
    n_entries: int
    budgets: Sequence[int]
    rows: Sequence[Row]

    def row(self, method: str, max_tokens: int | None) -> Row:
        """Give one row; without a budget, that of the full history."""
        return next(row for row in self.rows if (row.method, row.max_tokens) == (method, max_tokens))

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Answer:
    category: str
    told: float
    quoted: float
    n_tokens: int
    milliseconds: float
    session_leaks: int
    scope_leaks: int


class _Place:
    """What is known of one conversation: its entries for who is compared with, its words for who measures."""

    def __init__(self, memory: Memory, conversation: Conversation, words: Mapping[Scope, list[TurnWords]]) -> None:
        self.memory = memory
        self.conversation = conversation
        found = memory.session_memory(conversation.scope).entries(OWN)
        self.facts = EntryFacts(found.entries)
        self.vectors = found.vectors
        own = words[conversation.scope]
        self.turns = {turn.turn_id: read for turn, read in zip(conversation.turns, own, strict=True)}
        another = [evidence.turn_words(turn.content) for turn in conversation.another]
        beyond = [turn for scope, turns in words.items() if scope != conversation.scope for turn in turns]
        self.another = Foreign(another, own)
        self.beyond = Foreign(beyond, own)

    def block(self, method: str, question: str, max_tokens: int) -> Context:
        """Build a block in one way."""
        if method in STRATEGIES:
            return self.memory.context(
                OWN, self.conversation.scope, objective=question, strategy=method, max_tokens=max_tokens
            )
        if method == Everything.name:
            return self.everything
        return budget.fit(_compared(method).offer(self._asked(question, max_tokens)), max_tokens, strategy=method)

    @cached_property
    def everything(self) -> Context:
        """The full history: the same whatever is asked."""
        return budget.fit(Everything().offer(self._asked("", _ALL_TOKENS)), _ALL_TOKENS)

    def _asked(self, question: str, max_tokens: int) -> Asked:
        return Asked(
            entries=self.facts.entries,
            vectors=self.vectors,
            objective=question,
            objective_vector=None,
            now_ms=self.conversation.asked_at_ms,
            settings=ContextSettings(),
            max_tokens=max_tokens,
            facts=self.facts,
        )


def compare_all(
    memory: Memory,
    clock: Clock,
    conversations: Mapping[Scope, Conversation],
    questions: Sequence[AskedQuestion],
    *,
    budgets: Sequence[int],
    dataset: str,
    on_asked: Callable[[int, int], None],
    methods: Sequence[str] = COMPARED,
) -> Comparison:
    """Ask every question in every way with every budget; ``on_asked`` is told how many were, and of how many."""
    words = {scope: [evidence.turn_words(turn.content) for turn in one.turns] for scope, one in conversations.items()}
    places = {scope: _Place(memory, one, words) for scope, one in conversations.items()}
    answers: dict[tuple[str, int | None], list[_Answer]] = {}
    for number, question in enumerate(questions, start=1):
        place = places[question.scope]
        clock.now_ms = place.conversation.asked_at_ms
        for method, max_tokens in _ways(methods, budgets):
            answers.setdefault((method, max_tokens), []).append(_ask(place, question, method, max_tokens))
        on_asked(number, len(questions))
    return Comparison(
        dataset=dataset,
        n_questions=len(questions),
        n_sessions=len(conversations),
        n_entries=sum(len(place.facts.entries) for place in places.values()),
        budgets=tuple(budgets),
        rows=[_row(method, max_tokens, some) for (method, max_tokens), some in answers.items()],
    )


def _ways(methods: Sequence[str], budgets: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    for method in methods:
        if method in {Nothing.name, Everything.name}:
            yield method, None
        else:
            yield from ((method, max_tokens) for max_tokens in budgets)


def _compared(method: str) -> Strategy:
    return {way.name: way for way in (Nothing(), WordsOnly())}[method]


def _ask(place: _Place, question: AskedQuestion, method: str, max_tokens: int | None) -> _Answer:
    started = time.perf_counter()
    made = place.block(method, question.text, _ALL_TOKENS if max_tokens is None else max_tokens)
    taken_ms = 1_000 * (time.perf_counter() - started)
    held = evidence.items(made.block)
    wanted = [place.turns[turn] for turn in question.turns]
    return _Answer(
        category=question.category,
        told=evidence.share_told(held, wanted),
        quoted=evidence.share_quoted(held, wanted),
        n_tokens=made.n_tokens,
        milliseconds=taken_ms,
        session_leaks=place.another.n_in(held),
        scope_leaks=place.beyond.n_in(held),
    )


def _row(method: str, max_tokens: int | None, answers: Sequence[_Answer]) -> Row:
    taken = [answer.milliseconds for answer in answers]
    by_category: dict[str, list[float]] = {}
    for answer in answers:
        by_category.setdefault(answer.category, []).append(answer.told)
    return Row(
        method=method,
        max_tokens=max_tokens,
        told=fmean(answer.told for answer in answers),
        quoted=fmean(answer.quoted for answer in answers),
        n_tokens=fmean(answer.n_tokens for answer in answers),
        p50_ms=round(metrics.percentile(taken, 50), 2),
        p95_ms=round(metrics.percentile(taken, 95), 2),
        session_leaks=sum(answer.session_leaks for answer in answers),
        scope_leaks=sum(answer.scope_leaks for answer in answers),
        by_category={name: fmean(told) for name, told in sorted(by_category.items())},
    )
