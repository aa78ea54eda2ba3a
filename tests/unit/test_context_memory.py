"""A bot asks for the context of a session: its own past alone, within a budget, with or without a model."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest

from pipeline.errors import ConfigError, ModelMismatchError, PoisonError, ShardError, TransientError
from pipeline.ledger import events
from pipeline.records import Scope
from pipeline.settings import ContextSettings
from pipeline.shards import Shards
from retrieval import Context, Memory, memory
from retrieval.context.context import STRATEGIES, ContextWriter
from retrieval.hits import Retrieval
from retrieval.query_vector import QueryEmbedder
from retrieval.search.store import SessionSearch
from tests.fakes import FakeEmbedder
from tests.ledgers import NOW_MS, open_ledger, remember, turn

SCOPE = Scope("user", "u42")
OTHER = Scope("user", "u43")
NOW_S = NOW_MS / 1000
ROLES = ("user", "assistant")
ALIKE = ("a/b", "a:b", "a", "A", "a ", "__proto__", "constructor", "s" * 300, "🦀", "%", "*", "a_b")


OpenMemory = Callable[..., Memory]


@pytest.fixture
def opened(shards: Shards) -> Iterator[OpenMemory]:
    """Open memories, closed when the test ends."""
    made: list[Memory] = []

    def open_one(embedder: QueryEmbedder | Exception | None = None, **settings: object) -> Memory:
        def load() -> QueryEmbedder:
            if isinstance(embedder, Exception):
                raise embedder
            return embedder or FakeEmbedder()

        one = memory.Memory(shards, load, context=ContextSettings(**settings), clock=lambda: NOW_MS)  # type: ignore[arg-type]
        made.append(one)
        return one

    yield open_one
    for one in made:
        one.close()


def say(shards: Shards, scope: Scope, session: str, *exchanges: tuple[str, str], embedded: bool = True) -> None:
    """Publish exchanges, an hour between them, the last one now."""
    said = [
        turn(
            scope,
            f"{session}{i}{role}",
            text,
            session=session,
            role=role,
            index=ROLES.index(role),
            at=NOW_S - 3600 * (len(exchanges) - 1 - i),
        )
        for i, exchange in enumerate(exchanges)
        for role, text in zip(ROLES, exchange, strict=True)
    ]
    if embedded:
        remember(shards, scope, said, FakeEmbedder())
    else:
        with closing(open_ledger(shards, scope)) as ledger:
            events.apply(ledger, said, now_ms=NOW_MS)


TRIP = (("Where shall we go in June?", "To Porto, by train."), ("What is for dinner?", "Leek soup."))


def test_published_turns_are_context_for_nothing(shards, opened) -> None:
    """A platform that only publishes events gets it."""
    say(shards, SCOPE, "s1", *TRIP)
    for strategy in STRATEGIES:
        found = opened().context("s1", "user/u42", "Porto in June", strategy)
        assert "1 hour ago: " in found.block
        assert "Porto" in found.block
        assert found.strategy == strategy
        assert found.notes == ()
        assert found.n_tokens <= found.max_tokens == 1_024


def test_what_is_remembered_is_context_at_once(opened) -> None:
    """Before any worker has embedded it; the note says what that means."""
    bot = opened()
    bot.remember("s1", SCOPE, "Find a hotel", "Hotel Douro", ["has a balcony"])
    found = bot.context("s1", SCOPE, "the hotel")
    assert "- just now: Find a hotel\n  Result: Hotel Douro\n  Key results: has a balcony\n" in found.block
    assert "nothing of this scope is embedded" in found.notes[0]


def test_what_is_pinned_is_context_whatever_came_after(shards, opened) -> None:
    """Older than the last exchanges, and not asked about; by every strategy."""
    old = turn(SCOPE, "old", "Never give me nuts.", at=NOW_S - 86_400, metadata={"pinned": True})
    with closing(open_ledger(shards, SCOPE)) as ledger:
        events.apply(ledger, [old], now_ms=NOW_MS)
    say(shards, SCOPE, "s1", *TRIP)
    bot = opened(n_exchanges=1)
    for strategy in STRATEGIES:
        assert "Never give me nuts." in bot.context("s1", SCOPE, "Porto in June", strategy).block


def test_settings_choose_strategy_and_room(shards, opened) -> None:
    """A call may choose otherwise."""
    say(shards, SCOPE, "s1", *TRIP)
    bot = opened(strategy="fixed", max_tokens_for_context=60, n_exchanges=1)
    found = bot.context("s1", SCOPE)
    assert (found.strategy, found.max_tokens) == ("fixed", 60)
    assert "soup" in found.block
    assert "Porto" not in found.block
    assert bot.context("s1", SCOPE, max_tokens=10).block == ""
    assert bot.context("s1", SCOPE, max_tokens=40, count_tokens=lambda text: len(text.split())).n_tokens > 0


def test_the_same_question_gives_the_same_block(shards, opened) -> None:
    """From what is kept of the first call, and in another process."""
    say(shards, SCOPE, "s1", *TRIP)
    bot = opened()
    first = bot.context("s1", SCOPE, "Porto")
    assert (
        bot.context("s1", SCOPE, "Porto").to_json()
        == first.to_json()
        == opened().context("s1", SCOPE, "Porto").to_json()
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_context_may_be_sent_to_another_process(opened, strategy) -> None:
    """With its reasons, pinned entries among them, and without the session they are about."""
    bot = opened(n_exchanges=1)
    for i in range(8):
        bot.remember("s1", SCOPE, f"Trip {i}?", f"To Porto, number {i}.", pinned=i == 0)
    found = bot.context("s1", SCOPE, "Porto", strategy)
    assert pickle.loads(pickle.dumps(found)).to_json() == found.to_json()


@pytest.mark.parametrize(
    ("name", "behind"),
    [("context", ContextWriter), ("search", SessionSearch), ("window", SessionSearch), ("recent", SessionSearch)],
)
def test_help_tells_of_what_a_memory_passes_on(name, behind) -> None:
    """The same arguments, and a line about what it does."""
    method = getattr(Memory, name)
    assert f"{behind.__name__}.{name}" in method.__doc__
    assert inspect.signature(method) == inspect.signature(getattr(behind, name))


def test_what_is_said_next_is_there_at_the_next_call(shards, opened) -> None:
    """An open question, then its answer; and what is forgotten is not."""
    say(shards, SCOPE, "s1", *TRIP)
    bot = opened()
    assert "Lisbon" not in bot.context("s1", SCOPE, "the trip").block
    bot.remember("s1", SCOPE, "Change the trip", "To Lisbon instead.")
    assert "Lisbon" in bot.context("s1", SCOPE, "the trip").block
    bot.session_memory(SCOPE).forget("s1")
    assert bot.context("s1", SCOPE, "the trip").block == ""


def test_a_session_without_history_gives_an_empty_block(shards, opened) -> None:
    """A new session, and a scope that does not exist; nothing is made on disk."""
    say(shards, SCOPE, "s1", *TRIP)
    assert opened().context("new", SCOPE, "Porto").block == ""
    assert opened().context("s1", OTHER, "Porto").block == ""
    assert not shards.ledger_path(OTHER).exists()


@pytest.mark.parametrize("across", [False, True])
def test_nothing_of_another_session_or_scope_appears(shards, opened, across: bool) -> None:  # noqa: FBT001 - a case
    """Not even of one whose id looks alike, and with the flag neither while this session has a history."""
    for scope in (SCOPE, OTHER):
        for i, session in enumerate(ALIKE):
            say(shards, scope, session, (f"secret {scope.id} number {i}end", f"answer {scope.id} {i}end"))
    bot = opened()
    for i, session in enumerate(ALIKE):
        for strategy in STRATEGIES:
            found = bot.context(session, SCOPE, "secret number", strategy, across_sessions=across)
            assert set(re.findall(r"\d+end", found.block)) == {f"{i}end"}
            assert "u43" not in found.block


def test_without_history_other_sessions_are_quoted_when_asked_for(shards, opened) -> None:
    """Under their own heading, each with its date and session; of this scope alone, and not by strategy fixed."""
    say(shards, SCOPE, "trip\n# x", *TRIP)
    say(shards, OTHER, "theirs", ("Where do we go in June, Porto?", "To Faro."))
    bot = opened()
    found = bot.context("new", SCOPE, "Where shall we go in June?", "dynamic", across_sessions=True)
    assert "\nFrom other sessions:\n- [2023-11-14, session trip # x] user: Where shall we go in June?" in found.block
    assert "Faro" not in found.block
    assert "other sessions were asked" in found.notes[0]
    assert found.n_tokens <= 1_024
    assert bot.context("new", SCOPE, "Where shall we go in June?", "dynamic").block == ""
    assert bot.context("new", SCOPE, "Where shall we go in June?", "dynamic", 30, across_sessions=True).block == ""


def test_a_note_says_why_no_other_session_was_asked(shards, opened) -> None:
    """Who set the flag and gets nothing would look for the fault elsewhere."""
    say(shards, SCOPE, "trip", *TRIP)
    bot = opened()
    for aim, strategy in (("Where shall we go in June?", "fixed"), (None, "dynamic")):
        found = bot.context("new", SCOPE, aim, strategy, across_sessions=True)
        assert found.block == ""
        assert "strategy dynamic or hierarchical" in found.notes[-1]
    assert bot.context("new", SCOPE, "Where shall we go in June?", "fixed").notes == ()


class FailingEmbedder(FakeEmbedder):
    """A model that loads, and fails at each text."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Fail, and say how many there were."""
        raise RuntimeError(f"no such instruction, {len(texts)} texts")


