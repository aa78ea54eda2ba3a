"""Exchanges are told from turns alone; the cache keeps them up to date and never tells anything else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger import events
from pipeline.ledger.session_reads import SessionTurn
from pipeline.records import Event, Scope, SessionDeleted, TurnDeleted
from pipeline.shards import Shards
from retrieval.context.entries import exchanges
from retrieval.context.entries.entry import Entry, Outcome
from retrieval.context.session.session_cache import SessionCache, SessionEntries
from retrieval.reader import ShardReaders
from tests.fakes import FakeEmbedder
from tests.ledgers import NOW_MS, open_ledger, remember, turn

SCOPE = Scope("user", "u1")
EMBEDDER = FakeEmbedder()
MINUTE = 60


def said(*lines: tuple[Any, ...]) -> list[Entry]:
    """The entries of turns (role, content[, metadata[, speaker[, minute]]]), a minute apart."""
    turns = []
    for at, line in enumerate(lines):
        role, content, metadata, speaker, minute = (*line, *(None,) * (5 - len(line)))
        time_ms = 60_000 * (at if minute is None else minute)
        turns.append(SessionTurn(at + 1, f"t{at}", role, speaker, content, time_ms, 0, metadata or {}))
    asking = exchanges.who_asks([*exchanges.parties(turns)])
    return [exchange.entry for exchange in exchanges.tell("s1", turns, asking).exchanges]


def pairs(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    return [(entry.objective, entry.conclusion) for entry in entries]


def test_a_user_turn_and_all_that_answers_it_are_an_exchange() -> None:
    """A platform that only publishes events gets session memory for nothing."""
    told = said(
        ("system", "Be kind."),
        ("user", "Book a flight."),
        ("user", "To Porto."),
        ("assistant", "I look."),
        ("tool", "3 flights", {"tool_name": "flights"}),
        ("assistant", "Booked at 9:10."),
        ("user", "Thanks"),
    )
    assert pairs(told) == [("Book a flight.\nTo Porto.", "I look.\nBooked at 9:10."), ("Thanks", "")]
    assert told[0].entry_id == "t1"
    assert (told[0].time_ms, told[0].tools, told[0].turn_offsets) == (5 * 60_000, ("flights",), (2, 3, 4, 5, 6))


def test_what_nobody_answered_is_another_objective_another_time() -> None:
    """Notes of a year are not one objective."""
    told = said(("user", "first", {}, None, 0), ("user", "still", {}, None, 59), ("user", "later", {}, None, 120))
    assert pairs(told) == [("first\nstill", ""), ("later", "")]


@pytest.mark.parametrize("role", ["user", "member", "Assistant"])
def test_people_who_talk_ask_and_answer_by_name(role: str) -> None:
    """Where all have one role, only who speaks tells them apart, and a reader must know who said `I`."""
    told = said((role, "I moved.", {}, "Ann"), (role, "Where to?", {}, "Bo"), (role, "Lyon", {}, "Ann"))
    assert pairs(told) == [("Ann: I moved.", "Bo: Where to?"), ("Ann: Lyon", "")]


def test_other_words_for_roles_ask_and_answer_too() -> None:
    """Roles are the platform's own words."""
    assert pairs(said(("customer", "Broken"), ("clerk", "Sorry"), ("customer", "Fix"))) == [
        ("Broken", "Sorry"),
        ("Fix", ""),
    ]


def test_an_answer_that_nobody_asked_for_is_kept() -> None:
    """The cache loses nothing, a greeting included."""
    assert pairs(said(("assistant", "Hello!"), ("user", "Hi"), ("assistant", "Yes?"))) == [
        ("", "Hello!"),
        ("Hi", "Yes?"),
    ]


def test_turns_of_one_named_exchange_stay_together() -> None:
    """What an agent remembers while a conversation goes on must not take the conversation's answer."""
    one, two = {"turnstream.exchange": "one"}, {"turnstream.exchange": "two"}
    told = said(
        ("user", "published"),
        ("user", "A", one),
        ("user", "B", two),
        ("assistant", "a", one),
        ("assistant", "answer"),
        ("assistant", "b", two),
    )
    assert pairs(told) == [("A", "a"), ("published", "answer"), ("B", "b")]


def test_a_platforms_own_word_exchange_binds_nothing_together() -> None:
    """A broker sends it with each turn; its session would be one single entry."""
    at = {"exchange": "NYSE"}
    told = said(("user", "A", at), ("assistant", "a", at), ("user", "B", at), ("assistant", "b", at))
    assert pairs(told) == [("A", "a"), ("B", "b")]


