"""Turns on their way to being searchable: claimed, counted, committed, or quarantined.

A claim is written before the work starts and names the worker, so a turn that kills its worker has been counted. The
claim of a worker that no longer lives is taken back by the next one. After ``max_attempts`` a turn is quarantined
with its reason. A turn that failed once is from then on claimed alone: its neighbours are not counted with it.

Why the least often tried first: a turn that ends its worker each time would otherwise stand before all others, and
several chance kills in a row, as when the machine's memory runs out, would all hit the same turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.crash_points import CrashPoint, passing
from pipeline.errors import ModelMismatchError
from pipeline.ledger.ledger import Ledger
from pipeline.ledger.schema import TurnState
from pipeline.records import Chunk, Mood

_UNDONE = "SELECT 1 FROM turns WHERE state IN (0, 1) LIMIT 1"
_ENDED_DURING_ATTEMPT = "its worker ended during the attempt (killed, out of memory, or past its time limit)"


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A turn that this worker, and no other, is to make searchable."""

    turn_offset: int
    content: str
    timestamp_ms: int
    mood: Mood | None
    attempts: int


@dataclass(frozen=True, slots=True)
class NewTrace:
    """One chunk of a claimed turn with its embedding ``(d,) float32`` and its cognitive fields."""

    chunk: Chunk
    vector: npt.NDArray[np.float32]
    strength: float
    stability_ms: float
    valence: float
    confidence: float


@dataclass(frozen=True, slots=True)
class TurnWork:
    """What became of a claimed turn: its words for full text and its traces; no trace means nothing to search."""

    turn: ClaimedTurn
    words: str
    traces: Sequence[NewTrace]


def claim(
    ledger: Ledger,
    worker: str,
    *,
    limit: int,
    max_attempts: int,
    is_alive: Callable[[str], bool],
    model_key: str,
    retried: bool = False,
) -> list[ClaimedTurn]:
    """Take up to ``limit`` pending turns that were never tried, oldest offset first.

    Args:
        ledger: whose turns are taken.
        worker: who takes them.
        limit: most turns.
        max_attempts: attempts after which a turn is quarantined.
        is_alive: tells whether another worker still works on its claims.
        model_key: the embedding model they are to be embedded with.
        retried: take one turn that was tried before instead, the least often tried first.

    Raises:
        ModelMismatchError: the ledger holds another model's vectors; nothing is claimed, no attempt counted.
        ShardError: the ledger is damaged.
        TransientError: the ledger is locked or the disk full.
    """
    if not _has_undone(ledger):
        return []
    with ledger.write() as connection:
        _reject_other_model(ledger, connection, model_key)
        _take_back_claims(connection, worker, max_attempts, is_alive)
        found = connection.execute(
            "SELECT turn_offset FROM turns WHERE state = 0 AND attempts > 0 ORDER BY attempts, turn_offset LIMIT 1"
            if retried
            else "SELECT turn_offset FROM turns WHERE state = 0 AND attempts = 0 ORDER BY turn_offset LIMIT ?",
            () if retried else (limit,),
        ).fetchall()
        claimed = [_claim_one(connection, worker, int(str(row[0]))) for row in found]
    passing(CrashPoint.AFTER_ATTEMPT)
    return claimed


def commit(ledger: Ledger, worker: str, done: Sequence[TurnWork], *, model_key: str, dimension: int) -> int:
    """Write the traces, vectors and words of claimed turns in one transaction.

    A turn edited, forgotten or taken over since it was claimed is left out: somebody else's newer state stands.

    Returns:
        How many turns became searchable.

    Raises:
        ModelMismatchError: the ledger holds another model's vectors.
        ShardError: the ledger is damaged.
        TransientError: the ledger is locked or the disk full.
    """
    with ledger.write() as connection:
        require_model(ledger, connection, model_key, dimension)
        mine = [
            work
            for work in done
            if connection.execute(
                "SELECT 1 FROM turns WHERE turn_offset = ? AND state = 1 AND claimed_by = ?",
                (work.turn.turn_offset, worker),
            ).fetchone()
        ]
        _insert_traces(connection, mine)
        passing(CrashPoint.MID_ROWS)
        connection.executemany(
            "UPDATE turns SET state = ?, claimed_by = NULL, failure = NULL WHERE turn_offset = ?",
            [(TurnState.SEARCHABLE if w.traces else TurnState.SKIPPED, w.turn.turn_offset) for w in mine],
        )
    passing(CrashPoint.AFTER_TRACES)
    return sum(1 for work in mine if work.traces)


def release(ledger: Ledger, worker: str, *, failure: str, max_attempts: int, counted: bool = True) -> None:
    """Give this worker's claims back after a failure; those at ``max_attempts`` are quarantined with the reason.

    Args:
        ledger: the ledger whose claims are given back.
        worker: the worker that holds them.
        failure: why, in words for an operator.
        max_attempts: attempts after which a turn is quarantined.
        counted: False when the turn is not to blame (disk full, shutdown).
    """
    with ledger.write() as connection:
        if counted:
            _end_claims(connection, worker, failure, max_attempts)
        else:
            _undo_claims(connection, worker)


