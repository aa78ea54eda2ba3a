"""The entries of any session, told from the scope's ledger: all of them, whatever the window holds.

Owns no file and writes nothing. What was read is kept in this process, within a bound, and brought up to date at the
next question: new turns are read alone, what was deleted is gone from the deletion's commit on.

Why: a session of 10 000 exchanges takes half a second to read; a bot asks for it at each of its messages.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import apsw
import numpy as np

from pipeline.ledger import session_reads
from pipeline.ledger.connection import read_meta
from pipeline.ledger.reads import Vectors, last_trace_id
from pipeline.ledger.session_reads import SessionCard, SessionTurn
from pipeline.records import Scope
from retrieval.context.entries import exchanges
from retrieval.context.entries import metadata as entry_metadata
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.exchanges import Exchange, Party
from retrieval.context.entries.vectors import EntryVectors
from retrieval.reader import ShardReader, ShardReaders

MAX_BYTES: Final = 128 << 20
_MAX_SESSIONS: Final = 1_000
_TURN_BYTES: Final = 600
"""About what Python needs for a turn and its share of an entry, without their texts."""
_LOOK_THROUGH: Final = 20_000


@dataclass(frozen=True, slots=True)
class SessionEntries:
    """The entries of a session at one moment.

    Args:
        entries: oldest first, by their last turns.
        vectors: ``(n, d) float32``, rows L2-normalised: the mean of the entry's traces; zeros: not embedded yet.
            ``d`` is 0 while the scope has no vectors. A later reading may fill in rows here, too: copy to keep them.
        version: grows with every change of the session's turns; embedding them does not change it.
        model_key: the model of the vectors; None: there are none.
    """

    entries: tuple[Entry, ...]
    vectors: Vectors
    version: int = 0
    model_key: str | None = None


EMPTY: Final = SessionEntries((), np.empty((0, 0), dtype=np.float32))


class SessionCache:
    """The sessions asked for lately, read and brought up to date; safe to share between threads, and after a fork.

    Args:
        readers: the open shards.
        max_bytes: what is kept of sessions read, at most, but always the last one.
    """

    def __init__(self, readers: ShardReaders, *, max_bytes: int = MAX_BYTES) -> None:
        self._readers = readers
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Scope, str], _Session] = OrderedDict()
        self._sizes: dict[tuple[Scope, str], int] = {}
        self.n_bytes = 0
        """What is kept takes about so much, as it was counted when each session was read last."""

    def entries(self, scope: Scope, session_id: str) -> SessionEntries:
        """Give a session's entries; none when there is no such session or scope, and nothing is made on disk.

        Raises:
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        with self._readers.session_view(scope) as opened:
            if opened is None:
                self._drop((scope, session_id))
                return EMPTY
            connection, reader = opened
            card = session_reads.card(connection, session_id)
            if card is None:
                self._drop((scope, session_id))
                return EMPTY
            session = self._session((scope, session_id), reader)
            found = session.up_to_date(connection, card)
        self._make_room((scope, session_id), session)
        return found

    def _session(self, key: tuple[Scope, str], reader: ShardReader) -> _Session:
        with self._lock:
            session = self._known.get(key)
            if session is None or session.reader() is not reader:
                session = self._known[key] = _Session(key[1], reader)
            self._known.move_to_end(key)
            return session

    def _drop(self, key: tuple[Scope, str]) -> None:
        with self._lock:
            self._remove(key)

    def _remove(self, key: tuple[Scope, str]) -> None:
        self._known.pop(key, None)
        self.n_bytes -= self._sizes.pop(key, 0)

    def _make_room(self, key: tuple[Scope, str], session: _Session) -> None:
        """Count what was just read, and keep less of others where it is too much."""
        with self._lock:
            if self._known.get(key) is session:
                size = session.n_bytes
                self.n_bytes += size - self._sizes.get(key, 0)
                self._sizes[key] = size
            while len(self._known) > 1 and (self.n_bytes > self._max_bytes or len(self._known) > _MAX_SESSIONS):
                self._remove(next(iter(self._known)))


