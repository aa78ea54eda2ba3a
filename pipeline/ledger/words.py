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
from collections.abc import Iterable
from typing import Any, Final

import apsw
import numpy as np

SEAL_TURNS: Final = 2_048
SEAL_CHARS: Final = 2 << 20
MERGED_TURNS: Final = 16 * SEAL_TURNS
MERGED_CHARS: Final = 16 * SEAL_CHARS
_MOST_GAPS: Final = 2 * SEAL_TURNS
_UNSEALED: Final = "unsealed_chars"
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


def seal_when_due(connection: apsw.Connection, n_new_chars: int, *, seal_turns: int = SEAL_TURNS) -> None:
    """Put turns into segments when enough have come; inside the caller's transaction, after their sessions' cards.

    Args:
        connection: the ledger's.
        n_new_chars: characters of the turns that this transaction adds.
        seal_turns: how many offsets above the last segment are enough.
    """
    sealed = _one(connection, "SELECT max(up_to) FROM word_segments")
    newest = _one(connection, "SELECT max(turn_offset) FROM turns")
    n_chars = n_new_chars + _one(connection, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?", _UNSEALED)
    is_due = newest - sealed >= seal_turns or n_chars >= SEAL_CHARS
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_UNSEALED, str(0 if is_due else n_chars)))
    if is_due:
        _build(connection, sealed, newest)
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
    connection.execute("DELETE FROM word_gaps WHERE turn_offset <= (SELECT max(up_to) FROM word_segments)")


def _one(connection: apsw.Connection, statement: str, *values: str) -> int:
    row: Any = connection.execute(statement, values).fetchone()
    return int(row[0] or 0) if row else 0


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
        for row in connection.execute(_TURNS_OF_RUN, (above, up_to, MERGED_TURNS)):
            segment.add(*row)
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
        self._roles: dict[str, int] = {}
        self._vocabulary: dict[str, int] = {}
        self._words = array("I")

    def add(self, offset: int, time_ms: int, session_no: int, role: str, content: str) -> None:
        words = words_of(content.lower())
        known = self._vocabulary
        self._words.extend([known.setdefault(word, len(known)) for word in words])
        self.turns.append((offset, time_ms, session_no, len(words), self._roles.setdefault(role, len(self._roles))))
        self.n_chars += len(content)

    def blobs(self) -> tuple[bytes, str, bytes, bytes, bytes, bytes]:
        """Give turns, roles, vocabulary, starts, holders and places as they are stored."""
        words = np.frombuffer(self._words, dtype=np.uint32) if self._words else np.empty(0, dtype=np.uint32)
        starts = np.zeros(len(self._vocabulary) + 1, dtype=PLACES)
        np.cumsum(np.bincount(words, minlength=len(self._vocabulary)), out=starts[1:])
        places = np.argsort(words, kind="stable").astype(PLACES)
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
    "SELECT turn_offset, timestamp_ms, session_no, role, content FROM turns CROSS JOIN cards USING (session_id)"
    " WHERE turn_offset > ? AND turn_offset <= ? ORDER BY turn_offset LIMIT ?"
)
_INSERT: Final = (
    "INSERT INTO word_segments (above, up_to, is_merged, turns, roles, vocabulary, starts, holders, places)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