def requeue(ledger: Ledger, turn_offsets: Sequence[int] | None = None) -> int:
    """Give quarantined turns (all of them when None) a fresh set of attempts.

    Returns:
        How many turns are pending again.
    """
    which = "state = 4 AND (?1 IS NULL OR turn_offset IN (SELECT value FROM json_each(?1)))"
    values = (None if turn_offsets is None else json.dumps(list(turn_offsets)),)
    with ledger.write() as connection:
        _change_sessions(connection, which, values)
        connection.execute(f"UPDATE turns SET state = 0, attempts = 0, failure = NULL WHERE {which}", values)
        return connection.changes()


def require_model(ledger: Ledger, connection: apsw.Connection, model_key: str, dimension: int) -> None:
    """Record the ledger's embedding model at its first vector, and hold every later one to it.

    Raises:
        ModelMismatchError: the ledger was written with another model.
    """
    row = connection.execute("SELECT value FROM meta WHERE key = 'model_key'").fetchone()
    if row is None:
        connection.execute("INSERT INTO meta VALUES ('model_key', ?), ('dimension', ?)", (model_key, str(dimension)))
    _reject_other_model(ledger, connection, model_key)


def _reject_other_model(ledger: Ledger, connection: apsw.Connection, model_key: str) -> None:
    row = connection.execute("SELECT value FROM meta WHERE key = 'model_key'").fetchone()
    if row is not None and row[0] != model_key:
        raise ModelMismatchError(
            f"{ledger.path} was written with {row[0]}, the settings name {model_key};"
            " set TURNSTREAM_EMBEDDING__MODEL and __BACKEND back, or backfill into a new data folder"
        )


def _claim_one(connection: apsw.Connection, worker: str, turn_offset: int) -> ClaimedTurn:
    row: Any = connection.execute(
        "UPDATE turns SET state = 1, claimed_by = ?, attempts = attempts + 1 WHERE turn_offset = ?"
        " RETURNING content, timestamp_ms, mood, attempts",
        (worker, turn_offset),
    ).fetchone()
    content, timestamp_ms, mood, attempts = row
    return ClaimedTurn(turn_offset, content, timestamp_ms, Mood(*json.loads(mood)) if mood else None, attempts)


def _has_undone(ledger: Ledger) -> bool:
    with ledger.read() as connection:
        return connection.execute(_UNDONE).fetchone() is not None


def _take_back_claims(
    connection: apsw.Connection, worker: str, max_attempts: int, is_alive: Callable[[str], bool]
) -> None:
    holders = connection.execute("SELECT DISTINCT claimed_by FROM turns WHERE state = 1").fetchall()
    for holder in [str(row[0]) for row in holders]:
        if holder == worker:
            # A worker does one task at a time, and it lives: it could not give these back, say on a full disk.
            _undo_claims(connection, worker)
        elif not is_alive(holder):
            _end_claims(connection, holder, _ENDED_DURING_ATTEMPT, max_attempts)


def _undo_claims(connection: apsw.Connection, worker: str) -> None:
    connection.execute(
        "UPDATE turns SET state = 0, claimed_by = NULL, attempts = attempts - 1 WHERE state = 1 AND claimed_by = ?",
        (worker,),
    )


def _end_claims(connection: apsw.Connection, worker: str, failure: str, max_attempts: int) -> None:
    _change_sessions(connection, "state = 1 AND attempts >= ? AND claimed_by = ?", (max_attempts, worker))
    connection.execute(
        "UPDATE turns SET state = CASE WHEN attempts >= ? THEN 4 ELSE 0 END, claimed_by = NULL, failure = ?"
        " WHERE state = 1 AND claimed_by = ?",
        (max_attempts, failure, worker),
    )


def _change_sessions(connection: apsw.Connection, condition: str, values: tuple[int | str | None, ...]) -> None:
    """Have sessions summarised again whose summary is no longer of the same turns."""
    connection.execute(
        "UPDATE sessions SET version = version + 1, state = 0, attempts = 0, retry_at_ms = NULL, failure = NULL"
        f" WHERE session_id IN (SELECT session_id FROM turns WHERE {condition})",
        values,
    )


def _insert_traces(connection: apsw.Connection, done: Sequence[TurnWork]) -> None:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'traces'").fetchone()
    next_id = (row[0] if row else 0) + 1
    traces, vectors = [], []
    for work in done:
        for ordinal, trace in enumerate(work.traces):
            traces.append((next_id, work.turn.turn_offset, ordinal, trace.chunk.start, trace.chunk.stop,
                           trace.chunk.n_tokens, trace.strength, trace.stability_ms, trace.valence, trace.confidence,
                           work.turn.timestamp_ms))  # fmt: skip
            vectors.append((next_id, trace.vector.astype("<f2").tobytes()))
            next_id += 1
    connection.executemany("INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", traces)
    connection.executemany("INSERT INTO vectors VALUES (?, ?)", vectors)
    connection.executemany(
        "INSERT INTO fulltext (rowid, text) VALUES (?, ?)", [(w.turn.turn_offset, w.words) for w in done if w.traces]
    )
