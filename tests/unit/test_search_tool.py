"""The tool's three shapes, its errors, its schema, and the verbs that show the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import retrieval
from pipeline.ledger import events
from pipeline.records import Event, Scope, Turn
from pipeline.shards import Shards
from retrieval import Memory, SearchableSessionStoreProtocol, SessionHit, SessionSummary, open_memory
from retrieval.search import tool
from tests.commands import CommandLine
from tests.fakes import FakeEmbedder
from tests.ledgers import open_ledger

SCOPE = Scope("user", "u1")
START = 1_700_000_000
Ask = Callable[..., dict[str, Any]]


def turn(number: int, content: str, *, session: str = "s1", scope: Scope = SCOPE) -> Turn:
    return Turn(
        scope=scope,
        session_id=session,
        content=content,
        timestamp=START + 90 * number,
        event_id=f"e{number}",
        role=("user", "assistant")[number % 2],
    )


def tell(data_dir: Path, *published: Event) -> None:
    with closing(open_ledger(Shards(data_dir), published[0].scope)) as ledger:
        events.apply(ledger, published, now_ms=0)


@pytest.fixture
def memory(data_dir: Path) -> Memory:
    tell(data_dir, *(turn(i, f"Größe {i} of the whale 鯨") for i in range(8)), turn(9, "hello", session="s2"))
    return open_memory(data_dir, embedder=FakeEmbedder())


@pytest.fixture
def ask(memory: Memory) -> Ask:
    bound = tool.bound_to(memory.sessions(SCOPE, profile="keyword"), SCOPE)
    return lambda *args, **options: json.loads(bound(*args, **options))


def test_discovery_has_its_shape(ask: Ask) -> None:
    """As the documentation lists it, and nothing else."""
    found = ask("whale")
    assert list(found) == ["success", "mode", "query", "total_found", "results"]
    assert (found["success"], found["mode"], found["query"], found["total_found"]) == (True, "discovery", "whale", 1)
    (hit,) = found["results"]
    assert list(hit) == ["session_id", "title", "when", "snippet", "score", "anchor_index", "messages", "bookends"]
    assert (hit["session_id"], hit["score"], hit["anchor_index"]) == ("s1", 24, 0)
    assert set(hit["messages"][0]) == {"index", "message_id", "role", "content", "timestamp"}
    assert list(hit["bookends"]) == ["opening", "closing"]


def test_scroll_has_its_shape(ask: Ask) -> None:
    """Around the last turn when no other is named."""
    found = ask(session_id="s1", window=1)
    assert list(found) == ["success", "mode", "session_id", "around_message_id", "messages"]
    assert (found["mode"], found["session_id"], found["around_message_id"]) == ("scroll", "s1", "")
    assert [message["index"] for message in found["messages"]] == [6, 7]
    assert [m["index"] for m in ask(session_id="s1", around_message_id="e3", window=1)["messages"]] == [2, 3, 4]


def test_browse_has_its_shape(ask: Ask) -> None:
    """The session spoken in last comes first."""
    found = ask()
    assert list(found) == ["success", "mode", "total_found", "results"]
    assert (found["mode"], found["total_found"]) == ("browse", 2)
    assert [session["session_id"] for session in found["results"]] == ["s2", "s1"]
    assert list(found["results"][0]) == ["session_id", "title", "when", "message_count"]
    assert found["results"][0]["when"] == "2023-11-14T22:26:50+00:00"


def test_the_query_decides_then_the_session(ask: Ask) -> None:
    """The mode is told by the arguments, in this order."""
    assert ask("whale", session_id="s1")["mode"] == "discovery"
    assert ask("", session_id="s1", around_message_id="2")["mode"] == "scroll"
    assert ask("   ")["results"] == []


def test_the_answer_is_indented_and_keeps_other_scripts(memory: Memory) -> None:
    """A model reads it as it is."""
    answer = tool.bound_to(memory.sessions(SCOPE))("Größe")
    assert answer.startswith('{\n  "success": true')
    assert "鯨" in answer


@pytest.mark.parametrize(
    ("arguments", "mode", "named"),
    [
        ({"query": "x", "limit": 0}, "discovery", "limit"),
        ({"query": "x", "limit": 51}, "discovery", "limit"),
        ({"limit": "5"}, "browse", "limit"),
        ({"limit": True}, "browse", "limit"),
        ({"query": "x", "window": -1}, "discovery", "window"),
        ({"session_id": "s1", "window": 51}, "scroll", "window"),
        ({"session_id": "s1", "window": None}, "scroll", "window"),
        ({"query": 7}, "discovery", "query"),
        ({"query": "x" * 9_999}, "discovery", "query"),
        ({"session_id": ["s1"]}, "scroll", "session_id"),
        ({"session_id": "s1", "around_message_id": [1]}, "scroll", "around_message_id"),
        ({"session_id": "s1", "around_message_id": "nowhere"}, "scroll", "around_message_id"),
        ({"session_id": "nowhere"}, "scroll", "session_id"),
        ({"scope": "user/u2"}, "browse", "scope"),
    ],
)
def test_an_error_is_an_answer_that_names_what_is_wrong(
    ask: Ask, arguments: dict[str, Any], mode: str, named: str
) -> None:
    """A tool that raises ends the agent's turn."""
    found = ask(**arguments)
    assert list(found) == ["success", "tool", "mode", "session_id", "error", "hint"]
    assert (found["success"], found["tool"], found["mode"]) == (False, "session_search", mode)
    assert found["session_id"] == arguments.get("session_id")
    assert found["error"].startswith(named)
    assert found["hint"]