def test_metadata_tells_of_an_exchange() -> None:
    """Agents report what a text does not say."""
    told = said(
        ("user", "Deploy", {"pinned": True, "refs": ["t9", "t9"], "recalls": 2}),
        ("assistant", "On it", {"tool_calls": ["build", {"function": {"name": "push"}}]}),
        ("tool", "ok"),
        ("tool", "no", {"is_error": True}),
        ("tool", "surplus", {}, "scan"),
        ("assistant", "Up", {"key_results": ["v2", "v2", 3], "outcome": "DONE", "errors": 1}),
    )
    (entry,) = told
    assert (entry.is_pinned, entry.refs, entry.recalls, entry.outcome) == (True, ("t9",), 2, Outcome.DONE)
    assert (entry.tools, entry.n_errors, entry.key_results) == (("build", "push", "scan"), 2, ("v2", "3"))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "function", "x"]), inner),
    max_leaves=6,
)
KEYS = (
    "key_results",
    "tools",
    "errors",
    "outcome",
    "refs",
    "recalls",
    "pinned",
    "turnstream.exchange",
    "tool_name",
    "tool_calls",
)


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING))
def test_metadata_of_any_type_is_read(metadata: dict[str, Any]) -> None:
    """Publishers write what they like; a session must not become unreadable by it."""
    for entry in said(("user", "q"), ("tool", "x", metadata), ("assistant", "a", metadata)):
        assert 0 <= entry.n_errors <= 2_000_001
        assert 0 <= entry.recalls <= 1_000_000
        assert all(isinstance(text, str) and text for text in (*entry.key_results, *entry.tools, *entry.refs))


EVENTS: list[Event] = [
    turn(SCOPE, "e1", "one", at=1.6e9, turn_id="t1"),
    turn(SCOPE, "e2", "uno", role="assistant", at=1.6e9 + 10, turn_id="t2"),
    turn(SCOPE, "e3", "two", at=1.6e9 + 20, turn_id="t3"),
    turn(SCOPE, "e4", "two, rather", at=1.6e9 + 20, turn_id="t3", revision=1),
    turn(SCOPE, "e5", "gone", at=1.6e9 + 30, turn_id="t4"),
    TurnDeleted(scope=SCOPE, session_id="s1", turn_id="t4", timestamp_ms=NOW_MS, event_id="e6"),
]


def snapshot(found: SessionEntries) -> tuple[object, ...]:
    rows = [
        (e.entry_id, e.time_ms, e.objective, e.conclusion, np.round(v, 4).tolist())
        for e, v in zip(found.entries, found.vectors, strict=True)
    ]
    return tuple(rows)


def test_late_edited_and_deleted_turns_give_the_same_entries_in_any_order(tmp_path: Path) -> None:
    """Delivery order leaves no trace, in a cache that looked after each event neither."""
    expected = {("one", "uno"), ("two, rather", "")}
    outcomes = set()
    for number, order in enumerate(random.Random(3).sample(list(permutations(EVENTS)), 12)):
        shards = Shards(tmp_path / str(number))
        cache = SessionCache(ShardReaders(shards))
        for event in order:
            remember(shards, SCOPE, [event], EMBEDDER)
            seen = cache.entries(SCOPE, "s1")
            assert snapshot(seen) == snapshot(SessionCache(ShardReaders(shards)).entries(SCOPE, "s1"))
        assert set(pairs(seen.entries)) == expected
        outcomes.add(str(snapshot(seen)))
    assert len(outcomes) == 1


def test_the_cache_follows_any_story(tmp_path: Path) -> None:
    """What is added to what is known must be what is read afresh, roles and names changing on the way."""
    luck = random.Random(7)
    shards = Shards(tmp_path)
    cache = SessionCache(ShardReaders(shards))
    for step in range(60):
        published: list[Event] = []
        for n in range(luck.choice([1, 1, 2, 3])):
            number = f"{step}-{n}"
            role = luck.choice(["user", "user", "assistant", "tool", "system"] if step > 10 else ["user"])
            metadata = {"turnstream.exchange": f"x{luck.randrange(8)}"} if luck.random() < 0.2 else {}
            at = 1.6e9 + (luck.randrange(60) * 90 if luck.random() < 0.2 else step * 90 + n)
            fields: dict[str, Any] = {"role": role, "at": at, "metadata": metadata}
            if luck.random() < 0.1:
                fields |= {"turn_id": f"{luck.randrange(step + 1)}-0", "revision": step}
            published.append(turn(SCOPE, number, f"words {number}", speaker=luck.choice(["Ann", "Bo"]), **fields))
        if luck.random() < 0.15:
            gone = f"{luck.randrange(step + 1)}-0"
            published.append(
                TurnDeleted(scope=SCOPE, session_id="s1", turn_id=gone, timestamp_ms=NOW_MS, event_id=f"d{step}")
            )
        remember(shards, SCOPE, published, EMBEDDER)
        found = cache.entries(SCOPE, "s1")
        assert snapshot(found) == snapshot(SessionCache(ShardReaders(shards)).entries(SCOPE, "s1")), step


