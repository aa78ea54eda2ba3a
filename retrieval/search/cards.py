"""The cards of a scope's sessions in memory, as arrays by session number, so that ranking reads no rows.

Nothing here outlives the process. The card of a session that is gone stays: a session counts only by its turns.
"""

from __future__ import annotations

from typing import Any, Final

import apsw
import numpy as np

from retrieval.search import lineage
from retrieval.search.reading import SessionRow
from retrieval.search.segment import Numbers

_CHANGED: Final = (
    "SELECT session_no, changed, is_automated, session_id, n_turns, last_ms, opening, facts FROM cards"
    " WHERE changed > ? ORDER BY changed"
)


class Cards:
    """Which sessions there are, how equal ones are sorted, which are automated and which one conversation; immutable.

    ``ranks`` sorts by the latest turn, then by id. Arrays have one row per session number, zero for those not in use.
    """

    def __init__(self) -> None:
        self.changed = 0
        self.sessions: dict[int, SessionRow] = {}
        self.numbers: dict[str, int] = {}
        self.last_ms: Numbers = np.zeros(0, dtype=np.int64)
        self.is_automated: Numbers = np.zeros(0, dtype=np.bool_)
        self.ranks: Numbers = np.zeros(0, dtype=np.int64)
        self._keys: dict[str, lineage.Key] = {}
        self._by_id: Numbers = np.zeros(0, dtype=np.int64)

    def up_to_date(self, connection: apsw.Connection) -> Cards:
        """Give the cards as the connection's transaction sees them."""
        rows: list[Any] = connection.execute(_CHANGED, (self.changed,)).fetchall()
        last: Any = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'cards'").fetchone()
        n_more = (last[0] if last else 0) + 1 - len(self.last_ms)  # a segment may name sessions that are gone
        if not rows and n_more <= 0:
            return self
        newer = Cards()
        newer.changed = rows[-1][1] if rows else self.changed
        longer = (0, max(n_more, 0))
        newer.last_ms, newer.is_automated = np.pad(self.last_ms, longer), np.pad(self.is_automated, longer)
        newer.sessions, newer.numbers, newer._keys = dict(self.sessions), dict(self.numbers), dict(self._keys)
        sessions = [SessionRow(*row[3:]) for row in rows]
        numbers = [row[0] for row in rows]
        newer.last_ms[numbers] = [session.last_ms for session in sessions]
        newer.is_automated[numbers] = [row[2] for row in rows]
        newer.sessions.update(zip(numbers, sessions, strict=True))
        newer.numbers.update((session.session_id, number) for number, session in zip(numbers, sessions, strict=True))
        for session in sessions:
            key = lineage.key_of(session.says()) if session.facts != "{}" else None
            if key is None:
                newer._keys.pop(session.session_id, None)
            else:
                newer._keys[session.session_id] = key
        newer.ranks = newer._ranked(self._by_id if len(newer.sessions) == len(self.sessions) else None)
        return newer

    def conversation(self, number: int) -> lineage.Key:
        """Name the conversation a session belongs to."""
        return lineage.resolved(self.sessions[number].session_id, self._keys)

    def _ranked(self, by_id: Numbers | None) -> Numbers:
        """Sort the sessions, given their numbers in the order of ids if no session is new."""
        if by_id is None:
            names = sorted((session.session_id, number) for number, session in self.sessions.items())
            by_id = np.array([number for _, number in names], dtype=np.int64)
        self._by_id = by_id
        latest_first = by_id[np.argsort(-self.last_ms[by_id], kind="stable")]
        ranks = np.zeros(len(self.last_ms), dtype=np.int64)
        ranks[latest_first] = np.arange(len(latest_first))
        return ranks
