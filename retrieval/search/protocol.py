"""What session search answers, and what a store of sessions offers to be searched.

Source: names, fields and defaults are those of the PraisonAI cross-session recall documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Message = dict[str, Any]
"""``index`` in its session, ``message_id``, ``role``, ``content``, ``timestamp`` (ISO 8601), ``speaker`` if known."""


@dataclass(frozen=True, slots=True)
class SessionHit:
    """A session that was found: its best turn, with those around it.

    ``messages`` are the turns around the anchor, ``anchor_index`` the anchor's place in the whole session;
    ``bookends`` hold the session's ``opening`` and ``closing``, and are empty for a short one.
    """

    session_id: str
    title: str = ""
    when: str | None = None
    snippet: str = ""
    score: float = 0.0
    anchor_index: int = -1
    messages: list[Message] = field(default_factory=list)
    bookends: dict[str, list[Message]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON takes it; ``bookends`` only when there are some."""
        shown: dict[str, Any] = {
            "session_id": self.session_id,
            "title": self.title,
            "when": self.when,
            "snippet": self.snippet,
            "score": self.score,
            "anchor_index": self.anchor_index,
            "messages": self.messages,
        }
        return {**shown, "bookends": self.bookends} if self.bookends else shown


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session in a list; ``when`` is the time of its latest turn."""

    session_id: str
    title: str = ""
    when: str | None = None
    message_count: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON takes it."""
        return {
            "session_id": self.session_id,
            "title": self.title,
            "when": self.when,
            "message_count": self.message_count,
        }


@runtime_checkable
class SearchableSessionStoreProtocol(Protocol):
    """What the tool needs of a store of sessions."""

    def search(self, query: str, *, limit: int = 5, window: int = 5) -> list[SessionHit]:
        """Find the sessions a query is about, best first, each with the turns around its best one."""
        ...

    def window(
        self, session_id: str, around_message_id: str | None = None, *, window: int = 5
    ) -> list[dict[str, Any]]:
        """Read the turns around one of a session, around its last one by default."""
        ...

    def recent(self, *, limit: int = 10) -> list[SessionSummary]:
        """List the sessions spoken in last."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Which turns count: said between two times (epoch ms, both included), by these roles, in no excluded session."""

    after_ms: int | None = None
    before_ms: int | None = None
    roles: Sequence[str] = ()
    excluded: Sequence[str] = ()
