"""What is remembered is two turns of the ledger: checked, durable, searchable, and whole beside published ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from pipeline.errors import NotFoundError, PoisonError
from pipeline.ledger import check, reads
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.records import SessionClosed, TurnDeleted
from pipeline.settings import mask_url
from retrieval import Memory, Outcome, open_memory
from retrieval.context.backends import record
from retrieval.context.entries.entry import Entry
from tests.ledgers import NOW_MS, turn
from tests.small_pipeline import SCOPE, SmallPipeline, _embedder
from workers.checkup import Verdict, verify_data

SURROGATE = "a\ud800"
NUL = "a\x00"


@pytest.fixture
def pipeline(tmp_path: Path) -> SmallPipeline:
    made = SmallPipeline(tmp_path / "data")
    made.settings.data_dir.mkdir()
    return made


@pytest.fixture
def memory(pipeline: SmallPipeline) -> Iterator[Memory]:
    with closing(open_memory(settings=pipeline.settings, embedder=_embedder())) as opened:
        yield opened


def exchanges(memory: Memory, session_id: str = "s1") -> list[tuple[str, str]]:
    return [(e.objective, e.conclusion) for e in memory.session_memory(SCOPE).entries(session_id).entries]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"objective": "  "}, "objective"),
        ({"objective": None}, "objective"),
        ({"objective": NUL}, "objective"),
        ({"objective": SURROGATE}, "objective"),
        ({"objective": "x" * (1 << 20) + "y"}, "objective"),
        ({"conclusion": 3}, "conclusion"),
        ({"conclusion": SURROGATE}, "conclusion"),
        ({"conclusion": "é" * (1 << 20)}, "conclusion"),
        ({"key_results": "one text"}, "key_results"),
        ({"key_results": [NUL]}, "key_results"),
        ({"key_results": [7]}, "key_results"),
        ({"key_results": {"a": 1}}, "key_results"),
        ({"key_results": ["x" * 200_000, "y" * 200_000]}, "key_results"),
        ({"tools": [""]}, "tools"),
        ({"tools": [SURROGATE]}, "tools"),
        ({"refs": [None]}, "refs"),
        ({"n_errors": -1}, "n_errors"),
        ({"n_errors": True}, "n_errors"),
        ({"n_errors": 1.5}, "n_errors"),
        ({"outcome": "great"}, "outcome"),
        ({"outcome": ["done"]}, "outcome"),
        ({"pinned": "yes"}, "pinned"),
        ({"entry_id": " "}, "entry_id"),
        ({"entry_id": "x" * 401}, "entry_id"),
        ({"entry_id": NUL}, "entry_id"),
        ({"entry_id": "x/conclusion "}, "entry_id"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"session_id": "x" * 513}, "session_id"),
        ({"session_id": SURROGATE}, "session_id"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_written(
    memory: Memory, tmp_path: Path, arguments: dict[str, Any], name: str
) -> None:
    """Whoever calls it is a program: its author must see which argument."""
    values = {"session_id": "s1", "objective": "ask", "conclusion": "answer"} | arguments
    with pytest.raises((ValueError, PoisonError), match=rf"^{name}"):
        memory.session_memory(SCOPE).remember(**values)
    assert list((tmp_path / "data").iterdir()) == []


def test_what_is_remembered_comes_back_whole(memory: Memory) -> None:
    """All that an agent reports is an entry's; spaces around a text are not."""
    pinned = memory.remember(
        "s1", SCOPE, " Deploy ", "Up at 9:10 🦜\n", ["v2", "v2", "port 80"], tools=["build", "push", "build"],
        n_errors=2, outcome="failed", refs=["t9"], pinned=True,
    )  # fmt: skip
    (entry,) = memory.session_memory(SCOPE).entries("s1").entries
    assert (entry.entry_id, entry.objective, entry.conclusion) == (pinned, "Deploy", "Up at 9:10 🦜")
    assert (entry.key_results, entry.tools, entry.n_errors) == (("v2", "port 80"), ("build", "push", "build"), 2)
    assert (entry.outcome, entry.refs, entry.is_pinned) == (Outcome.FAILED, ("t9",), True)


