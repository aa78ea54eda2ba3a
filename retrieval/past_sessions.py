"""What a memory tells of past sessions: found, read on, listed, and written for the next prompt."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline import tokens
from pipeline.records import Scope
from retrieval.context.context import ContextWriter
from retrieval.context.layout.answer import Context
from retrieval.context.protocol import CountTokens
from retrieval.memory_store import Moment
from retrieval.search.protocol import Message, SessionHit, SessionSummary
from retrieval.search.store import SessionSearch


class PastSessions:
    """Asks who knows; each method raises what the one it names does, which also checks the arguments.

    Args:
        sessions: looks at sessions.
        contexts: writes contexts.
    """

    def __init__(self, sessions: SessionSearch, contexts: ContextWriter) -> None:
        self._sessions = sessions
        self._contexts = contexts

    def context(
        self,
        session_id: str,
        scope: Scope | str,
        objective: str | None = None,
        strategy: str | None = None,
        max_tokens: int | None = None,
        *,
        across_sessions: bool = False,
        count_tokens: CountTokens = tokens.count,
    ) -> Context:
        """Write what a session's past holds for the next prompt, within a budget; see `ContextWriter.context`."""
        return self._contexts.context(
            session_id,
            scope,
            objective,
            strategy,
            max_tokens,
            across_sessions=across_sessions,
            count_tokens=count_tokens,
        )

    def search(  # noqa: PLR0913 - the public surface; all but two have defaults
        self,
        query: str,
        scope: Scope | str,
        *,
        limit: int = 5,
        window: int = 5,
        offset: int = 0,
        profile: str = "best",
        after: Moment | None = None,
        before: Moment | None = None,
        role: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> list[SessionHit]:
        """Find the sessions a query is about, best first, with the turns around; see `SessionSearch.search`."""
        return self._sessions.search(
            query,
            scope,
            limit=limit,
            window=window,
            offset=offset,
            profile=profile,
            after=after,
            before=before,
            role=role,
            exclude=exclude,
        )

    def window(
        self,
        session_id: str,
        scope: Scope | str,
        around_message_id: str | int | None = None,
        *,
        window: int = 5,
    ) -> list[Message]:
        """Read the turns around one of a session, the last one when None; see `SessionSearch.window`."""
        return self._sessions.window(session_id, scope, around_message_id, window=window)

    def recent(
        self,
        scope: Scope | str,
        *,
        limit: int = 10,
        offset: int = 0,
        after: Moment | None = None,
        before: Moment | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> list[SessionSummary]:
        """List sessions, those spoken in last first; see `SessionSearch.recent`."""
        return self._sessions.recent(scope, limit=limit, offset=offset, after=after, before=before, exclude=exclude)
