"""What a bot may give a memory by mistake is answered by an error that names it, before anything is done."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.embed.hashing import HashingEmbedder
from pipeline.errors import TurnstreamError
from pipeline.settings import EmbeddingSettings, Settings
from retrieval import Memory, open_memory
from retrieval.arguments import CHECKS
from retrieval.context.session.session_memory import SessionMemory

WRONG: tuple[Any, ...] = (
    *(5, -1, True, math.nan, math.inf, 10**30, b"bytes", bytearray(b"x"), "\ud800", "a\x00b", "\x00", "", " ", "no"),
    *([], {}, (), {1}, object(), [b"x"], ["\ud800"], [5], (1, 2), (0, 0, 2), (0, "0", 0), {"a": 1}, date(2026, 3, 1)),
    *(None, "5", 2.5, datetime(2026, 3, 1), "x" * 20_000),  # noqa: DTZ001 - a time without a zone is UTC
)
SCOPE = "user/u1"
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
}


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
    for argument in given:
        for wrong in WRONG:
            error = _refusal(call, {**given, argument: wrong})
            said = str(error).startswith((f"{argument}: ", "after: is later"))
            assert error is None or isinstance(error, TurnstreamError) or said, (argument, wrong, error)


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


def test_each_argument_of_the_public_calls_is_checked() -> None:
    """One that is added is not forgotten here, nor in the table of calls."""
    for kind in (Memory, SessionMemory):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name == "close":
                continue
            arguments = set(inspect.signature(method).parameters) - {"self"}
            assert arguments <= {*CHECKS, *TOLD}, name
            assert any(arguments <= {*given} | {"scope"} for _, given in CALLS.values()), name
