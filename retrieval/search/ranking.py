"""What a ranking profile is: the sessions a query is about, best first, and where in each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import apsw

from retrieval.search import keyword, reading
from retrieval.search.cards import Cards
from retrieval.search.index import State
from retrieval.search.protocol import Limits
from retrieval.search.reading import Row

PROFILES: Final = ("best", "keyword")


class Ranking(Protocol):
    """One query's sessions."""

    @property
    def sessions(self) -> Iterator[tuple[int, float]]:
        """Their numbers and scores, once, best first, continuations not yet made one."""
        ...

    @property
    def wanted(self) -> Sequence[str]:
        """What a snippet is to show, the most telling first."""
        ...

    def anchor(self, connection: apsw.Connection, session_no: int) -> tuple[int, Row]:
        """Give the turn of a session that the query is about, and its index."""
        ...


class KeywordRanking:
    """The ranking of profile `keyword`."""

    def __init__(self, connection: apsw.Connection, state: State, query: str, limits: Limits) -> None:
        self._found = keyword.scored(connection, state, query, limits)
        self.sessions = keyword.ranked(self._found, state.cards)
        needle = query.strip().lower()
        self.wanted: Sequence[str] = [needle, *needle.split()]

    def anchor(self, connection: apsw.Connection, session_no: int) -> tuple[int, Row]:
        """Give the first of the session's turns with the highest score."""
        return reading.earliest(connection, keyword.best_of(self._found, session_no))


def one_of_each(sessions: Iterable[tuple[int, float]], cards: Cards) -> Iterator[tuple[int, float]]:
    """Keep the best session of each conversation."""
    seen = set()
    for number, score in sessions:
        conversation = cards.conversation(number)
        if conversation not in seen:
            seen.add(conversation)
            yield number, score