@pytest.mark.parametrize(
    "embedder",
    [ConfigError("no such model"), TransientError("no memory"), FailingEmbedder()],
    ids=lambda failing: type(failing).__name__,
)
def test_without_a_model_words_decide_and_a_note_says_so(shards, opened, embedder) -> None:
    """A bot must not fall silent because a file is missing."""
    say(shards, SCOPE, "s1", *TRIP)
    found = opened(embedder).context("s1", SCOPE, "Where in June?", "dynamic", max_tokens=60)
    assert "Porto" in found.block
    assert "by words alone" in found.notes[0]
    found = opened(embedder).context("new", SCOPE, "Which train?", "dynamic", across_sessions=True)
    assert "\nFrom other sessions:\n- [2023-11-14, session s1] assistant: To Porto, by train." in found.block
    assert "by words alone" in found.notes[1]
    assert opened(embedder).context("s1", SCOPE, "June", "fixed").notes == ()


def test_other_sessions_are_quoted_before_anybody_embedded_them(opened) -> None:
    """A bot without workers remembers, too: its words are there from the commit on."""
    bot = opened()
    bot.remember("s1", SCOPE, "I booked a flight to Porto on 3 May.", "Noted.")
    assert "flight to Porto" in bot.context("new", SCOPE, "When is my flight?", "dynamic", across_sessions=True).block


