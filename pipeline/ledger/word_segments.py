"""Which words the turns hold, and where: found again in any script, from the commit on.

Turns are sealed in runs of offsets. A segment holds a run's distinct words and, for each, its places: all words of
the run are numbered through. A word here is what stands between two spaces of the lower-case text, and nothing else:
so a text without spaces is part of a turn exactly if it is part of one of its words, and a text with spaces exactly
if its words stand side by side. That makes the answer the same as a scan's, with no text to read again.

Turns above the last segment are not sealed yet; readers scan them. A segment never changes. A turn that is removed
leaves a gap until its segment is built anew: when there are many, and always at a purge, because a segment tells what
its turns said. Segments, gaps and turns change in one transaction: after a crash they agree.

Why not FTS5: it answers row by row, and a common word is in most of two hundred thousand; here that is one pass of
numpy. Why runs: a turn costs the same whatever its scope holds, for it is written twice, sealed and then merged.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Final

import apsw
import numpy as np

SEAL_TURNS: Final = 2_048
SEAL_CHARS: Final = 2 << 20
MERGED_TURNS: Final = 16 * SEAL_TURNS
MERGED_CHARS: Final = 16 * SEAL_CHARS
_MOST_GAPS: Final = 2 * SEAL_TURNS
LONG_CHARS: Final = SEAL_CHARS // SEAL_TURNS
"""Only what is said beyond this is counted: turns no longer than that are sealed in time by their number."""
_UNSEALED: Final = "unsealed_long_chars"
_SEALED: Final = "SELECT max(up_to) FROM word_segments"
_SHORT_ONES: Final = (
    "FROM word_segments WHERE above >= (SELECT ifnull(max(up_to), 0) FROM word_segments WHERE is_merged)"
)

TURNS: Final = np.dtype(
    [("offset", "<i8"), ("time_ms", "<i8"), ("session", "<u4"), ("n_words", "<u4"), ("role", "<u2")]
)
"""One turn of a segment, in the order of offsets; ``session`` is the card's number, ``role`` one of the segment's."""
PLACES: Final = np.dtype("<u4")
"""Places of words, word after word, each one's ascending; ``starts`` says where a word's begin."""
HOLDERS: Final = np.dtype("<u2")
"""The turn, by its row, of each of the places; what a search without spaces needs is then read in one piece."""


def words_of(lowered: str) -> list[str]:
    """Cut a lower-case text into its words: at each single space, and nowhere else."""
    return lowered.split(" ")


def seal_when_due(connection: apsw.Connection, n_long_chars: int, *, seal_turns: int = SEAL_TURNS) -> None:
    """Put turns into segments when enough have come; inside the caller's transaction, after their sessions' cards.

    Args:
        connection: the ledger's.
        n_long_chars: characters beyond `LONG_CHARS` of each turn that this transaction adds.
        seal_turns: how many offsets above the last segment are enough.
    """
    ends: Any = connection.execute(
        f"SELECT ifnull(({_SEALED}), 0), ifnull(max(turn_offset), 0) FROM turns"
    ).fetchone()
    sealed, newest = ends
    is_due = newest - sealed >= seal_turns
    if n_long_chars:
        n_long_chars += _one(connection, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?", _UNSEALED)
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_UNSEALED, str(n_long_chars)))
        is_due |= n_long_chars >= SEAL_CHARS
    if is_due:
        _seal(connection, sealed, newest)
        _merge(connection)
        _mend(connection)


def note_gaps(connection: apsw.Connection, turn_offsets: Iterable[int]) -> None:
    """Note turns that are being removed."""
    connection.executemany("INSERT INTO word_gaps (turn_offset) VALUES (?)", [(offset,) for offset in turn_offsets])


def close_gaps(connection: apsw.Connection) -> None:
    """Build every segment anew that holds words of removed turns: nothing of them is left in these tables.

    Gaps above the last segment stay until it is sealed: a reader may have those turns in memory.
    """
    torn: Any = connection.execute(
        "SELECT above, up_to, is_merged FROM word_segments WHERE EXISTS"
        " (SELECT 1 FROM word_gaps WHERE turn_offset > above AND turn_offset <= up_to)"
    ).fetchall()
    for above, up_to, is_merged in torn:
        _rebuild(connection, above, up_to, is_merged=is_merged)
    connection.execute(f"DELETE FROM word_gaps WHERE turn_offset <= ({_SEALED})")


def wrong_runs(connection: apsw.Connection) -> list[tuple[int, int]]:
    """Give the runs of offsets whose segment does not say what their turns do, or that lack one they should have.

    A segment is right if building it anew, with what it says itself of the turns that are noted as gaps, changes
    nothing. The cards must be right.
    """
    found, sealed = [], 0
    runs: Any = connection.execute("SELECT segment_id, above, up_to FROM word_segments ORDER BY up_to").fetchall()
    newest = _one(connection, "SELECT max(turn_offset) FROM turns")
    last = max(newest, _one(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'turns'"))
    for number, above, up_to in runs:
        if above != sealed or up_to > last or not _is_right(connection, number, above, up_to):
            found.append((above, up_to))
        sealed = up_to
    if newest - sealed >= SEAL_TURNS:
        found.append((sealed, newest))
    return found


def build_anew(connection: apsw.Connection) -> None:
    """Build all segments from the turns; inside the caller's transaction. The cards must be right."""
    connection.execute("DELETE FROM word_segments")
    connection.execute("DELETE FROM word_gaps")
    _seal(connection, 0, _one(connection, "SELECT max(turn_offset) FROM turns"))


