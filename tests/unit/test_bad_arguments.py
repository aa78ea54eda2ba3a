"""What a bot may give a memory by mistake is answered by an error that names it, before anything is done."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retrieval
from pipeline.embed.hashing import HashingEmbedder
from pipeline.errors import TurnstreamError
from pipeline.records import SESSION_TAG_PREFIX, Mood, Scope, Turn
from pipeline.settings import EmbeddingSettings, Settings
from retrieval import Memory, SessionRetriever, open_memory
from retrieval.arguments import CHECKS
from retrieval.context.context import ContextWriter
from retrieval.search.store import SessionSearch

WRONG: tuple[Any, ...] = (
    *(5, -1, True, math.nan, math.inf, 10**30, b"bytes", bytearray(b"x"), "\ud800", "a\x00b", "\x00", "", " ", "no"),
    *([], {}, (), {1}, object(), [b"x"], ["\ud800"], [5], (1, 2), (0, 0, 2), (0, "0", 0), {"a": 1}, date(2026, 3, 1)),
    *(None, "5", 2.5, datetime(2026, 3, 1), "x" * 20_000),  # noqa: DTZ001 - a time without a zone is UTC
)
SCOPE = "user/u1"
OF_SCOPE = Scope("user", "u1")
ABOUT: Mapping[str, Any] = {"session_id": "s-1", "scope": SCOPE}
WHEN: Mapping[str, Any] = {"after": 1.0, "before": datetime(2026, 3, 1, tzinfo=UTC)}
TOLD: Mapping[str, Any] = {
    "objective": "Which port?",
    "conclusion": "8080.",
    "key_results": ["8080"],
    "tools": ["grep"],
    "n_errors": 0,
    "outcome": "done",
    "refs": ["e-0"],
    "pinned": False,
    "entry_id": "e-1",
}
COUNTS: Mapping[str, Any] = {"top_sessions": 1, "chunks_per_session": 1, "recall_top_k": 3}
ASKED: Mapping[str, Any] = {
    "query": "Which port?",
    "scope": SCOPE,
    "mood": (0.0, 0.0, 0.0),
    "coverage": True,
    "asked_at": 3.0,
    **COUNTS,
    **WHEN,
}
SOUGHT: Mapping[str, Any] = {
    "query": "Which port?",
    "scope": SCOPE,
    "limit": 5,
    "window": 5,
    "offset": 0,
    "role": "user",
    "exclude": "s-9",
    **WHEN,
}
VECTOR = HashingEmbedder().embed(["Which port?"])[0]
TRACES: Mapping[str, Any] = {"scope": OF_SCOPE, "top_k": 3, "mood": (0.0, 0.0, 0.0), **WHEN}


def _retriever(memory: Memory) -> Callable[..., Any]:
    return SessionRetriever(memory.summary_store, memory.memory_store, memory.embedder).retrieve


def _method(store: str, name: str) -> Callable[[Memory], Callable[..., Any]]:
    return lambda memory: getattr(getattr(memory, store), name)


def _without(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return {key: value for key, value in given.items() if key != name}


CALLS: dict[str, tuple[Callable[[Memory], Callable[..., Any]], Mapping[str, Any]]] = {
    "retrieve": (lambda memory: memory.retrieve, {**ASKED, "profile": "fused"}),
    "retrieve by session": (lambda memory: memory.retrieve, {**ASKED, "profile": "session"}),
    "candidates": (lambda memory: memory.candidates, {"query": "Which port?", "scope": SCOPE, "asked_at": 3.0}),
    "search": (lambda memory: memory.search, {**SOUGHT, "profile": "best"}),
    "search by keyword": (lambda memory: memory.search, {**SOUGHT, "profile": "keyword"}),
    "window": (lambda memory: memory.window, {**ABOUT, "around_message_id": "0", "window": 3}),
    "recent": (lambda memory: memory.recent, {**WHEN, "scope": SCOPE, "limit": 3, "offset": 0, "exclude": "s-9"}),
    "sessions": (lambda memory: memory.sessions, {"scope": SCOPE, "profile": "best", "exclude": ["s-9"]}),
    "context": (
        lambda memory: memory.context,
        {
            **ABOUT,
            "objective": "Which port?",
            "strategy": "dynamic",
            "max_tokens": 200,
            "across_sessions": True,
            "count_tokens": len,
        },
    ),
    "remember": (lambda memory: memory.remember, {**ABOUT, **TOLD}),
    "session_memory": (lambda memory: memory.session_memory, {"scope": SCOPE}),
    "load": (lambda memory: memory.session_memory(SCOPE).load, {"session_id": "s-1"}),
    "entries": (lambda memory: memory.session_memory(SCOPE).entries, {"session_id": "s-1"}),
    "forget": (lambda memory: memory.session_memory(SCOPE).forget, {"session_id": "s-8"}),
    "to_prompt": (lambda memory: memory.retrieve("port", SCOPE).to_prompt, {"max_tokens": 200}),
    "retriever": (
        _retriever,
        {**_without(ASKED, "asked_at"), "scope": OF_SCOPE, "session_tag_prefix": SESSION_TAG_PREFIX},
    ),
    "retriever's defaults": (
        lambda memory: partial(SessionRetriever, memory.summary_store, memory.memory_store, memory.embedder),
        {"default_top_sessions": 1, "default_chunks_per_session": 0},
    ),
    "traces": (
        lambda memory: memory.memory_store.query,
        {**TRACES, "query": "Which port?", "now_ms": 1_700_000_000_000},
    ),
    "traces near a vector": (lambda memory: memory.memory_store.query, {**TRACES, "query": VECTOR}),
    "traces of sessions": (
        lambda memory: memory.memory_store.query_sessions,
        {**TRACES, "vector": VECTOR, "session_ids": ["s-1"]},
    ),
    "summaries": (
        lambda memory: memory.summary_store.query_sessions,
        {"query": "Which port?", "scope": OF_SCOPE, "top_k": 3},
    ),
    "index_session": (
        lambda memory: memory.summary_store.index_session,
        {"scope": OF_SCOPE, "session_id": "s-1", "summary": "A port.", "session_date": "2026-03-01"},
    ),
    "delete_session": (
        lambda memory: memory.summary_store.delete_session,
        {"scope": OF_SCOPE, "session_id": "s-8"},
    ),
    **{
        f"{store} {name}": (_method(store, name), {"scope": OF_SCOPE})
        for store, names in {
            "memory_store": ("collection", "exists"),
            "summary_store": ("collection", "exists", "list_sessions", "re_embed"),
        }.items()
        for name in names
    },
}
_NUMBER, _TEXTS = (int, np.integer), (str, list, tuple, set, frozenset)
KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("query", "objective", "conclusion", "profile", "strategy", "session_id", "entry_id"), (str,)),
    **dict.fromkeys(("summary", "session_date", "session_tag_prefix"), (str,)),
    **dict.fromkeys(("top_sessions", "chunks_per_session", "recall_top_k", "top_k", "max_tokens"), _NUMBER),
    **dict.fromkeys(("default_top_sessions", "default_chunks_per_session", "now_ms", "n_errors"), _NUMBER),
    **dict.fromkeys(("limit", "window", "offset"), _NUMBER),
    **dict.fromkeys(("after", "before", "asked_at"), (int, float, str, datetime)),
    **dict.fromkeys(("role", "exclude"), _TEXTS),
    **dict.fromkeys(("key_results", "tools", "refs", "session_ids", "mood"), _TEXTS[1:]),
    **dict.fromkeys(("coverage", "across_sessions", "pinned"), (bool,)),
    "around_message_id": (str, int),
    "outcome": (str,),
    "scope": (str, Scope),
    "vector": (np.ndarray,),
    "count_tokens": (type(len),),
}
"""What may be right in some call; everything else must be refused in each."""


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """One session with one exchange."""
    folder: Path = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, embedding=EmbeddingSettings(backend="hashing"))
    opened = open_memory(settings=settings, embedder=HashingEmbedder())
    opened.remember(**ABOUT, objective="Which port?", conclusion="8080.")
    yield opened
    opened.close()


def _refusal(call: Callable[..., Any], given: Mapping[str, Any]) -> TurnstreamError | ValueError | None:
    try:
        call(**given)
    except UnicodeError:  # a ValueError, but Python's own
        raise
    except (TurnstreamError, ValueError) as error:
        return error
    return None


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named_in_an_error_that_is_promised(memory: Memory, name: str) -> None:
    """A bot catches what the documentation names; one of Python's, from deep inside, ends its loop."""
    method, given = CALLS[name]
    call = method(memory)
    call(**given)
    defaults = {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}
    for argument in given:
        for wrong in WRONG:
            error = _refusal(call, {**given, argument: wrong})
            said = str(error).startswith((f"{argument}: ", "after: is later"))
            assert error is None or isinstance(error, TurnstreamError) or said, (argument, wrong, error)
            if not _may_be_meant(argument, wrong, defaults[argument]):
                assert error is not None, (argument, wrong)


