"""The turns that no segment holds yet, kept as lower-case text and scanned; never many.

Nothing in a tail changes but what it remembers of its turns' stems, so threads share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw
import numpy as np

from retrieval.search.segment import Flags, Numbers, Order, in_order
from retrieval.search.stems import Stemmer, prefix_of

_NEWER: Final = (
    "SELECT turn_offset, timestamp_ms, session_no, role, content FROM turns CROSS JOIN cards USING (session_id)"
    " WHERE turn_offset > ? ORDER BY turn_offset"
)


class _Row(NamedTuple):
    offset: int
    time_ms: int
    session_no: int
    role: str
    lowered: str


class Tail:
    """Turns above the last segment, in the order of offsets; immutable."""

    def __init__(self, rows: Sequence[_Row] = ()) -> None:
        self._rows = rows
        self._stems: dict[int, list[tuple[str, int]]] = {}
        self.n_words: Numbers = np.array([row.lowered.count(" ") + 1 for row in rows], dtype=np.int64)
        self.offsets: Numbers = np.array([row.offset for row in rows], dtype=np.int64)
        self.times_ms: Numbers = np.array([row.time_ms for row in rows], dtype=np.int64)
        self.sessions: Numbers = np.array([row.session_no for row in rows], dtype=np.int64)

    def __len__(self) -> int:
        """Count the turns."""
        return len(self._rows)

    def up_to_date(self, connection: apsw.Connection, sealed: int, last_offset: int, gone: set[int]) -> Tail:
        """Give the tail without what is sealed or gone, and with the turns above the last offset looked at."""
        new: list[Any] = connection.execute(_NEWER, (max(sealed, last_offset),)).fetchall()
        is_shorter = bool(self._rows) and (self._rows[0].offset <= sealed or bool(gone))
        if not new and not is_shorter:
            return self
        old = [row for row in self._rows if row.offset > sealed and row.offset not in gone]
        added = [_Row(offset, at, number, role, text.lower()) for offset, at, number, role, text in new]
        return Tail([*old, *added])

    def rows_of(self, session_no: int) -> Numbers:
        """List the rows of a session's turns."""
        return np.flatnonzero(self.sessions == session_no)

    def with_role(self, role: str) -> Flags:
        """Tell which turns have a role, ``(n,)``."""
        return np.array([row.role == role for row in self._rows], dtype=np.bool_)

    def in_order(self) -> Order:
        """Give the turns session by session."""
        return in_order(self.sessions, self.times_ms, self.n_words)

    def n_times(self, stem: str, stemmer: Stemmer) -> Numbers | None:
        """Tell how often each turn has words of a stem, ``(n,)``; None when no turn has one."""
        prefix = prefix_of(stem)
        counts = np.zeros(len(self), dtype=np.int64)
        for place, row in enumerate(self._rows):
            if prefix in row.lowered:
                counts[place] = sum(found == stem for found, _ in self._stems_of(row, stemmer))
        return counts if counts.any() else None

    def _stems_of(self, row: _Row, stemmer: Stemmer) -> list[tuple[str, int]]:
        if row.offset not in self._stems:
            self._stems[row.offset] = stemmer.placed(row.lowered)
        return self._stems[row.offset]

    def holding(self, text: str, connection: apsw.Connection) -> Flags | None:  # noqa: ARG002 - as of a segment
        """Tell which turns hold a lower-case text, ``(n,)``; None when no turn does."""
        flags = np.array([text in row.lowered for row in self._rows], dtype=np.bool_)
        return flags if flags.any() else None
