"""What can be wrong inside one ledger: its rows compared with each other, set by set. SELECTs only.

Ask inside one transaction (`Ledger.read`): then what other processes are at work on is seen before or after, never in
between. What is still to be done, a pending turn or a session not yet summarised, is not wrong.

Why: no error of SQLite says that a vector is missing or a turn has half of its chunks; retrieval would just not find
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.ledger import cards, condensed_check, events, reads, word_segments
from pipeline.ledger.connection import read_meta
from pipeline.ledger.forgetting import PURGE_DUE
from pipeline.ledger.session_reads import REMEMBERED
from pipeline.records import SESSION_TAG_PREFIX

_SHOWN: Final = 3
_BLOCK_ROWS: Final = 4_096
_CLOCKS_OFF_MS: Final = 86_400_000
_MAX_NORM_ERROR: Final = 0.01
"""Float16 alone moves the length of a 384-dimensional unit vector by less than 0.001."""
MADE_AGAIN: Final = "'turnstream doctor --repair' has it made again from the turns"
SALVAGED: Final = "'turnstream doctor --repair' saves what can still be read"
RESTORE: Final = "restore the ledger from a backup"
REPLACE: Final = "publish the turn again with a higher revision, forget it, or restore the ledger from a backup"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a ledger: in which part, what and where, and what to do."""

    part: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Turns; those not yet searchable or set aside; what falls due by time: sessions without a summary, a purge."""

    n_turns: int = 0
    n_undone: int = 0
    n_due: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers that no turn of a session has, between the least and the greatest that its turns do have."""

    session_id: str
    missing: tuple[int, ...]


def structure(connection: apsw.Connection) -> list[Fault]:
    """Have SQLite compare every page, index and the full text's own structure."""
    problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)")]
    if problems == ["ok"]:
        return []
    return [Fault("ledger", "; ".join(problems), f"{SALVAGED}, or {RESTORE}")]


def contents(connection: apsw.Connection) -> Iterator[Fault]:
    """Compare turns, events, chunks, vectors, full text, sessions, cards, words and summaries with each other."""
    yield from _meta_faults(connection)
    for rule in (*_ROWS, *_UNREPAIRABLE):
        found = [str(row[0]) for row in connection.execute(rule.places)]
        if found:
            yield Fault(rule.part, f"{rule.problem}: {_some(found)}", rule.remedy)
    if unapplied := unapplied_turns(connection):
        yield Fault("events", f"turns whose event is not noted as applied: {_some(unapplied.values())}", MADE_AGAIN)
    turns = damaged_turns(connection)
    for reason, offsets in _by_reason(turns).items():
        yield Fault("turns", f"{reason}: {_some(turn_places(connection, offsets))}", MADE_AGAIN)
    summaries = damaged_summaries(connection)
    for reason, ids in _by_reason(summaries).items():
        yield Fault("summaries", f"{reason}: {_some(f'session {session_id!r}' for session_id in ids)}", MADE_AGAIN)
    if found := cards.wrong(connection):
        places = _some(f"session {session_id!r}" for session_id in found)
        yield Fault("cards", f"cards that do not tell what their session's turns do: {places}", MADE_AGAIN)
    elif runs := word_segments.wrong_runs(connection):
        places = _some(f"turn offsets {above + 1} to {up_to}" for above, up_to in runs)
        yield Fault("words", f"segments that do not hold the words of their turns: {places}", MADE_AGAIN)
    for part, problem, found in condensed_check.faults(connection):
        yield Fault(part, f"{problem}: {_some(found)}", MADE_AGAIN)


def unfinished(connection: apsw.Connection) -> Iterator[Fault]:
    """List work that is left, for a caller who knows that there should be none."""
    remedy = "'turnstream up' does it; see its log if it does not"
    for part, problem, places in _UNFINISHED:
        found = [str(row[0]) for row in connection.execute(places)]
        if found:
            yield Fault(part, f"{problem}: {_some(found)}", remedy)


