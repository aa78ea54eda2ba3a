"""Making again what a ledger's turns are enough for: chunks, vectors, full text, session rows, cards, summaries.

One transaction, so readers see the ledger as it was or mended, and a kill changes nothing. Nothing is embedded or
summarised here: turns become pending, sessions due, and the workers do what they always do. Mending what is whole
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.errors import ShardError
from pipeline.ledger import cards, check, condensed_check, reads, word_segments
from pipeline.ledger.forgetting import OF_TRACES, event_digest, remove_of_traces
from pipeline.ledger.fulltext import index_form
from pipeline.ledger.ledger import Ledger

_BLOCK_ROWS: Final = 1_000
_OF_NO_SESSION = "session_id NOT IN (SELECT session_id FROM turns UNION SELECT session_id FROM sessions)"
_ORPHANS: Final = (
    "DELETE FROM traces WHERE turn_offset NOT IN (SELECT turn_offset FROM turns)",
    *(f"DELETE FROM {table} WHERE trace_id NOT IN (SELECT trace_id FROM traces)" for table in OF_TRACES),
    f"DELETE FROM summaries WHERE {_OF_NO_SESSION}",
)


def mend_file(ledger: Ledger) -> list[str]:
    """Build indexes and full text anew where SQLite finds them damaged.

    Returns:
        What was done.

    Raises:
        ShardError: that did not help, rows themselves are damaged: `salvage` them.
        TransientError: the ledger is locked or the disk full.
    """
    with ledger.read() as connection:
        faults = check.structure(connection)
    if not faults:
        return []
    try:
        with ledger.write() as connection:
            connection.execute("REINDEX")
            n_turns = _fill_fulltext(connection)
    except apsw.ConstraintError as error:
        raise ShardError(f"{ledger.path} holds rows twice; {check.RESTORE}") from error
    with ledger.read() as connection:
        if left := check.structure(connection):
            raise ShardError(f"{ledger.path}: {left[0].problem}; {check.RESTORE}")
    return [f"indexes built anew, full text filled with {n_turns} turns"]


def mend_rows(
    ledger: Ledger,
    *,
    now_ms: int,
    wrong_summaries: Callable[[apsw.Connection], Iterable[str]],
    doubtful_traces: npt.NDArray[np.int64],
) -> list[str]:
    """Drop what cannot be right and have it made again.

    Args:
        ledger: one whose file is whole.
        now_ms: the time at which it is mended.
        wrong_summaries: names sessions whose summary is of another text than their turns.
        doubtful_traces: ids of traces whose vector is not what the snapshot says.

    Returns:
        What was done.

    Raises:
        ShardError: the file is damaged.
        TransientError: the ledger is locked or the disk full.
    """
    with ledger.write() as connection:
        was_right = not check.is_fulltext_wrong(connection)
        done = [*_drop_orphans(connection), *_drop_unnamed_vectors(connection)]
        damaged = check.damaged_turns(connection).keys() | check.turns_of(connection, doubtful_traces)
        done += [
            *_make_pending(connection, damaged, has_words=was_right),
            *_note_events(connection, check.unapplied_turns(connection), now_ms),
            *_add_sessions(connection),
        ]
        undone = {*check.damaged_summaries(connection), *wrong_summaries(connection)}
        done += _make_due(connection, undone, now_ms)
        done += [*_tell_again(connection), *condensed_check.drop_wrong(connection)]
        if not was_right:
            done.append(f"full text filled anew with {_fill_fulltext(connection)} turns")
    return done


def _drop_orphans(connection: apsw.Connection) -> list[str]:
    n_dropped = 0
    for statement in _ORPHANS:
        connection.execute(statement)
        n_dropped += connection.changes()
    return [f"{n_dropped} rows that belonged to nothing removed"] if n_dropped else []


def _drop_unnamed_vectors(connection: apsw.Connection) -> list[str]:
    """Drop all vectors when the ledger does not say whose they are, and give out ids above any ever seen."""
    done = []
    row: Any = connection.execute("SELECT ifnull(max(trace_id), 0) FROM traces").fetchone()
    if row[0] > reads.last_trace_id(connection):
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'traces'")
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('traces', ?)", (row[0],))
        done.append("the last trace id noted")
    if not check.is_model_named(connection):
        connection.execute("DELETE FROM meta WHERE key IN ('model_key', 'dimension', 'token_dimension')")
        connection.execute("DELETE FROM vectors")
        connection.execute("DELETE FROM token_vectors")
        done.append("all vectors dropped, which were of an unknown model")
    return done


def _make_pending(connection: apsw.Connection, turns: Collection[int], *, has_words: bool) -> list[str]:
    """Drop the chunks of turns; those not set aside become pending with a fresh set of attempts."""
    if not turns:
        return []
    wanted = apsw.carray(np.array(sorted(turns), dtype=np.int64), flags=apsw.SQLITE_CARRAY_INT64)
    offsets = "SELECT value FROM carray(?)"
    if has_words:  # else full text is filled anew
        present = f"{offsets} INTERSECT SELECT id FROM fulltext_docsize"
        connection.execute(f"DELETE FROM fulltext WHERE rowid IN ({present})", (wanted,))
    remove_of_traces(connection, f"SELECT trace_id FROM traces WHERE turn_offset IN ({offsets})", (wanted,))
    connection.execute(f"DELETE FROM traces WHERE turn_offset IN ({offsets})", (wanted,))
    connection.execute(
        "UPDATE turns SET state = CASE state WHEN 4 THEN 4 ELSE 0 END,"
        " attempts = CASE state WHEN 4 THEN attempts ELSE 0 END, claimed_by = NULL"
        f" WHERE turn_offset IN ({offsets})",
        (wanted,),
    )
    return [f"{len(turns)} turns to be made searchable again"]


def _note_events(connection: apsw.Connection, unapplied: Collection[str], now_ms: int) -> list[str]:
    connection.executemany(
        "INSERT OR IGNORE INTO events (digest, type, received_ms) VALUES (?, 'Turn', ?)",
        [(event_digest(event_id), now_ms) for event_id in unapplied],
    )
    n_noted = len(unapplied) + note_forgettings(connection, now_ms)
    return [f"{n_noted} events noted as applied"] if n_noted else []


def note_forgettings(connection: apsw.Connection, now_ms: int) -> int:
    """Note as applied what the requests to forget tell of: one that comes again changes nothing. Gives how many."""
    connection.execute(
        "INSERT OR IGNORE INTO events (digest, type, received_ms) SELECT digest, CASE WHEN target = 'scope'"
        " THEN 'ScopeDeleted' WHEN instr(target, '/') THEN 'TurnDeleted' ELSE 'SessionDeleted' END, ?"
        " FROM forgettings",
        (now_ms,),
    )
    return connection.changes()


def _add_sessions(connection: apsw.Connection) -> list[str]:
    """Add missing rows; a summary that is left tells that its session was closed, and what the platform said."""
    connection.execute(
        "INSERT INTO sessions (session_id, changed_ms, closed, platform_summary, closed_ms)"
        " SELECT session_id, 1, s.session_id IS NOT NULL, CASE WHEN s.model_id = 'platform' THEN s.text END,"
        " CASE WHEN s.session_id IS NOT NULL THEN max(timestamp_ms) END"
        " FROM turns LEFT JOIN summaries s USING (session_id)"
        " WHERE session_id NOT IN (SELECT session_id FROM sessions) GROUP BY session_id"
    )
    n_added = connection.changes()
    return [f"{n_added} missing session rows added"] if n_added else []


def _make_due(connection: apsw.Connection, session_ids: Collection[str], now_ms: int) -> list[str]:
    """Drop summaries and have them made again, as if the sessions had changed now."""
    if not session_ids:
        return []
    connection.executemany("DELETE FROM summaries WHERE session_id = ?", [(name,) for name in session_ids])
    connection.executemany(
        "UPDATE sessions SET state = 0, version = version + 1, changed_ms = ?, attempts = 0, retry_at_ms = NULL,"
        " failure = NULL WHERE session_id = ?",
        [(now_ms, name) for name in session_ids],
    )
    return [f"{len(session_ids)} sessions to be summarised again"]


def _tell_again(connection: apsw.Connection) -> list[str]:
    """Have cards and word segments say what the turns do."""
    done = []
    if wrong := cards.wrong(connection):
        cards.make_right(connection, wrong)
        done.append(f"{len(wrong)} cards of sessions told again")
    if runs := word_segments.wrong_runs(connection):
        word_segments.build_anew(connection)
        done.append(f"word segments built anew, {len(runs)} of which were wrong")
    return done


def _fill_fulltext(connection: apsw.Connection) -> int:
    """Empty full text and fill it from the searchable turns; gives how many those are."""
    connection.execute("INSERT INTO fulltext (fulltext) VALUES ('delete-all')")
    after, n_turns = 0, 0
    while True:
        rows: Any = connection.execute(
            "SELECT turn_offset, content FROM turns WHERE turn_offset > ? AND state = 2 ORDER BY turn_offset LIMIT ?",
            (after, _BLOCK_ROWS),
        ).fetchall()
        if not rows:
            return n_turns
        connection.executemany(
            "INSERT INTO fulltext (rowid, text) VALUES (?, ?)", [(offset, index_form(text)) for offset, text in rows]
        )
        after, n_turns = rows[-1][0], n_turns + len(rows)
