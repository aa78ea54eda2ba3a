"""Two users who share every id but their own: no read call ever gives one of them a row of the other."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from pipeline.records import Mood, Scope, SessionClosed, Turn
from retrieval import Memory
from retrieval.session_retriever import SessionRetriever
from tests.crash.in_process import InProcess, settings_of

SEED = 20_260_306
N_QUERIES = 10_000
SCOPES = [
    Scope("user", "u1"),
    Scope("user", "u10"),
    Scope("user", "u1/u10"),
    Scope("users", "u1"),
    Scope("user", "U1"),
]
N_SESSIONS, N_TURNS = 6, 25
WORDS = ["harbour", "lantern", "violin", "meadow", "copper", "thunder", "orchid", "glacier", "saddle", "walnut"]
START_S = 1_600_000_000


def mark_of(scope: Scope) -> str:
    """A word that only this scope's texts contain."""
    return f"owner{SCOPES.index(scope)}"


def marks_in(text: str) -> set[str]:
    return set(re.findall(r"owner\d", text))


def history(scope: Scope, chance: random.Random) -> Iterator[Turn | SessionClosed]:
    """The same sessions, turns, times and nearly the same words in every scope; event ids are the same, too."""
    for session in range(N_SESSIONS):
        for number in range(N_TURNS):
            yield Turn(
                scope=scope,
                session_id=f"s{session}",
                role="user",
                content=f"{mark_of(scope)} {' '.join(chance.choices(WORDS, k=4))}",
                timestamp=START_S + 100 * session + number,
                event_id=f"e{session}-{number}",
                index=number,
                tags=(mark_of(scope),),
            )
        yield SessionClosed(
            scope=scope, session_id=f"s{session}", timestamp_ms=1, event_id=f"c{session}",
            summary=None if session % 2 else f"{mark_of(scope)} {chance.choice(WORDS)}",
        )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """Five scopes, filled at once; some with a snapshot, the last one read from its ledger alone."""
    settings = settings_of(tmp_path_factory.mktemp("data"), index={"min_tail": 100})
    with InProcess(settings) as running:
        histories = [list(history(scope, random.Random(SEED))) for scope in SCOPES]
        running.publish(*(event for together in zip(*histories, strict=True) for event in together))
        running.finish()
        yield running


class Calls:
    """Every read call, each giving the texts that it answered."""

    def __init__(self, memory: Memory, chance: random.Random) -> None:
        self._memory = memory
        self._memory_store, self._summary_store = memory.memory_store, memory.summary_store
        self._retriever = SessionRetriever(self._summary_store, self._memory_store, memory.embedder)
        self._chance = chance
        self._summaries = {
            scope: {row.session_id: row.text for row in self._summary_store.list_sessions(scope)} for scope in SCOPES
        }
        self.all: list[Callable[[str, Scope], list[str]]] = [
            self.traces,
            self.traces_by_vector,
            self.sessions,
            self.summaries,
            self.two_stages,
            self.retrieve,
        ]

    def traces(self, query: str, scope: Scope) -> list[str]:
        """Ask the memory store."""
        found = self._memory_store.query(query, scope, top_k=self._k(), mood=self._mood(), **self._times())
        return [text for trace in found.scored for text in (trace.text, *trace.tags[1:])]

    def traces_by_vector(self, query: str, scope: Scope) -> list[str]:
        """Ask it with the very vector of another scope's text."""
        (vector,) = self._memory.embedder.embed([f"{mark_of(self._chance.choice(SCOPES))} {query}"])
        return [trace.text for trace in self._memory_store.query(vector, scope, top_k=self._k()).scored]

    def sessions(self, query: str, scope: Scope) -> list[str]:
        """Ask the summary store; its answer must fit the scope's own summaries."""
        (vector,) = self._memory.embedder.embed([query])
        texts = []
        for match in self._summary_store.query_sessions(vector, scope, self._k()):
            text = self._summaries[scope][match.session_id]
            assert abs(float(self._memory.embedder.embed([text])[0] @ vector) - match.similarity) < 2e-3
            texts.append(text)
        return texts

    def summaries(self, _query: str, scope: Scope) -> list[str]:
        """List the summaries."""
        return [row.text for row in self._summary_store.list_sessions(scope)]

    def two_stages(self, query: str, scope: Scope) -> list[str]:
        """Ask the session retriever."""
        found = self._retriever.retrieve(query, scope, self._mood(), top_sessions=self._chance.randrange(4))
        return [trace.text for trace in found.retrieved]

    def retrieve(self, query: str, scope: Scope) -> list[str]:
        """Ask as a bot does, neighbours and prompt included."""
        found = self._memory.retrieve(query, scope.key, self._mood(), recall_top_k=self._k(), **self._times())
        assert all(hit.scope == scope for hit in found.hits)
        around = [turn.text for hit in found.hits for turn in (*hit.preceding, *hit.following)]
        block = found.to_prompt(2_000)
        return [*(hit.text for hit in found.hits), *around, *([block] if block else [])]

    def _k(self) -> int:
        return self._chance.choices([1, 3, 10, 200], [10, 10, 10, 1])[0]

    def _mood(self) -> Mood:
        return Mood(self._chance.uniform(-1, 1))

    def _times(self) -> dict[str, Any]:
        if self._chance.random() < 0.5:
            return {}
        first, last = sorted(START_S + self._chance.randrange(-50, 700) for _ in range(2))
        return {"after": first, "before": last}


@pytest.mark.timeout(300)
def test_no_read_call_gives_a_row_of_another_scope(run: InProcess, row) -> None:
    """The worst thing that a shared memory can do; a filter after a limit, or a cache by the wrong key, does it."""
    name = "queries through every read call, ids shared by five scopes"
    row.expect(name)
    chance = random.Random(SEED)
    n_texts = 0
    with closing(run.memory()) as memory:
        calls = Calls(memory, chance)
        for number in range(N_QUERIES):
            scope, other = chance.sample(SCOPES, 2)
            query = " ".join([chance.choice([mark_of(other), mark_of(scope), ""]), *chance.choices(WORDS, k=2)])
            texts = calls.all[number % len(calls.all)](query, scope)
            assert all(marks_in(text) == {mark_of(scope)} for text in texts), (scope, query)
            n_texts += len(texts)
    assert n_texts > N_QUERIES
    row(name, n=N_QUERIES, outcome=f"0 foreign rows among {n_texts}")