def _may_be_meant(argument: str, value: Any, default: Any) -> bool:
    if value is None or isinstance(value, bool):
        return value is default or (isinstance(value, bool) and bool in KINDS[argument])
    return isinstance(value, KINDS[argument])


@pytest.mark.parametrize(
    ("name", "argument", "wrong"),
    [
        ("context", "objective", 5),
        ("context", "max_tokens", math.nan),
        ("context", "max_tokens", True),
        ("context", "across_sessions", 1),
        ("retrieve", "query", b"bytes"),
        ("retrieve", "mood", ()),
        ("retrieve", "recall_top_k", "3"),
        ("search", "role", b"user"),
        ("search", "exclude", [5]),
        ("sessions", "scope", 5),
        ("load", "session_id", "\ud800"),
        ("load", "session_id", "a\x00b"),
        ("to_prompt", "max_tokens", 2.5),
    ],
)
def test_what_cannot_be_meant_is_refused(memory: Memory, name: str, argument: str, wrong: Any) -> None:
    """To go on with a guess would hide the mistake: True is no budget, and bytes are no question."""
    method, given = CALLS[name]
    with pytest.raises((ValueError, TurnstreamError), match=f"^{argument}: "):
        method(memory)(**{**given, argument: wrong})


def test_half_an_emoji_in_a_question_is_read_all_the_same(memory: Memory) -> None:
    """Platforms cut texts at any unit; a question is not kept, so it need not be storable."""
    assert memory.context("s-1", SCOPE, objective="Which port \ud83d").block
    memory.retrieve("Which port \ud83d", SCOPE)
    memory.search("Which port \ud83d", SCOPE)


