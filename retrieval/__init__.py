"""Who reads: synchronous, in the bot's own process, with no broker and no Celery.

Why the names are resolved late: `import retrieval` costs a bot nothing until it opens a memory.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.context.entries.entry import Entry, Outcome
    from retrieval.context.layout.answer import Context
    from retrieval.context.session.session_memory import SessionMemory, SessionRecord
    from retrieval.hits import Hit, Retrieval
    from retrieval.memory import Memory, open_memory
    from retrieval.memory_store import MemoryStore
    from retrieval.search.protocol import SearchableSessionStoreProtocol, SessionHit, SessionSummary
    from retrieval.search.tool import session_search
    from retrieval.session_retriever import SessionRetriever
    from retrieval.summary_store import SessionSummaryStore

__all__ = [
    "Context",
    "Entry",
    "Hit",
    "Memory",
    "MemoryStore",
    "Outcome",
    "Retrieval",
    "SearchableSessionStoreProtocol",
    "SessionHit",
    "SessionMemory",
    "SessionRecord",
    "SessionRetriever",
    "SessionSummary",
    "SessionSummaryStore",
    "open_memory",
    "session_search",
]

_HOMES = {
    "Context": "retrieval.context.layout.answer",
    "Entry": "retrieval.context.entries.entry",
    "Hit": "retrieval.hits",
    "Memory": "retrieval.memory",
    "MemoryStore": "retrieval.memory_store",
    "Outcome": "retrieval.context.entries.entry",
    "Retrieval": "retrieval.hits",
    "SearchableSessionStoreProtocol": "retrieval.search.protocol",
    "SessionHit": "retrieval.search.protocol",
    "SessionMemory": "retrieval.context.session.session_memory",
    "SessionRecord": "retrieval.context.session.session_memory",
    "SessionRetriever": "retrieval.session_retriever",
    "SessionSummary": "retrieval.search.protocol",
    "SessionSummaryStore": "retrieval.summary_store",
    "open_memory": "retrieval.memory",
    "session_search": "retrieval.search.tool",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
