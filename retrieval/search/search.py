"""The three ways to look at past sessions of one scope: find, read on, list. Reads only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

import apsw

from pipeline.errors import NotFoundError
from pipeline.records import Scope
from retrieval.memory_store import Moment, time_range
from retrieval.search import reading
from retrieval.search.index import State
from retrieval.search.protocol import Limits, Message, SessionHit, SessionSummary
from retrieval.search.ranking import Ranking, one_of_each
from retrieval.search.reading import SessionRow
from retrieval.search.snippet import snippet, whole_graphemes

MOST_SESSIONS: Final = 50
MOST_AROUND: Final = 50
MOST_SKIPPED: Final = 10_000
MAX_QUERY_CHARS: Final = 4_096
MAX_TERMS: Final = 256
_INDEX: Final = re.compile(r"-?[0-9]{1,18}")


def valid_limits(
    after: Moment | None, before: Moment | None, role: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> Limits:
    """Read the filters of a search.

    Raises:
        ValueError: a time that is none, or a range that ends before it begins.
    """
    return Limits(*time_range(after, before), _names(role), _names(exclude))


def require_within(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is none, too small or too large.

    Raises:
        ValueError: it is; the message names the field.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name}: is {value!r}; give a whole number from {least} to {most}")


def require_page(limit: int, offset: int) -> None:
    """Refuse a page that cannot be.

    Raises:
        ValueError: a number is none, too small or too large; the message names the field.
    """
    require_within("limit", limit, 1, MOST_SESSIONS)
    require_within("offset", offset, 0, MOST_SKIPPED)


def require_query(query: str) -> None:
    """Refuse a query that is too long to be one.

    Raises:
        ValueError: it is.
    """
    if len(query) > MAX_QUERY_CHARS or len(query.split()) > MAX_TERMS:
        raise ValueError(f"query: is longer than {MAX_QUERY_CHARS} characters or {MAX_TERMS} words; ask in fewer")


def found(
    connection: apsw.Connection, state: State, ranking: Ranking, *, limit: int, window: int, offset: int
) -> list[SessionHit]:
    """Show one page of the sessions that a query is about."""
    page = islice(one_of_each(ranking.sessions, state.cards), offset, offset + limit)
    return [_hit(connection, state, ranking, number, score, window) for number, score in page]


def window_around(
    connection: apsw.Connection, session_id: str, around: str | int | None, window: int
) -> list[Message]:
    """Read the turns around one of a session.

    Args:
        connection: the scope's ledger.
        session_id: the session.
        around: a turn's index or id; an index beyond either end means that end, None the last turn. A number is an
            index if the session reaches that far, else it is looked up as an id first.
        window: turns before and after.

    Raises:
        NotFoundError: there is no such session, or no such turn in it.
    """
    row = reading.session(connection, session_id)
    if row is None:
        raise NotFoundError(f"session_id: there is no session {session_id[:100]!r} in this scope; list them first")
    return reading.around(connection, session_id, _index(connection, row, around), window)


def listed(connection: apsw.Connection, limits: Limits, *, limit: int, offset: int) -> list[SessionSummary]:
    """List sessions, those spoken in last first, automated ones after all others."""
    rows = reading.newest(
        connection,
        limit=limit,
        offset=offset,
        after_ms=limits.after_ms,
        before_ms=limits.before_ms,
        excluded=limits.excluded,
    )
    return [SessionSummary(row.session_id, title_of(row), reading.iso(row.last_ms), row.n_turns) for row in rows]


def title_of(session: SessionRow) -> str:
    """Name a session: by its title, its agent, the start of its first user turn, or its id."""
    facts = session.says()
    title = facts.get("title") or facts.get("agent_name")
    return str(title or whole_graphemes(session.opening, len(session.opening)) or session.session_id)


def _hit(
    connection: apsw.Connection, state: State, ranking: Ranking, number: int, score: float, window: int
) -> SessionHit:
    row = state.cards.sessions[number]
    index, anchor = ranking.anchor(connection, number)
    return SessionHit(
        session_id=row.session_id,
        title=title_of(row),
        when=reading.iso(row.last_ms),
        snippet=snippet(anchor.content, ranking.wanted),
        score=score,
        anchor_index=index,
        messages=reading.around(connection, row.session_id, index, window),
        bookends=reading.bookends(connection, row.session_id, row.n_turns),
    )


def _index(connection: apsw.Connection, session: SessionRow, around: str | int | None) -> int:
    last = session.n_turns - 1
    if around is None or around == "":
        return last
    text = str(around).strip()
    number = int(text) if _INDEX.fullmatch(text) else None
    if number is not None and 0 <= number <= last:
        return number
    row = reading.by_id(connection, session.session_id, str(around))
    if row is not None:
        return reading.index_of(connection, session.session_id, row)
    if number is None:
        raise NotFoundError(
            f"around_message_id: {text[:100]!r} is neither an index nor the message_id of a turn of this session"
        )
    return max(0, min(number, last))


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def scope_of(scope: Scope | str) -> Scope:
    """Read a scope's key.

    Raises:
        PoisonError: it is not KIND/ID.
    """
    return Scope.parse(scope) if isinstance(scope, str) else scope