def _public_calls() -> Iterator[tuple[str, Callable[..., Any], set[str]]]:
    """Name each public method that takes an argument, of every class that readers are given."""
    for kind in (getattr(retrieval, name) for name in retrieval.__all__):
        if inspect.isclass(kind) and not getattr(kind, "_is_protocol", False):
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                arguments = set(inspect.signature(method).parameters) - {"self"}
                if arguments and not name.startswith("_"):
                    yield f"{kind.__name__}.{name}", method, arguments


def test_each_public_call_is_checked_but_those_that_hand_on_to_one_that_is() -> None:
    """A decorator that is forgotten lets a mistake through to where nobody can tell whose it is."""
    delegates = {
        "Memory.context": ContextWriter.context,
        "Memory.search": SessionSearch.search,
        "Memory.window": SessionSearch.window,
        "Memory.recent": SessionSearch.recent,
    }
    calls = {name: delegates.get(name, method) for name, method, _ in _public_calls()}
    assert {*delegates, "MemoryStore.query", "SessionRetriever.retrieve", "SessionSummaryStore.exists"} <= {*calls}
    assert [name for name, method in calls.items() if not hasattr(method, "__wrapped__")] == []
    for name in delegates:
        method: Any = calls[name]
        assert inspect.signature(method) == inspect.signature(getattr(Memory, name.partition(".")[2])), name


def test_each_argument_of_the_public_calls_is_told_what_it_may_be() -> None:
    """One that is added is not forgotten in the checks, nor in the table of calls."""
    for name, _, arguments in _public_calls():
        assert arguments <= {*CHECKS, *TOLD}, name
        assert any(arguments <= {*given} | {"scope"} for _, given in CALLS.values()), name


def test_what_the_specification_allows_is_taken(memory: Memory) -> None:
    """0 is a wish for nothing, None for the default; numbers of numpy are numbers."""
    retrieve = _retriever(memory)
    for nothing in ({"top_sessions": 0}, {"chunks_per_session": 0}, {"recall_top_k": np.int64(0)}):
        retrieve("Which port?", OF_SCOPE, **nothing)
    assert retrieve("Which port?", OF_SCOPE, recall_top_k=0).retrieved == ()
    retrieve("Which port?", OF_SCOPE, Mood(-1, 0, 1), top_sessions=None, chunks_per_session=None)
    retrieve("Which port?", OF_SCOPE, (np.float32(0.3), np.float64(-1), np.int64(0)))
    assert memory.memory_store.query("Which port?", OF_SCOPE, top_k=0).scored == ()
    memory.memory_store.query(VECTOR.tolist(), OF_SCOPE, top_k=1)
    sets: dict[str, Any] = {"role": {"user"}, "exclude": frozenset({"s-9"})}
    memory.search("port", SCOPE, **sets)
    for name in ("top_sessions", "chunks_per_session", "recall_top_k"):
        with pytest.raises(ValueError, match=f"^{name}: -1 is negative"):
            retrieve("Which port?", OF_SCOPE, **{name: -1})


def test_a_feeling_of_another_kind_is_told_from_one_out_of_bounds(memory: Memory) -> None:
    """Bytes are numbers to Python, and hold no mood; who gives a text is not helped by hearing of bounds."""
    moods: tuple[tuple[Any, str], ...] = (
        (b"\0\1\0", "is bytes"),
        ((0, "0", 0), "is str; give a number for arousal"),
        ((0, 0, 2), "dominance is 2"),
    )
    for mood, said in moods:
        with pytest.raises(ValueError, match=f"^mood: {said}"):
            memory.retrieve("port", SCOPE, mood)


def test_tags_are_taken_as_a_set_too() -> None:
    """As roles and excluded sessions are; sorted, for a set has another order in each process."""
    tags: Any = {"c", "a", "b"}
    made = Turn(scope=OF_SCOPE, session_id="s", role="user", content="x", timestamp=1.0, tags=tags)
    assert made.tags == ("a", "b", "c")
