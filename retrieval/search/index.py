"""What a process keeps of a scope's words: segments, the tail above them, and the sessions' cards.

Read when first asked for, then only what is new: each table has a number that only grows. Nothing is written, and
nothing outlives the process.

Why the lock is held while it reads: transactions then begin in the order in which they bring the state up to date, so
no thread sees a state older than its own transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import apsw
import numpy as np

from retrieval.search.cards import Cards
from retrieval.search.segment import Flags, Numbers, Segment
from retrieval.search.tail import Tail


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a scope's turns, and which of them still exist; None when all do."""

    turns: Segment | Tail
    is_alive: Flags | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A scope's words at one moment; immutable."""

    segments: Mapping[int, Part] = field(default_factory=dict)
    sealed: int = 0
    tail: Tail = field(default_factory=Tail)
    cards: Cards = field(default_factory=Cards)
    last_offset: int = 0
    last_gap: int = 0
    gone: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def parts(self) -> list[Part]:
        """All turns, oldest first."""
        return [*self.segments.values(), Part(self.tail)]


class SearchIndex:
    """One scope's state; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = State()

    def up_to_date(self, connection: apsw.Connection) -> State:
        """Give the state as the connection's transaction sees it; nothing else may have been read in it before."""
        with self._lock:
            self._state = _newer(self._state, connection)
            return self._state


def _newer(state: State, connection: apsw.Connection) -> State:
    found: list[Any] = connection.execute("SELECT segment_id, up_to FROM word_segments ORDER BY up_to").fetchall()
    sealed = found[-1][1] if found else 0
    new_gaps: list[Any] = connection.execute(
        "SELECT gap_id, turn_offset FROM word_gaps WHERE gap_id > ? ORDER BY gap_id", (state.last_gap,)
    ).fetchall()
    gone = state.gone
    if new_gaps:
        gone = np.union1d(gone, np.array([row[1] for row in new_gaps], dtype=np.int64))
    cards = state.cards.up_to_date(connection)
    segments = {
        number: _part(
            state.segments.get(number) or Part(Segment.read(connection, number, len(cards.ranks))),
            gone,
            is_new=bool(new_gaps) or number not in state.segments,
        )
        for number, _ in found
    }
    tail = state.tail.up_to_date(connection, sealed, state.last_offset, {row[1] for row in new_gaps})
    return State(
        segments=segments,
        sealed=sealed,
        tail=tail,
        cards=cards,
        last_offset=max(state.last_offset, sealed, int(tail.offsets[-1]) if len(tail) else 0),
        last_gap=new_gaps[-1][0] if new_gaps else state.last_gap,
        gone=gone,
    )


def _part(known: Part, gone: Numbers, *, is_new: bool) -> Part:
    """Give a part without the turns that are gone; ``is_new`` when it, or one of those, is."""
    offsets = known.turns.offsets
    if not is_new or not offsets.size:
        return known
    first, last = np.searchsorted(gone, [offsets[0], offsets[-1] + 1])
    if first == last:
        return known
    return Part(known.turns, ~np.isin(offsets, gone[first:last]))