def is_fulltext_wrong(connection: apsw.Connection) -> bool:
    """Tell whether full text has other turns than the searchable ones."""
    return any(
        connection.execute(f"{rule.places} LIMIT 1").fetchone() is not None
        for rule in _ROWS
        if rule.part == "full text"
    )


def is_model_named(connection: apsw.Connection) -> bool:
    """Tell whether the ledger says whose its vectors are; one without vectors need not."""
    meta = read_meta(connection)
    return bool(meta.get("model_key") and meta.get("dimension", "").isdecimal()) or not reads.has_traces(connection)


def gap_fault(gap: Gap) -> Fault:
    """Say which turns of a session never came."""
    return Fault(
        "turn index",
        f"session {gap.session_id!r} has no turn with index {_some(map(str, gap.missing), shown=20)}",
        "look for it among the dead letters ('turnstream dead-letters list'), or publish it again",
    )


def gaps(connection: apsw.Connection) -> list[Gap]:
    """Find the numbers missing in sessions whose turns are numbered, at most two alike and without large leaps.

    Turns that an agent remembered have no numbers. Numbers that turns deleted on request had are not missing. Of a
    scope deleted up to a time nothing tells which numbers went: what was said before it, and a day after it by clocks
    that may be wrong, is left out.
    """
    found = []
    numbered: Any = connection.execute(_NUMBERED, (_CLOCKS_OFF_MS,)).fetchall()
    for session_id, least, greatest in numbered:
        present: Any = connection.execute(
            f"SELECT turn_index FROM turns WHERE session_id = ?1 AND {_PUBLISHED}"
            " UNION SELECT turn_index FROM vacated WHERE session_id = ?1",
            (session_id,),
        ).fetchall()
        missing = sorted(set(range(least, greatest + 1)) - {row[0] for row in present})
        if missing:
            found.append(Gap(str(session_id), tuple(missing)))
    return found


def damaged_turns(connection: apsw.Connection) -> dict[int, str]:
    """Give the offsets of turns whose chunks or vectors cannot be right, each with a reason."""
    found: dict[int, str] = {}
    for reason, offsets in _TURNS:
        found |= {row[0]: reason for row in connection.execute(offsets)}
    uneven: Any = connection.execute(_UNEVEN)
    for offset, content, spans in uneven:
        if not _covers(content, json.loads(spans)):
            found[offset] = "whose chunks do not cover them"
    skipped: Any = connection.execute("SELECT turn_offset, content FROM turns WHERE state = 3")
    for offset, content in skipped:
        if str(content).strip():
            found[offset] = "skipped though they have words"
    bad = _bad_vectors(connection, "SELECT trace_id, vector FROM vectors")
    for offset in turns_of(connection, np.array(bad, dtype=np.int64)):
        found[offset] = "with a vector that is none: wrong size, not finite or not of length 1"
    return found


def turns_of(connection: apsw.Connection, trace_ids: npt.NDArray[np.int64]) -> set[int]:
    """Give the offsets of the turns that traces belong to."""
    if not trace_ids.size:
        return set()
    rows: Any = connection.execute(
        "SELECT turn_offset FROM carray(?) wanted CROSS JOIN traces ON trace_id = wanted.value"
        " JOIN turns USING (turn_offset)",
        (apsw.carray(np.ascontiguousarray(trace_ids), flags=apsw.SQLITE_CARRAY_INT64),),
    )
    return {row[0] for row in rows}


def damaged_summaries(connection: apsw.Connection) -> dict[str, str]:
    """Give the ids of sessions whose summary cannot be right, each with a reason."""
    found: dict[str, str] = {}
    for reason, session_ids in _SUMMARIES:
        found |= {str(row[0]): reason for row in connection.execute(session_ids)}
    bad = set(_bad_vectors(connection, "SELECT summary_id, vector FROM summaries"))
    for summary_id, session_id in connection.execute("SELECT summary_id, session_id FROM summaries") if bad else ():
        if summary_id in bad:
            found[str(session_id)] = "summaries with a vector that is none"
    return found