def test_what_fails_beside_the_model_is_an_error(shards) -> None:
    """A disk that fails, or a mistake of ours, is not told as a missing model."""

    class Broken(memory.Memory):
        def retrieve(self, *_: object, **__: object) -> Retrieval:
            raise OSError("the disk is gone")

    say(shards, SCOPE, "s1", *TRIP)
    bot = Broken(shards, FakeEmbedder, clock=lambda: NOW_MS)
    with closing(bot), pytest.raises(OSError, match="the disk is gone"):
        bot.context("new", SCOPE, "Which train?", "dynamic", across_sessions=True)


def test_what_is_forgotten_while_the_model_loads_is_not_shown(shards) -> None:
    """It is loaded before anything is read."""
    say(shards, SCOPE, "s1", *TRIP)

    def load() -> QueryEmbedder:
        bot.session_memory(SCOPE).forget("s1")
        return FakeEmbedder()

    bot = memory.Memory(shards, load, clock=lambda: NOW_MS)
    with closing(bot):
        assert bot.context("s1", SCOPE, "Porto", "dynamic").block == ""


def test_another_model_stays_an_error(shards, opened) -> None:
    """Vectors of two models look as if they could be compared."""
    say(shards, SCOPE, "s1", *TRIP)
    bot = opened(FakeEmbedder(model_key="other@1/words/64"))
    with pytest.raises(ModelMismatchError, match="other@1"):
        bot.context("s1", SCOPE, "Porto", "dynamic")
    with pytest.raises(ModelMismatchError):
        bot.context("new", SCOPE, "Porto", "dynamic", across_sessions=True)
    assert "Porto" in bot.context("s1", SCOPE, None, "importance").block, "nothing is compared without an objective"


def test_arguments_that_cannot_be_are_refused(shards, opened, tmp_path) -> None:
    """Each names what is wrong, before anything is read."""
    bot = opened()
    with pytest.raises(ConfigError, match="'clever' does not exist; use one of fixed"):
        bot.context("s1", SCOPE, strategy="clever")
    with pytest.raises(ValueError, match="max_tokens"):
        bot.context("s1", SCOPE, max_tokens=-1)
    with pytest.raises(ValueError, match="session_id"):
        bot.context(" ", SCOPE)
    with pytest.raises(PoisonError):
        bot.context("s1", "u42")
    with pytest.raises(ConfigError, match="TEMPLATE"):
        opened(template=tmp_path / "missing.txt")
    say(shards, SCOPE, "s1", *TRIP)
    shards.ledger_path(SCOPE).write_bytes(b"no ledger" * 1_000)
    with pytest.raises(ShardError):
        opened().context("s1", SCOPE)


def test_json_holds_block_and_trace() -> None:
    """Tools in other languages read it."""
    document = json.loads(Context(block="語", n_tokens=1, max_tokens=9, strategy="fixed").to_json())
    assert document == {
        "block": "語", "n_tokens": 1, "max_tokens": 9, "strategy": "fixed", "notes": [], "trace": [],
    }  # fmt: skip