def test_new_ids_are_later_in_order(memory: Memory) -> None:
    """Two exchanges of one millisecond stand in the order in which they were remembered."""
    with closing(open_memory(memory._readers.shards.data_dir, embedder=_embedder(), clock=lambda: NOW_MS)) as frozen:
        ids = [frozen.remember("s1", SCOPE, f"ask {n}", f"answer {n}") for n in range(5)]
        assert ids == sorted(ids)
        assert exchanges(frozen) == [(f"ask {n}", f"answer {n}") for n in range(5)]
        sessions = frozen.session_memory(SCOPE)
        assert sessions.load().session_id != sessions.load().session_id


def test_it_is_found_by_words_at_once_and_by_meaning_once_workers_have_seen_it(
    pipeline: SmallPipeline, memory: Memory
) -> None:
    """Remembered turns are turns as any others; a program that reports often is no automated session."""
    for n in range(8):
        memory.remember("s1", SCOPE, f"lantern question {n}", f"harbour answer {n}")
    assert [hit.session_id for hit in memory.search("harbour", SCOPE, profile="keyword")] == ["s1"]
    pipeline.work()
    assert {hit.session_id for hit in memory.retrieve("harbour answer", SCOPE).hits} == {"s1"}
    with closing(connect_ledger(pipeline.ledger_path, query_only=True)) as connection:
        assert reads.has_traces(connection)
        assert connection.execute("SELECT is_automated FROM cards").fetchall() == [(False,)]
    assert (memory.session_memory(SCOPE).entries("s1").vectors.any(axis=1)).all()


def test_a_checker_finds_nothing_wrong_with_remembered_beside_published(
    pipeline: SmallPipeline, memory: Memory
) -> None:
    """A platform numbers its turns, an agent does not: neither gaps are made up, nor are real ones hidden."""
    numbered = [turn(SCOPE, f"p{n}", f"published {n}", session="whole", index=n) for n in range(5, 9)]
    holes = [turn(SCOPE, f"h{n}", f"published {n}", session="holes", index=n) for n in (0, 1, 2, 5)]
    pipeline.publish([*numbered, *holes])
    for n in range(6):
        memory.remember("whole", SCOPE, f"ask {n}", f"answer {n}")
        memory.remember("holes", SCOPE, f"ask {n}", "")
        memory.remember("alone", SCOPE, f"ask {n}", f"answer {n}")
    pipeline.publish(
        [
            TurnDeleted(scope=SCOPE, session_id="whole", turn_id="p6", timestamp_ms=NOW_MS, event_id="d"),
            SessionClosed(scope=SCOPE, session_id="alone", timestamp_ms=NOW_MS, event_id="c"),
        ]
    )
    pipeline.work()
    with closing(connect_ledger(pipeline.ledger_path, query_only=True)) as connection:
        assert [(gap.session_id, gap.missing) for gap in check.gaps(connection)] == [("holes", (3, 4))]
        assert list(check.contents(connection)) == []
    damaged = [f.detail for f in verify_data(pipeline.settings) if f.verdict is Verdict.DAMAGED]
    assert [detail for detail in damaged if "holes" not in detail] == []


def test_published_and_remembered_exchanges_of_one_session_stay_apart(
    pipeline: SmallPipeline, memory: Memory
) -> None:
    """An agent may report in the middle of a conversation that its platform publishes."""
    pipeline.publish([turn(SCOPE, "p1", "published question", at=NOW_MS / 1000)])
    with closing(open_memory(settings=pipeline.settings, clock=lambda: NOW_MS + 5)) as agent:
        agent.remember("s1", SCOPE, "remembered question", "remembered answer")
    pipeline.publish([turn(SCOPE, "p2", "published answer", role="assistant", at=NOW_MS / 1000 + 1)])
    assert exchanges(memory) == [
        ("remembered question", "remembered answer"),
        ("published question", "published answer"),
    ]


def test_the_turns_of_a_remembered_exchange_are_edited_and_deleted_as_any(
    pipeline: SmallPipeline, memory: Memory
) -> None:
    """What a user corrects or takes back counts for the agent's memory, too."""
    memory.remember("s1", SCOPE, "ask", "answer", entry_id="one")
    memory.remember("s1", SCOPE, "other", "answer", entry_id="two")
    edited = {
        "role": "assistant",
        "turn_id": "one/conclusion",
        "revision": 1,
        "metadata": {"turnstream.exchange": "one"},
    }
    pipeline.publish([turn(SCOPE, "e", "answer, rather", at=NOW_MS / 1000, **edited)])
    assert ("ask", "answer, rather") in exchanges(memory)
    pipeline.publish([TurnDeleted(scope=SCOPE, session_id="s1", turn_id="two", timestamp_ms=NOW_MS, event_id="d")])
    assert ("", "answer") in exchanges(memory)
    assert memory.session_memory(SCOPE).load("s1").previous_conclusions == ("answer, rather", "answer")


