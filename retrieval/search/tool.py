"""The tool an agent calls: one function, three shapes, always a JSON string, never an error raised.

Which shape is told by the arguments: a query finds sessions, a session alone is read, neither lists sessions.

Source: names, shapes and defaults are those of the PraisonAI cross-session recall documentation.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import apsw

from pipeline.errors import ConfigError, TurnstreamError
from pipeline.ledger.connection import connect, read_meta, translated
from pipeline.records import Scope
from pipeline.settings import load_settings
from pipeline.shards import Shards
from retrieval.arguments import require_text
from retrieval.memory import Memory, open_memory
from retrieval.search.protocol import SearchableSessionStoreProtocol
from retrieval.search.search import MOST_AROUND, MOST_SESSIONS, require_page, require_within

TOOL: Final = "session_search"
_HINTS: Final = {
    "discovery": f"Give a query of a few words, limit from 1 to {MOST_SESSIONS}, window from 0 to {MOST_AROUND}.",
    "scroll": "Give a session_id from a search or a list, and an index or message_id from its messages.",
    "browse": f"Give a limit from 1 to {MOST_SESSIONS}; the scope is KIND/ID, for example user/u42.",
}
_EXPECTED: Final = (TurnstreamError, ValueError, TypeError, OSError, apsw.Error)


class SessionSearchTool(Protocol):
    """The tool as it is called."""

    def __call__(
        self,
        query: str = "",
        session_id: str = "",
        around_message_id: str = "",
        limit: int = 5,
        window: int = 5,
        scope: Scope | str | None = None,
    ) -> str:
        """Search past conversations, scroll one, or list recent ones."""
        ...


def session_search(
    query: str = "",
    session_id: str = "",
    around_message_id: str = "",
    limit: int = 5,
    window: int = 5,
    scope: Scope | str | None = None,
) -> str:
    """Search past conversations, scroll one, or list recent ones, in the data folder that the settings name.

    Args:
        query: a question or words: the sessions it is about, each with its best turn and those around it.
        session_id: without a query: the session to read.
        around_message_id: an index or a ``message_id`` to read around; the session's end when "".
        limit: sessions at most, 1 to 50.
        window: turns before and after, 0 to 50.
        scope: whose sessions, ``KIND/ID``; may be left out where the data folder has one scope only.

    Returns:
        JSON, indented, non-ASCII kept: ``success``, ``mode`` and what was found, or ``error`` and ``hint``.
    """
    return _answer(lambda: _store_of(scope), query, session_id, around_message_id, limit, window)


def bound_to(store: SearchableSessionStoreProtocol, scope: Scope | str | None = None) -> SessionSearchTool:
    """Make a tool for the sessions of one store, such as ``memory.sessions("user/u42", exclude=current_session)``.

    A call may name the scope only if it is this one: a tool never reads another.
    """
    key = None if scope is None else str(scope)

    def session_search(
        query: str = "",
        session_id: str = "",
        around_message_id: str = "",
        limit: int = 5,
        window: int = 5,
        scope: Scope | str | None = None,
    ) -> str:
        def mine() -> SearchableSessionStoreProtocol:
            if scope is not None and str(scope) != key:
                raise ValueError("scope: this tool reads one scope only; leave it out")
            return store

        return _answer(mine, query, session_id, around_message_id, limit, window)

    return session_search


def tool_schema() -> dict[str, Any]:
    """Describe the tool as OpenAI function calling has it."""
    text = {"type": "string"}
    properties: dict[str, Any] = {
        "query": {
            **text,
            "description": "What to look for in past conversations: a question or a few words. Finds sessions.",
        },
        "session_id": {**text, "description": "Without a query: the session to read."},
        "around_message_id": {
            **text,
            "description": "With session_id: read around this message, by index or message_id. Default: the end.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_SESSIONS,
            "default": 5,
            "description": "Most sessions to return.",
        },
        "window": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_AROUND,
            "default": 5,
            "description": "Messages to show before and after.",
        },
        "scope": {**text, "description": "Whose memory, KIND/ID, for example user/u42. Default: the only one."},
    }
    described = (
        "Search your own past conversations. With query: the sessions it is about, in context. With session_id: read"
        " that session. With neither: the most recent sessions."
    )
    parameters = {"type": "object", "properties": properties, "required": [], "additionalProperties": False}
    return {"type": "function", "function": {"name": TOOL, "description": described, "parameters": parameters}}


def _answer(
    store: Callable[[], SearchableSessionStoreProtocol],
    query: str,
    session_id: str,
    around_message_id: str,
    limit: int,
    window: int,
) -> str:
    mode = "discovery" if query else "scroll" if session_id else "browse"
    try:
        _validate(query, session_id, around_message_id, limit, window)
        found = _ANSWERS[mode](store(), query, session_id, around_message_id, limit, window)
        answer: dict[str, Any] = {"success": True, "mode": mode, **found}
    except _EXPECTED as error:
        answer = {
            "success": False,
            "tool": TOOL,
            "mode": mode,
            "session_id": session_id or None,
            "error": str(error) or type(error).__name__,
            "hint": _HINTS[mode],
        }
    return json.dumps(answer, indent=2, ensure_ascii=False, default=repr)


def _validate(query: str, session_id: str, around_message_id: str, limit: int, window: int) -> None:
    require_text("query", "" if query is None else query)
    require_text("session_id", "" if session_id is None else session_id)
    if not isinstance(around_message_id, str | int | None):
        raise ValueError(f"around_message_id: is {type(around_message_id).__name__}, not text")  # noqa: TRY004 - as above
    require_page(limit, 0)
    require_within("window", window, 0, MOST_AROUND)


def _discovery(
    store: SearchableSessionStoreProtocol, query: str, _session: str, _around: str, limit: int, window: int
) -> Mapping[str, Any]:
    hits = [hit.as_dict() for hit in store.search(query, limit=limit, window=window)]
    return {"query": query, "total_found": len(hits), "results": hits}


def _scroll(
    store: SearchableSessionStoreProtocol, _query: str, session_id: str, around: str, _limit: int, window: int
) -> Mapping[str, Any]:
    messages = store.window(session_id, None if around in {"", None} else str(around), window=window)
    return {"session_id": session_id, "around_message_id": around, "messages": messages}


def _browse(
    store: SearchableSessionStoreProtocol, _query: str, _session: str, _around: str, limit: int, _window: int
) -> Mapping[str, Any]:
    summaries = [summary.as_dict() for summary in store.recent(limit=limit)]
    return {"total_found": len(summaries), "results": summaries}


_ANSWERS: Final = {"discovery": _discovery, "scroll": _scroll, "browse": _browse}


def _store_of(scope: Scope | str | None) -> SearchableSessionStoreProtocol:
    data_dir = load_settings().data_dir
    return _memory(str(data_dir)).sessions(scope if scope is not None else _only_scope(Shards(data_dir)))


@functools.lru_cache(maxsize=4)
def _memory(data_dir: str) -> Memory:
    return open_memory(data_dir)


def _only_scope(shards: Shards) -> str:
    """Name the one scope there is.

    Raises:
        ConfigError: there is none, or more than one.
    """
    folders = []
    for folder in shards.walk():
        folders.append(folder)
        if len(folders) > 1:
            break
    if len(folders) != 1:
        raise ConfigError(f"scope: there {'are several' if folders else 'is none yet'}; name one, such as user/u42")
    path = folders[0] / "ledger.sqlite"
    connection = connect(path, query_only=True)
    try:
        with translated(path):
            return read_meta(connection).get("scope", "")
    finally:
        connection.close()