def test_records_have_their_defaults_and_the_memory_is_a_store(memory: Memory) -> None:
    """Other stores and other tools are written against these."""
    assert SessionHit("s").as_dict() == {
        "session_id": "s",
        "title": "",
        "when": None,
        "snippet": "",
        "score": 0.0,
        "anchor_index": -1,
        "messages": [],
    }
    assert SessionHit("s", bookends={"opening": []}).as_dict()["bookends"] == {"opening": []}
    assert SessionSummary("s").as_dict() == {"session_id": "s", "title": "", "when": None, "message_count": 0}
    assert isinstance(memory.sessions(SCOPE), SearchableSessionStoreProtocol)
    assert not isinstance(object(), SearchableSessionStoreProtocol)


def test_the_function_reads_the_settings_folder(
    memory: Memory, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one scope it need not be named; with two it must."""
    monkeypatch.setenv("TURNSTREAM_DATA_DIR", str(data_dir))
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__BACKEND", "hashing")
    assert json.loads(retrieval.session_search("whale"))["results"][0]["session_id"] == "s1"
    tell(data_dir, turn(1, "another whale", session="theirs", scope=Scope("user", "u2")))
    assert "scope" in json.loads(retrieval.session_search("whale"))["error"]
    assert "KIND/ID" in json.loads(retrieval.session_search("whale", scope="u1"))["error"]
    found = json.loads(retrieval.session_search("whale", scope="user/u2"))
    assert [hit["session_id"] for hit in found["results"]] == ["theirs"]
    assert json.loads(retrieval.session_search("whale", scope="user/nobody"))["results"] == []
    del memory


def test_the_schema_is_a_function_of_openai_and_names_every_argument(turnstream: CommandLine) -> None:
    """What the schema allows the function takes."""
    schema = json.loads(turnstream("schema", "--tool", "session_search").out)
    assert schema["type"] == "function"
    function = schema["function"]
    assert function["name"] == "session_search"
    taken = tool.session_search.__annotations__.keys() - {"return"}
    assert function["parameters"]["properties"].keys() == taken
    limits = function["parameters"]["properties"]
    assert (limits["limit"]["minimum"], limits["limit"]["maximum"]) == (1, 50)
    assert (limits["window"]["minimum"], limits["window"]["maximum"]) == (0, 50)
    refused = turnstream("schema", "--tool", "other")
    assert (refused.code, "session_search" in refused.err) == (2, True)


def test_the_verbs_show_what_the_tool_answers(memory: Memory, data_dir: Path, turnstream: CommandLine) -> None:
    """The person who debugs an agent sees what it saw; filters and pages are options."""
    where = ("--scope", "user/u1", "--data-dir", str(data_dir))
    bound = tool.bound_to(memory.sessions(SCOPE, profile="keyword"))
    searched = turnstream("search", "whale", "--profile", "keyword", "--json", *where)
    assert json.loads(searched.out) == json.loads(bound("whale"))
    assert json.loads(turnstream("window", "s1", "--around", "e3", "--json", *where).out) == json.loads(
        bound(session_id="s1", around_message_id="e3")
    )
    assert json.loads(turnstream("recent", "--json", *where).out) == json.loads(bound(limit=10))
    assert "whale" in turnstream("search", "how large was the whale?", *where).out
    assert turnstream("search", "whale", "--exclude", "s1", *where).out == ""
    assert turnstream("search", "whale", "--role", "tool", *where).out == ""
    assert turnstream("search", "whale", "--offset", "1", *where).out == ""
    assert "s2" in turnstream("recent", "--limit", "1", *where).out
    assert "Größe 7" in turnstream("window", "s1", *where).out
    assert turnstream("window", "none", *where).code == 1
    assert turnstream("search", "whale", "--after", "soon", *where).code == 2