@pytest.mark.parametrize(
    "last", [{"metadata": {"turnstream.exchange": "x"}}, {"role": "assistant"}, {"speaker": "Cy"}]
)
def test_a_turn_that_changes_what_was_settled_is_seen(tmp_path: Path, last: dict[str, Any]) -> None:
    """One more of an old name, or the first of another role, tells old exchanges anew."""
    shards = Shards(tmp_path)
    cache = SessionCache(ShardReaders(shards))
    named = [
        turn(SCOPE, f"n{n}", f"named {n}", at=1.6e9 + n, metadata={"turnstream.exchange": "x"}) for n in range(2)
    ]
    talk = [turn(SCOPE, f"e{n}", f"talk {n}", at=1.6e9 + 9 + n, speaker=("Ann", "Bo")[n % 2]) for n in range(6)]
    for event in [*named, *talk, turn(SCOPE, "last", "last", at=1.6e9 + 99, **last)]:
        remember(shards, SCOPE, [event], EMBEDDER)
        assert snapshot(cache.entries(SCOPE, "s1")) == snapshot(
            SessionCache(ShardReaders(shards)).entries(SCOPE, "s1")
        )


def test_vectors_come_when_turns_are_embedded(tmp_path: Path) -> None:
    """A row of zeros says so until then; no change of the turns announces it."""
    shards = Shards(tmp_path)
    cache = SessionCache(ShardReaders(shards))
    remember(shards, SCOPE, EVENTS[:2], EMBEDDER)
    before = cache.entries(SCOPE, "s1")
    ledger = open_ledger(shards, SCOPE)
    events.apply(ledger, [turn(SCOPE, "e9", "three", at=1.6e9 + 99)], now_ms=NOW_MS)
    ledger.close()
    waiting = cache.entries(SCOPE, "s1")
    assert waiting.version > before.version
    assert np.linalg.norm(waiting.vectors, axis=1).round(5).tolist() == [1, 0]
    remember(shards, SCOPE, [], EMBEDDER)
    embedded = cache.entries(SCOPE, "s1")
    assert embedded.version == waiting.version
    assert np.allclose(embedded.vectors[1], EMBEDDER.embed(["three"])[0], atol=1e-3)
    assert np.allclose(embedded.vectors[0], EMBEDDER.embed(["one uno"])[0], atol=1e-3)


def test_a_forgotten_session_is_gone_from_a_cache_that_knew_it(tmp_path: Path) -> None:
    """Deleted is gone from the commit on, caches included."""
    shards = Shards(tmp_path)
    cache = SessionCache(ShardReaders(shards))
    remember(shards, SCOPE, EVENTS[:2], EMBEDDER)
    assert cache.entries(SCOPE, "s1").entries
    remember(
        shards, SCOPE, [SessionDeleted(scope=SCOPE, session_id="s1", timestamp_ms=NOW_MS, event_id="x")], EMBEDDER
    )
    assert cache.entries(SCOPE, "s1").entries == ()


def test_a_scope_that_does_not_exist_has_no_entries_and_is_not_made(tmp_path: Path) -> None:
    """Asking creates nothing."""
    assert SessionCache(ShardReaders(Shards(tmp_path))).entries(SCOPE, "s1").entries == ()
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_of_sessions_is_bounded(tmp_path: Path) -> None:
    """A bot with many sessions must not grow for ever; one that was let go is read again."""
    shards = Shards(tmp_path)
    cache = SessionCache(ShardReaders(shards), max_bytes=20_000)
    remember(shards, SCOPE, [turn(SCOPE, f"e{n}", "x" * 1_000, session=f"s{n}") for n in range(30)], EMBEDDER)
    for _ in range(2):
        for n in range(30):
            assert len(cache.entries(SCOPE, f"s{n}").entries) == 1
            assert cache.n_bytes == sum(session.n_bytes for session in cache._known.values()) <= 20_000
    assert 1 <= len(cache._known) < 10