def vectors_between(
    connection: apsw.Connection, first: int, last: int, dimension: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Fetch ids (n,) ascending and vectors ``(n, d) float32`` from one trace to another, if they are of that size."""
    rows: Any = connection.execute(
        "SELECT trace_id, vector FROM vectors WHERE trace_id BETWEEN ? AND ? AND length(vector) = ?"
        " ORDER BY trace_id",
        (first, last, 2 * dimension),
    ).fetchall()
    flat = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2").astype(np.float32)
    return np.array([row[0] for row in rows], dtype=np.int64), flat.reshape(len(rows), dimension)


def unapplied_turns(connection: apsw.Connection) -> dict[str, str]:
    """Give the event ids of turns whose event is not noted as applied, each with its turn's place."""
    rows = connection.execute("SELECT event_id, session_id, turn_id FROM turns")
    return {
        str(event_id): _place(session_id, turn_id)
        for event_id, session_id, turn_id in rows
        if not events.is_applied(connection, str(event_id))
    }


def session_lines(connection: apsw.Connection) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each session with what `sessions.lines` gives for it; a session whose turns are all quarantined not."""
    rows: Any = connection.execute(
        "SELECT session_id, CAST(ifnull(speaker, role) AS TEXT), CAST(content AS TEXT) FROM turns WHERE state <> 4"
        " ORDER BY session_id, timestamp_ms, turn_index, turn_id"
    )
    for session_id, of_session in groupby(rows, key=itemgetter(0)):
        yield session_id, [(speaker, content) for _, speaker, content in of_session]


def turn_places(connection: apsw.Connection, offsets: Iterable[int]) -> list[str]:
    """Name turns, the first few by session and turn id, the others by offset alone."""
    offsets = sorted(offsets)
    places = []
    for offset in offsets[:_SHOWN]:
        row: Any = connection.execute(
            "SELECT session_id, turn_id FROM turns WHERE turn_offset = ?", (offset,)
        ).fetchone()
        places.append(_place(*row))
    return places + [str(offset) for offset in offsets[_SHOWN:]]


def counts(connection: apsw.Connection) -> Counted:
    """Count turns and what is left to do."""
    row: Any = connection.execute(_COUNTS, (PURGE_DUE,)).fetchone()
    return Counted(row[0], n_undone=row[1], n_due=row[2] + row[3])


@dataclass(frozen=True, slots=True)
class _Rule:
    """Rows that must not be there, or are missing: a query that names the place of each."""

    part: str
    problem: str
    places: str
    remedy: str = MADE_AGAIN


_TURN = "'session ''' || session_id || ''' turn ''' || turn_id || ''''"
_ROWS: Final = (
    _Rule("chunks", "chunks of no turn", "SELECT 'trace ' || trace_id FROM traces"
          " WHERE turn_offset NOT IN (SELECT turn_offset FROM turns)"),
    _Rule("vectors", "vectors of no chunk", "SELECT 'trace ' || trace_id FROM vectors"
          " WHERE trace_id NOT IN (SELECT trace_id FROM traces)"),
    _Rule("token vectors", "token vectors of no chunk", "SELECT 'trace ' || trace_id FROM token_vectors"
          " WHERE trace_id NOT IN (SELECT trace_id FROM traces)"),
    _Rule("words", "words of no chunk", "SELECT 'trace ' || trace_id FROM passages"
          " WHERE trace_id NOT IN (SELECT trace_id FROM traces)"),
    _Rule("full text", "searchable turns that full text misses", f"SELECT {_TURN} FROM turns"
          " WHERE state = 2 AND turn_offset NOT IN (SELECT id FROM fulltext_docsize)"),
    _Rule("full text", "words of no searchable turn", "SELECT 'turn offset ' || id FROM fulltext_docsize"
          " WHERE id NOT IN (SELECT turn_offset FROM turns WHERE state = 2)"),
    _Rule("events", "requests to forget that are not noted as applied", "SELECT hex(digest) FROM forgettings"
          " WHERE digest NOT IN (SELECT digest FROM events)"),
    _Rule("sessions", "sessions that have turns and no row", "SELECT DISTINCT 'session ''' || session_id || ''''"
          " FROM turns WHERE session_id NOT IN (SELECT session_id FROM sessions)"),
)  # fmt: skip
_UNREPAIRABLE: Final = (
    _Rule("turns", "turns whose tags, mood or metadata are no JSON", f"SELECT {_TURN} FROM turns"
          " WHERE NOT json_valid(tags) OR NOT json_valid(metadata) OR NOT json_valid(ifnull(mood, 'null'))", REPLACE),
    _Rule("turns", "turns without their session's tag", f"SELECT {_TURN} FROM turns WHERE json_valid(tags)"
          f" AND json_extract(tags, '$[0]') IS NOT '{SESSION_TAG_PREFIX}' || session_id", REPLACE),
)  # fmt: skip
_CLAIMS: Final = "SELECT turn_offset FROM turns WHERE state = 1 AND claimed_by IS NULL"
_TURNS: Final = (
    ("searchable turns without a chunk",
     "SELECT turn_offset FROM turns WHERE state = 2 AND turn_offset NOT IN (SELECT turn_offset FROM traces)"),
    ("turns with chunks that are not searchable",
     "SELECT DISTINCT turn_offset FROM traces JOIN turns USING (turn_offset) WHERE state <> 2"),
    ("whose chunks are not numbered 0, 1, 2 …",
     ("SELECT turn_offset FROM traces JOIN turns USING (turn_offset) GROUP BY turn_offset"
      " HAVING min(ordinal) <> 0 OR max(ordinal) <> count(*) - 1 OR count(DISTINCT ordinal) <> count(*)")),
    ("with a chunk without a vector",
     ("SELECT DISTINCT turn_offset FROM traces JOIN turns USING (turn_offset)"
      " WHERE trace_id NOT IN (SELECT trace_id FROM vectors)")),
    ("with a chunk whose words are missing, or are none",
     ("SELECT DISTINCT turn_offset FROM traces JOIN turns USING (turn_offset) LEFT JOIN passages USING (trace_id)"
      " WHERE ifnull(length(words), 1) % 4 <> 0 OR marks NOT BETWEEN 0 AND 7")),
    ("with a chunk whose token vectors are missing, or of a wrong size",
     ("SELECT DISTINCT turn_offset FROM traces JOIN turns USING (turn_offset)"
      " LEFT JOIN token_vectors USING (trace_id)"
      " WHERE ifnull(length(tokens), 1) % max((SELECT value FROM meta WHERE key = 'token_dimension'), 2) <> 0")),
    ("with a chunk whose strength, stability, valence or confidence is out of range",
     ("SELECT DISTINCT turn_offset FROM traces JOIN turns USING (turn_offset) WHERE NOT (strength BETWEEN 0 AND 1"
      " AND stability_ms > 0 AND valence BETWEEN -1 AND 1 AND confidence BETWEEN 0 AND 1 AND n_tokens > 0)")),
    ("claimed by nobody", _CLAIMS),
    ("in a state that is none", "SELECT turn_offset FROM turns WHERE state NOT IN (0, 1, 2, 3, 4)"),
)  # fmt: skip
_UNEVEN: Final = (
    "SELECT turn_offset, content, json_group_array(json_array(start, stop) ORDER BY ordinal)"
    " FROM traces JOIN turns USING (turn_offset) WHERE state = 2 GROUP BY turn_offset"
    " HAVING count(*) > 1 OR min(start) <> 0 OR max(stop) <> length(content)"
)
_SUMMARIES: Final = (
    ("summaries of no session",
     "SELECT session_id FROM summaries WHERE session_id NOT IN (SELECT session_id FROM sessions)"),
    ("sessions noted as summarised that have no summary",
     "SELECT session_id FROM sessions WHERE state = 1 AND session_id NOT IN (SELECT session_id FROM summaries)"),
    ("summaries of sessions with nothing to summarise",
     "SELECT session_id FROM sessions WHERE state = 2 AND session_id IN (SELECT session_id FROM summaries)"),
    ("summaries that are blank", "SELECT session_id FROM summaries WHERE trim(text) = ''"),
    ("sessions in a state that is none", "SELECT session_id FROM sessions WHERE state NOT IN (0, 1, 2)"),
)  # fmt: skip
_PUBLISHED: Final = f"event_id NOT GLOB '{REMEMBERED}*'"
_NUMBERED: Final = (
    f"SELECT session_id, min(turn_index), max(turn_index) FROM turns WHERE {_PUBLISHED} AND first_ms >"
    " ifnull((SELECT until_ms + ? FROM tombstones WHERE target = 'scope'), -9e18) GROUP BY session_id"
    " HAVING 2 * count(DISTINCT turn_index) >= count(*)"
    " AND max(turn_index) - min(turn_index) >= count(DISTINCT turn_index)"
    " AND max(turn_index) - min(turn_index) + 1 <= 2 * count(DISTINCT turn_index)"
)
_UNFINISHED: Final = (
    ("turns", "turns that are not searchable yet", f"SELECT {_TURN} FROM turns WHERE state IN (0, 1)"),
    ("sessions", "closed sessions without an up-to-date summary",
     "SELECT 'session ''' || session_id || '''' FROM sessions WHERE state = 0 AND closed AND attempts = 0"),
    ("forgetting", "forgotten bytes not purged yet",
     f"SELECT 'since ' || value FROM meta WHERE key = '{PURGE_DUE}'"),
)  # fmt: skip
_COUNTS: Final = (
    "SELECT count(*), ifnull(sum(state IN (0, 1)), 0), (SELECT count(*) FROM meta WHERE key = ?),"
    " (SELECT count(*) FROM sessions WHERE state = 0) FROM turns"
)


def _meta_faults(connection: apsw.Connection) -> Iterator[Fault]:
    if not is_model_named(connection):
        yield Fault("meta", "it does not say which model made its vectors", MADE_AGAIN)
    row: Any = connection.execute("SELECT ifnull(max(trace_id), 0) FROM traces").fetchone()
    if row[0] > reads.last_trace_id(connection):
        yield Fault("meta", "trace ids are above the last one given out", MADE_AGAIN)


def _bad_vectors(connection: apsw.Connection, query: str) -> list[int]:
    """Give the ids of vectors of another size than the ledger's, with a number that is none, or not of length 1."""
    dimension = read_meta(connection).get("dimension", "")
    n_bytes = 2 * int(dimension) if dimension.isdecimal() else -1
    rows: Iterator[Any] = iter(connection.execute(query))
    bad: list[int] = []
    while block := list(islice(rows, _BLOCK_ROWS)):
        bad += [row[0] for row in block if len(row[1]) != n_bytes]
        block = [row for row in block if len(row[1]) == n_bytes]
        vectors = np.frombuffer(b"".join(row[1] for row in block), dtype="<f2").astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            norms = np.linalg.norm(vectors.reshape(len(block), -1), axis=1) if block else np.empty(0)
        is_unit = np.abs(norms - 1) <= _MAX_NORM_ERROR  # False for NaN, too
        bad += [block[i][0] for i in np.flatnonzero(~is_unit)]
    return bad


def _covers(content: str, spans: list[list[int]]) -> bool:
    """Tell whether chunks lie inside a text, in order, apart, and leave out nothing but blanks."""
    at = 0
    for start, stop in spans:
        if not at <= start < stop <= len(content) or content[at:start].strip():
            return False
        at = stop
    return not content[at:].strip()


def _by_reason(damaged: dict[Any, str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, reason in damaged.items():
        found.setdefault(reason, []).append(key)
    return found


def _place(session_id: object, turn_id: object) -> str:
    return f"session {str(session_id)!r} turn {str(turn_id)!r}"


def _some(places: Iterable[str], *, shown: int = _SHOWN) -> str:
    found = list(places)
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return ", ".join(found[:shown]) + more