class _Session:
    """What is known of one session; safe to share between threads."""

    def __init__(self, session_id: str, reader: ShardReader) -> None:
        self.reader = weakref.ref(reader)
        self._session_id = session_id
        self._lock = threading.Lock()
        self._found = EMPTY
        self._state, self._last_trace = (0, 0), 0
        self._model_key: str | None = None
        self._vectors = EntryVectors()
        self._forget_all()

    def _forget_all(self) -> None:
        self._turns: list[SessionTurn] = []
        self._by_id: dict[str, SessionTurn] = {}
        self._parties: dict[Party, None] = {}
        self._names: set[str] = set()
        self._exchanges: list[Exchange] = []
        self._entries: list[Entry] = []
        self._open_at = 0
        self._last_offset = 0
        self._text_bytes = 0

    @property
    def n_bytes(self) -> int:
        """About what it takes."""
        return self._vectors.n_bytes + self._text_bytes + _TURN_BYTES * len(self._turns)

    def up_to_date(self, connection: apsw.Connection, card: SessionCard) -> SessionEntries:
        """Give the entries as the connection's transaction sees them, or as a later one did.

        Raises:
            ShardError: the ledger is damaged.
        """
        state, last_trace = (card.session_no, card.changed), last_trace_id(connection)
        with self._lock:
            if state < self._state:  # another thread looked later
                return self._found
            arrived = self._embedded_since(connection, last_trace)
            if state != self._state or arrived:
                before = self._found.entries
                n_kept = self._read_turns(connection, card) if state != self._state else len(before)
                self._read_vectors(connection, before, n_kept, arrived)
                self._found = SessionEntries(
                    tuple(self._entries), self._vectors.view(), card.changed, self._model_key
                )
            self._state, self._last_trace = state, max(last_trace, self._last_trace)
            return self._found

    def _embedded_since(self, connection: apsw.Connection, last_trace: int) -> set[int]:
        waiting = self._vectors.not_embedded
        if not waiting or last_trace <= self._last_trace:
            return set()
        return waiting.intersection(session_reads.embedded_above(connection, self._last_trace))

    def _read_turns(self, connection: apsw.Connection, card: SessionCard) -> int:
        """Bring turns and exchanges up to date; gives how many exchanges, the first ones, stay as they were."""
        new = None
        if self._turns and card.session_no == self._state[0]:
            new = session_reads.turns_above(
                connection, self._session_id, self._last_offset, look_through=_LOOK_THROUGH + card.n_turns
            )
        if new is None:
            self._forget_all()
            new = session_reads.turns_of(connection, self._session_id)
        if self._is_continued(new, card):
            self._turns += sorted(new, key=_place)
            self._by_id |= {turn.turn_id: turn for turn in new}
        else:
            self._merge(connection, new, card)
        self._last_offset = max((turn.turn_offset for turn in new), default=self._last_offset)
        self._text_bytes += sum(2 * len(turn.content) for turn in new)
        return self._tell(new)

    def _is_continued(self, new: Sequence[SessionTurn], card: SessionCard) -> bool:
        """Tell whether all that changed is that turns came after those known."""
        if len(self._turns) + len(new) != card.n_turns:
            return False
        last = self._turns[-1].place if self._turns else (-(1 << 62), 0, "")
        return all(turn.place > last and turn.turn_id not in self._by_id for turn in new)

    def _merge(self, connection: apsw.Connection, new: Sequence[SessionTurn], card: SessionCard) -> None:
        self._by_id |= {turn.turn_id: turn for turn in new}
        if len(self._by_id) != card.n_turns:
            left = session_reads.offsets_of(connection, self._session_id)
            self._by_id = {turn.turn_id: turn for turn in self._by_id.values() if turn.turn_offset in left}
        self._turns = sorted(self._by_id.values(), key=_place)
        self._parties, self._names = {}, set()
        self._exchanges, self._entries, self._open_at = [], [], 0

    def _tell(self, new: Sequence[SessionTurn]) -> int:
        """Tell the exchanges anew, from the first that the new turns may have changed; gives how many are before."""
        told = sorted(new, key=_place) if self._exchanges else self._turns
        asked = exchanges.who_asks([*self._parties])
        names = {name for turn in told if (name := entry_metadata.exchange(turn.metadata))}
        self._parties |= exchanges.parties(told)
        asking = exchanges.who_asks([*self._parties])
        start = self._open_at if asking == asked and names.isdisjoint(self._names) else 0
        self._names |= names
        found = exchanges.tell(self._session_id, self._turns, asking, start=start)
        n_kept = bisect.bisect_left(self._exchanges, start, key=lambda exchange: exchange.last)
        self._exchanges[n_kept:] = found.exchanges
        self._entries[n_kept:] = [exchange.entry for exchange in found.exchanges]
        self._open_at = found.open_at
        return n_kept

    def _read_vectors(
        self, connection: apsw.Connection, before: Sequence[Entry], n_kept: int, arrived: set[int]
    ) -> None:
        entries = self._entries
        meta = read_meta(connection)
        dimension = int(meta.get("dimension", 0))
        stale = set(range(n_kept, len(entries)))
        if meta.get("model_key") != self._model_key:
            self._model_key, stale = meta.get("model_key"), set(range(len(entries)))
            self._vectors.arrange([-1] * len(entries), dimension)
        elif n_kept or not before:
            self._vectors.resize(len(entries))
        else:  # anything may have moved
            known = {entry.turn_offsets: at for at, entry in enumerate(before)}
            sources = [known.get(entry.turn_offsets, -1) for entry in entries]
            stale = {at for at, source in enumerate(sources) if source < 0}
            self._vectors.arrange(sources, dimension)
            self._vectors.not_embedded.intersection_update(turn.turn_offset for turn in self._turns)
        if arrived:
            stale |= {at for at, entry in enumerate(entries) if not arrived.isdisjoint(entry.turn_offsets)}
        self._vectors.read(connection, entries, sorted(stale))


def _place(turn: SessionTurn) -> tuple[int, int, str]:
    return turn.place