def _is_right(connection: apsw.Connection, number: int, above: int, up_to: int) -> bool:
    stored: Any = connection.execute(f"SELECT {_BLOBS} FROM word_segments WHERE segment_id = ?", (number,)).fetchone()
    run: Any = connection.execute(_TURNS_OF_RUN, (above, up_to, -1))
    said = {row[0]: (*row[:4], row[4].lower()) for row in run}
    gaps: Any = connection.execute(
        "SELECT turn_offset FROM word_gaps WHERE turn_offset > ? AND turn_offset <= ?", (above, up_to)
    ).fetchall()
    gone = {row[0] for row in gaps}
    if gone & said.keys():
        return False
    try:
        if gone:
            said |= {row[0]: row for row in _turns_in(*stored) if row[0] in gone}
    except (ValueError, IndexError, TypeError):  # it cannot be read
        return False
    fresh = _Segment()
    for offset in sorted(said):
        fresh.add(*said[offset])
    return bool(fresh.blobs() == stored)


def _turns_in(
    turns: bytes, roles: str, vocabulary: bytes, starts: bytes, _holders: bytes, places: bytes
) -> Iterator[tuple[int, int, int, str, str]]:
    """Read a segment back: each turn with its lower-case text."""
    names, known = json.loads(roles), vocabulary.decode().split(" ")[1:-1]
    ends = np.frombuffer(starts, dtype=PLACES).astype(np.int64)
    words = np.zeros(len(places) // PLACES.itemsize, dtype=np.int64)
    words[np.frombuffer(places, dtype=PLACES)] = np.repeat(np.arange(len(known)), ends[1:] - ends[:-1])
    first = 0
    for offset, time_ms, session_no, n_words, role in np.frombuffer(turns, dtype=TURNS).tolist():
        lowered = " ".join(known[word] for word in words[first : first + n_words].tolist())
        yield offset, time_ms, session_no, names[role], lowered
        first += n_words


def _one(connection: apsw.Connection, statement: str, *values: str) -> int:
    row: Any = connection.execute(statement, values).fetchone()
    return int(row[0] or 0) if row else 0


def _seal(connection: apsw.Connection, sealed: int, newest: int) -> None:
    _build(connection, sealed, newest)
    connection.execute("DELETE FROM meta WHERE key = ?", (_UNSEALED,))


def _merge(connection: apsw.Connection) -> None:
    """Make one segment of the short ones at the end when there are sixteen, or as many turns."""
    run: Any = connection.execute(f"SELECT count(*), min(above), max(up_to) {_SHORT_ONES}").fetchone()
    n, above, up_to = run
    if n >= MERGED_TURNS // SEAL_TURNS or (n > 1 and up_to - above >= MERGED_TURNS):
        _rebuild(connection, above, up_to, is_merged=True)


def _mend(connection: apsw.Connection) -> None:
    """Build the segment with the most gaps anew when there are many gaps in all."""
    if _one(connection, "SELECT count(*) FROM word_gaps") <= _MOST_GAPS:
        return
    worst: Any = connection.execute(
        "SELECT above, up_to, is_merged, count(*) FROM word_segments JOIN word_gaps"
        " ON turn_offset > above AND turn_offset <= up_to GROUP BY segment_id ORDER BY count(*) DESC LIMIT 1"
    ).fetchone()
    if worst:
        _rebuild(connection, *worst[:2], is_merged=worst[2])


def _rebuild(connection: apsw.Connection, above: int, up_to: int, *, is_merged: bool) -> None:
    connection.execute("DELETE FROM word_segments WHERE above >= ? AND up_to <= ?", (above, up_to))
    _build(connection, above, up_to, is_merged=is_merged)


def _build(connection: apsw.Connection, above: int, up_to: int, *, is_merged: bool = False) -> None:
    """Write the segments of a run of offsets, one as a rule; a long run, or one of long turns, takes several."""
    connection.execute("DELETE FROM word_gaps WHERE turn_offset > ? AND turn_offset <= ?", (above, up_to))
    while above < up_to:
        segment = _Segment()
        last = up_to
        rows: Any = connection.execute(_TURNS_OF_RUN, (above, up_to, MERGED_TURNS))
        for offset, time_ms, session_no, role, content in rows:
            segment.add(offset, time_ms, session_no, role, content.lower())
            if segment.n_chars >= MERGED_CHARS or len(segment.turns) == MERGED_TURNS:
                last = segment.turns[-1][0]
                break
        is_full = is_merged or last - above >= MERGED_TURNS
        connection.execute(_INSERT, (above, last, is_full, *segment.blobs()))
        above = last


class _Segment:
    """A segment being put together."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, int, int, int, int]] = []
        self.n_chars = 0
        self._roles: defaultdict[str, int] = defaultdict(count().__next__)
        self._vocabulary: defaultdict[str, int] = defaultdict(count().__next__)
        self._words = array("I")

    def add(self, offset: int, time_ms: int, session_no: int, role: str, lowered: str) -> None:
        words = words_of(lowered)
        self._words.extend(map(self._vocabulary.__getitem__, words))
        self.turns.append((offset, time_ms, session_no, len(words), self._roles[role]))
        self.n_chars += len(lowered)

    def blobs(self) -> tuple[bytes, str, bytes, bytes, bytes, bytes]:
        """Give turns, roles, vocabulary, starts, holders and places as they are stored."""
        words = np.frombuffer(self._words, dtype=np.uint32) if self._words else np.empty(0, dtype=np.uint32)
        starts = np.zeros(len(self._vocabulary) + 1, dtype=PLACES)
        np.cumsum(np.bincount(words, minlength=len(self._vocabulary)), out=starts[1:])
        is_short = len(self._vocabulary) < 1 << 16  # numpy sorts numbers of 16 bits in one pass
        places = np.argsort(words.astype(np.uint16) if is_short else words, kind="stable").astype(PLACES)
        turns = np.array(self.turns, dtype=TURNS)
        holders = np.repeat(np.arange(len(turns), dtype=HOLDERS), turns["n_words"])[places]
        vocabulary = " ".join(["", *self._vocabulary, ""]) if self._vocabulary else ""
        return (
            turns.tobytes(),
            json.dumps(list(self._roles), ensure_ascii=False),
            vocabulary.encode(),
            starts.tobytes(),
            holders.tobytes(),
            places.tobytes(),
        )


_TURNS_OF_RUN: Final = (
    "SELECT turn_offset, timestamp_ms, session_no, CAST(role AS TEXT), CAST(content AS TEXT)"
    " FROM turns CROSS JOIN cards USING (session_id) WHERE turn_offset > ? AND turn_offset <= ?"
    " ORDER BY turn_offset LIMIT ?"
)
_BLOBS: Final = "turns, roles, vocabulary, starts, holders, places"
_INSERT: Final = f"INSERT INTO word_segments (above, up_to, is_merged, {_BLOBS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
