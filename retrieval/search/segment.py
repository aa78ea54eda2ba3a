"""One word segment, looked up: which of its turns hold a text.

Nothing in it changes but what it remembers of earlier answers, so threads share it and none of it is ever stale. Owns
memory only: some hundred bytes a turn.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.errors import ShardError
from pipeline.ledger.word_segments import HOLDERS, PLACES, TURNS
from retrieval.search.stems import Stemmer, prefix_of

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

_SPACE: Final = ord(" ")
_FEW_WORDS: Final = 256
_FEW_READS: Final = 64
_REMEMBERED: Final = 256
"""Answers kept, of a few kilobytes each: questions have most of their words in common."""


class Segment:
    """The turns of one segment and where their words stand.

    Args:
        number: its id.
        turns: as stored, like all that follow.
        roles: the roles that occur.
        vocabulary: the words, a space before and after each.
        starts: where each word's holders and places begin.
        holders: the turns that hold each word.
    """

    def __init__(
        self, number: int, turns: bytes, roles: str, vocabulary: bytes, starts: bytes, holders: bytes
    ) -> None:
        self._number = number
        rows = np.frombuffer(turns, dtype=TURNS)
        self.offsets: Numbers = np.ascontiguousarray(rows["offset"])
        self.times_ms: Numbers = np.ascontiguousarray(rows["time_ms"])
        self.sessions: Numbers = rows["session"].astype(np.int64)
        self._role_codes: Numbers = np.ascontiguousarray(rows["role"])
        self.n_words: Numbers = np.ascontiguousarray(rows["n_words"])
        self._roles: list[str] = json.loads(roles)
        self._vocabulary = vocabulary
        self._word_starts = np.flatnonzero(np.frombuffer(vocabulary, dtype=np.uint8) == _SPACE)
        self._starts = np.frombuffer(starts, dtype=PLACES).astype(np.int64)
        self._holders = np.frombuffer(holders, dtype=HOLDERS)
        self._by_session: Numbers | None = None
        self._places: Numbers | None = None
        self._words_of_stem: dict[str, Numbers] = {}
        self._in_order: Order | None = None
        self._answers: dict[str, Numbers | None] = {}

    @classmethod
    def read(cls, connection: apsw.Connection, segment_id: int, n_numbers: int) -> Segment:
        """Read a segment that exists.

        Args:
            connection: the scope's.
            segment_id: its id.
            n_numbers: one more than the greatest session number.

        Raises:
            ShardError: it was damaged on the disk.
        """
        row: Any = connection.execute(
            "SELECT turns, roles, vocabulary, starts, holders FROM word_segments WHERE segment_id = ?", (segment_id,)
        ).fetchone()
        try:
            segment = cls(segment_id, *row)
        except ValueError as error:  # a part that is no array, or no JSON
            raise ShardError(_damage_of(segment_id)) from error
        segment._require_whole(n_numbers)
        return segment

    def _require_whole(self, n_numbers: int) -> None:
        """Check once that the parts fit together: damage must not look like an answer, or end as a wrong index.

        Raises:
            ShardError: they do not.
        """
        n_places, n_words = len(self._holders), len(self._word_starts) - 1 if self._vocabulary else 0
        starts = self._starts
        is_whole = (
            len(starts) == n_words + 1
            and starts[0] == 0
            and starts[-1] == n_places == self.n_words.sum(dtype=np.int64)
            and bool((starts[1:] >= starts[:-1]).all())
            and bool((self._holders < len(self)).all())
            and bool((self.offsets[1:] > self.offsets[:-1]).all())
            and bool((self.sessions < n_numbers).all())
        )
        if not is_whole:
            raise ShardError(_damage_of(self._number))

    def __len__(self) -> int:
        """Count the turns."""
        return len(self.offsets)

    def rows_of(self, session_no: int) -> Numbers:
        """List the rows of a session's turns."""
        if self._by_session is None:
            self._by_session = np.argsort(self.sessions, kind="stable")
        first, last = np.searchsorted(self.sessions, [session_no, session_no + 1], sorter=self._by_session)
        return self._by_session[first:last]

    def in_order(self) -> Order:
        """Give the turns session by session."""
        if self._in_order is None:
            self._in_order = in_order(self.sessions, self.times_ms, self.n_words)
        return self._in_order

    def with_role(self, role: str) -> Flags:
        """Tell which turns have a role, ``(n,)``."""
        code = self._roles.index(role) if role in self._roles else -1
        return np.asarray(self._role_codes == code)

    def holding(self, text: str, connection: apsw.Connection) -> Flags | None:
        """Tell which turns hold a lower-case text, ``(n,)``; None when no turn does.

        Args:
            text: what is looked for.
            connection: reads what a text with spaces needs; its transaction is one that has this segment.
        """
        if text not in self._answers:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            parts = [part.encode("utf-8", "surrogatepass") for part in text.split(" ")]
            flags = self._side_by_side(parts, connection) if len(parts) > 1 else self._anywhere(parts[0])
            self._answers[text] = None if flags is None else np.packbits(flags)
            return flags
        answer = self._answers[text]
        return None if answer is None else np.unpackbits(answer, count=len(self)).view(np.bool_)

    def n_times(self, stem: str, stemmer: Stemmer) -> Numbers | None:
        """Tell how often each turn has words of a stem, ``(n,)``; None when no turn has one."""
        if stem not in self._words_of_stem:
            self._words_of_stem[stem] = self._find_words(stem, stemmer)
        words = self._words_of_stem[stem]
        return np.bincount(self._of_words(self._holders, words), minlength=len(self)) if words.size else None

    def _find_words(self, stem: str, stemmer: Stemmer) -> Numbers:
        candidates = self._words_with(prefix_of(stem).encode())
        starts, ends = self._word_starts[candidates], self._word_starts[candidates + 1]
        words = [self._vocabulary[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        firsts = np.cumsum([0, *(len(word) for word in words)])
        places = [at for found, at in stemmer.placed(b"".join(words).decode()) if found == stem]
        return candidates[np.unique(np.searchsorted(firsts, places, side="right") - 1)]

    def _anywhere(self, part: bytes) -> Flags | None:
        return self._flags(self._of_words(self._holders, self._words_with(part)))

    def _side_by_side(self, parts: list[bytes], connection: apsw.Connection) -> Flags | None:
        """Find a run of words: the first ends, the last begins, and each between is what is looked for."""
        words = [self._words_with(part) for part in _bound(parts)]
        if not all(len(some) for some in words):
            return None
        here = self._places_of(words[0], connection)
        for distance, some in enumerate(words[1:], start=1):
            is_there = np.zeros(len(self._holders) + len(parts), dtype=np.bool_)
            is_there[self._places_of(some, connection)] = True
            here = here[is_there[here + np.uint32(distance)]]
        ends = np.cumsum(self.n_words)
        turns = np.searchsorted(ends, here, side="right")
        is_same_turn = here + np.uint32(len(parts) - 1) < ends[turns]
        return self._flags(turns[is_same_turn])

    def _flags(self, turns: Numbers) -> Flags | None:
        if not turns.size:
            return None
        flags = np.zeros(len(self), dtype=np.bool_)
        flags[turns] = True
        return flags

    def _of_words(self, values: Numbers, words: Numbers) -> Numbers:
        """Give what stands in a column for some words, word after word."""
        if len(words) <= _FEW_WORDS:
            spans = [values[self._starts[n] : self._starts[n + 1]] for n in words.tolist()]
            return np.concatenate(spans) if spans else values[:0]
        is_wanted = np.zeros(len(self._word_starts) - 1, dtype=np.bool_)
        is_wanted[words] = True
        return values[np.repeat(is_wanted, np.diff(self._starts))]

    def _words_with(self, part: bytes) -> Numbers:
        """List, ascending, the words that hold a part; a space at its start or end binds it to theirs."""
        found: list[int] = []
        at = self._vocabulary.find(part)
        while at >= 0:
            found.append(at)
            at = self._vocabulary.find(part, at + 1)
        inside = np.array(found, dtype=np.int64) + part.startswith(b" ")
        words = np.searchsorted(self._word_starts, inside) - 1
        return words[np.diff(words, prepend=-1) > 0]

    def _places_of(self, words: Numbers, connection: apsw.Connection) -> Numbers:
        """Give the places of some words; reads only theirs when they are few."""
        if self._places is None and len(words) <= _FEW_READS:
            with connection.blob_open("main", "word_segments", "places", self._number, False) as blob:
                spans = [_read(blob, self._starts[n], self._starts[n + 1]) for n in words.tolist()]
            return self._require_places(np.frombuffer(b"".join(spans), dtype=PLACES))
        if self._places is None:
            row: Any = connection.execute(
                "SELECT places FROM word_segments WHERE segment_id = ?", (self._number,)
            ).fetchone()
            self._places = self._require_places(np.frombuffer(row[0], dtype=PLACES))
        return self._of_words(self._places, words)

    def _require_places(self, places: Numbers) -> Numbers:
        if places.size and int(places.max()) >= len(self._holders):
            raise ShardError(_damage_of(self._number))
        return places


def _damage_of(number: int) -> str:
    return f"word segment {number} is damaged; 'turnstream doctor --repair' builds it anew from the turns"


def _read(blob: apsw.Blob, start: int, stop: int) -> bytes:
    blob.seek(int(start) * PLACES.itemsize)
    return blob.read(int(stop - start) * PLACES.itemsize)


class Order(NamedTuple):
    """Turns session by session, each in the order of time.

    Their rows, whether each but the last is followed by one of its session, and of each session the place where it
    begins, its number and its words.
    """

    rows: Numbers
    is_next: Flags
    firsts: Numbers
    sessions: Numbers
    n_words: Numbers


def in_order(sessions: Numbers, times_ms: Numbers, n_words: Numbers) -> Order:
    """Sort turns, whose rows are in the order of arrival: it decides where times are equal."""
    rows = np.lexsort((times_ms, sessions))
    numbers = sessions[rows]
    is_next = numbers[1:] == numbers[:-1]
    firsts = np.flatnonzero(np.append(True, ~is_next))
    sums = np.add.reduceat(n_words[rows], firsts, dtype=np.int64)
    return Order(rows, is_next, firsts, numbers[firsts], sums)


def _bound(parts: list[bytes]) -> list[bytes]:
    """Bind the parts of a text with spaces to the ends of words: all inner ends, not the outer two."""
    first, *between, last = parts
    return [first + b" ", *(b" " + part + b" " for part in between), b" " + last]