@pytest.mark.parametrize("taken", ["one", "one/conclusion"])
def test_an_id_that_another_turn_has_is_refused_and_nothing_is_lost(
    pipeline: SmallPipeline, memory: Memory, taken: str
) -> None:
    """Else the objective, or the conclusion, would be dropped and success reported."""
    pipeline.publish([turn(SCOPE, "p1", "published", turn_id=taken, at=NOW_MS / 1000)])
    with pytest.raises(ValueError, match=f"entry_id: '{taken}' is taken by another turn"):
        memory.remember("s1", SCOPE, "ask", "answer", entry_id="one")
    assert exchanges(memory) == [("published", "")]
    memory.remember("s2", SCOPE, "ask", "answer", entry_id="one")
    assert memory.remember("s2", SCOPE, "again", "else", entry_id="one") == "one"
    assert exchanges(memory, "s2") == [("ask", "answer")]


def test_of_an_exchange_whose_id_was_forgotten_nothing_is_written(pipeline: SmallPipeline, memory: Memory) -> None:
    """A conclusion without its objective would be left."""
    pipeline.publish([turn(SCOPE, "p1", "published", turn_id="one", at=NOW_MS / 1000)])
    pipeline.publish([TurnDeleted(scope=SCOPE, session_id="s1", turn_id="one", timestamp_ms=NOW_MS, event_id="d")])
    with pytest.raises(NotFoundError, match="was forgotten"):
        memory.remember("s1", SCOPE, "ask", "answer", entry_id="one")
    assert exchanges(memory) == []


def test_it_outlives_a_kill_right_after(memory: Memory) -> None:
    """Durable on return: nothing is left for later."""
    memory.remember("s1", SCOPE, "before", "the fork")
    child = os.fork()
    if child == 0:
        memory.remember("s1", SCOPE, "last words", "then killed")
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert exchanges(memory) == [("before", "the fork"), ("last words", "then killed")]


def test_a_damaged_registry_does_not_make_it_untrue(pipeline: SmallPipeline, memory: Memory) -> None:
    """It is in the ledger: an error would have it said twice."""
    memory.remember("s1", SCOPE, "ask", "answer")
    for path in pipeline.registry_path.parent.glob("registry.sqlite*"):
        path.unlink()
    pipeline.registry_path.write_bytes(b"no database" * 1000)
    with structlog.testing.capture_logs() as logs:
        memory.remember("s1", SCOPE, "ask", "again")
    assert [line["event"] for line in logs] == ["scope.left_unmarked"]
    assert exchanges(memory) == [("ask", "answer"), ("ask", "again")]


def test_damaged_metadata_says_nothing_and_stops_nobody(pipeline: SmallPipeline, memory: Memory) -> None:
    """A flipped byte costs what it held; the checker names the turn."""
    memory.remember("s1", SCOPE, "ask", "answer", ["key"])
    pipeline.sql("UPDATE turns SET metadata = '{no' WHERE role = 'assistant'")
    assert exchanges(memory) == [("ask", ""), ("", "answer")]


def test_silence_ends_a_session_only_where_it_is_longer_than_ttl() -> None:
    """The boundary itself still counts."""
    entries = [
        Entry(entry_id=str(n), session_id="s", time_ms=time_ms, objective="", conclusion="")
        for n, time_ms in enumerate([0, 100, 201, 301])
    ]
    assert record.first_living(entries, 301, None) == 0
    assert record.first_living(entries, 401, 100) == 2
    assert record.first_living(entries, 402, 100) == 4
    assert record.first_living(entries, None, 100) == 2
    assert record.first_living([], 5, 100) == 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@host:1/0",
        "redis://host?password=secret&db=1",
        "postgresql://user:secret@host/db",
        "host=here password=secret dbname=x",
        "host=here password='secret secret' dbname=x",
    ],
)
def test_no_spelling_of_a_password_is_shown(url: str) -> None:
    """`turnstream settings` is pasted into tickets."""
    assert "secret" not in mask_url(url)
