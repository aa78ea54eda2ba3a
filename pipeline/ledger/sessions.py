"""Sessions of a scope: whose summary is due, what it is made from, and the summary itself.

A session's ``version`` grows with every change. A summary is stored only for the version it was made from, so turns
that arrive meanwhile leave the session due, and what was forgotten meanwhile is not written back.

A quarantined turn is left out of its session's summary, and a session waits while a turn of it is tried again: words
that end a worker would do so again in a summary, where nobody counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.ledger.forgetting import note_purge_due
from pipeline.ledger.ledger import Ledger
from pipeline.ledger.schema import SessionState
from pipeline.ledger.work import require_model


@dataclass(frozen=True, slots=True)
class DueSession:
    """A session whose summary does not cover its latest version; ``n_ended`` workers ended on it since it failed."""

    session_id: str
    version: int
    platform_summary: str | None
    attempts: int
    n_ended: int = 0


@dataclass(frozen=True, slots=True)
class NewSummary:
    """A session's summary, the digest of the text it covers, and its embedding ``(d,) float32``."""

    session_id: str
    text: str
    digest: str
    model_id: str
    vector: npt.NDArray[np.float32]
    session_date: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0


_BEGUN, _BEGUN_AGAIN = "being embedded", "being embedded again"
_N_ENDED = f"CASE failure WHEN '{_BEGUN}' THEN 1 WHEN '{_BEGUN_AGAIN}' THEN 2 ELSE 0 END"
_DUE = (
    "state = 0 AND ifnull(retry_at_ms, 0) <= :now AND changed_ms <= :now -"
    " CASE WHEN closed THEN :settle ELSE :idle END"
    " AND session_id NOT IN (SELECT session_id FROM turns WHERE state IN (0, 1) AND attempts > 0)"
)


def due(ledger: Ledger, *, now_ms: int, idle_ms: int, settle_ms: int, limit: int = 100) -> list[DueSession]:
    """List sessions to summarise now: closed and settled, or silent for the idle time; longest waiting first."""
    with ledger.read() as connection:
        return [
            DueSession(*row)
            for row in connection.execute(
                f"SELECT session_id, version, platform_summary, attempts, {_N_ENDED} FROM sessions WHERE {_DUE}"
                " ORDER BY changed_ms, session_id LIMIT :limit",
                {"now": now_ms, "settle": settle_ms, "idle": idle_ms, "limit": limit},
            )
        ]


def lines(ledger: Ledger, session_id: str) -> list[tuple[str, str]]:
    """Read a session's turns but the quarantined as (speaker or role, content), in the publisher's order."""
    with ledger.read() as connection:
        rows = connection.execute(
            "SELECT ifnull(speaker, role), content FROM turns WHERE session_id = ? AND state <> 4"
            " ORDER BY timestamp_ms, turn_index, turn_id",
            (session_id,),
        )
        return [(str(speaker), str(content)) for speaker, content in rows]


def first_turn_ms(ledger: Ledger, session_id: str) -> int | None:
    """Tell when the session began; None when it has no turn."""
    with ledger.read() as connection:
        row = connection.execute("SELECT min(timestamp_ms) FROM turns WHERE session_id = ?", (session_id,)).fetchone()
        return None if row is None else row[0]


def current_digest(ledger: Ledger, session_id: str) -> str | None:
    """Give the digest of the text that the stored summary covers, or None."""
    with ledger.read() as connection:
        row = connection.execute("SELECT digest FROM summaries WHERE session_id = ?", (session_id,)).fetchone()
        return None if row is None else row[0]


def begin(ledger: Ledger, due_sessions: Sequence[DueSession]) -> None:
    """Note, before anything is risked, whose summaries are embedded now; what comes of it overwrites the note."""
    if not due_sessions:
        return
    with ledger.write() as connection:
        connection.executemany(
            "UPDATE sessions SET failure = ? WHERE session_id = ? AND version = ?",
            [(_BEGUN_AGAIN if s.n_ended else _BEGUN, s.session_id, s.version) for s in due_sessions],
        )


def put_summary(
    ledger: Ledger,
    summary: NewSummary,
    *,
    now_ms: int,
    model_key: str,
    version: int | None = None,
) -> bool:
    """Replace the session's summary under a new summary id.

    Args:
        ledger: the scope's ledger.
        summary: the new summary.
        now_ms: the time it was made.
        model_key: the embedding model of its vector.
        version: the session's version it was made from; None stores it whatever the session's state.

    Returns:
        False when the session changed meanwhile: nothing was stored, and what the summariser cached is to be purged;
        or when another worker was faster.

    Raises:
        ModelMismatchError: the ledger holds another model's vectors.
    """
    with ledger.write() as connection:
        require_model(ledger, connection, model_key, summary.vector.shape[0])
        if version is not None:
            if _is_summarised(connection, summary.session_id, version):  # by a worker rung for the same
                return False
            connection.execute(
                "UPDATE sessions SET state = ?, attempts = 0, retry_at_ms = NULL, failure = NULL"
                " WHERE session_id = ? AND version = ?",
                (SessionState.SUMMARISED, summary.session_id, version),
            )
            if connection.changes() == 0:
                note_purge_due(connection, now_ms)
                return False
        connection.execute("DELETE FROM summaries WHERE session_id = ?", (summary.session_id,))
        connection.execute(
            "INSERT INTO summaries (session_id, text, digest, model_id, session_date, summarised_ms, tokens_in,"
            " tokens_out, vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (summary.session_id, summary.text, summary.digest, summary.model_id, summary.session_date, now_ms,
             summary.tokens_in, summary.tokens_out, summary.vector.astype("<f2").tobytes()),
        )  # fmt: skip
    return True


def _is_summarised(connection: apsw.Connection, session_id: str, version: int) -> bool:
    row = connection.execute(
        "SELECT 1 FROM sessions WHERE session_id = ? AND version = ? AND state = ?",
        (session_id, version, SessionState.SUMMARISED),
    ).fetchone()
    return row is not None


def confirm_summary(ledger: Ledger, due_session: DueSession, *, has_summary: bool) -> None:
    """Mark a session up to date whose text is already covered, or that has nothing to summarise."""
    state = SessionState.SUMMARISED if has_summary else SessionState.NOTHING_TO_SUMMARISE
    with ledger.write() as connection:
        connection.execute(
            "UPDATE sessions SET state = ?, attempts = 0, retry_at_ms = NULL, failure = NULL"
            " WHERE session_id = ? AND version = ?",
            (state, due_session.session_id, due_session.version),
        )
        if not has_summary:
            connection.execute("DELETE FROM summaries WHERE session_id = ?", (due_session.session_id,))


def postpone(ledger: Ledger, due_session: DueSession, *, failure: str, retry_at_ms: int) -> None:
    """List a session as unsummarised, with the reason and the time of the next try."""
    with ledger.write() as connection:
        connection.execute(
            "UPDATE sessions SET attempts = attempts + 1, failure = ?, retry_at_ms = ?"
            " WHERE session_id = ? AND version = ?",
            (failure, retry_at_ms, due_session.session_id, due_session.version),
        )


def delete_summary(ledger: Ledger, session_id: str) -> bool:
    """Remove a session's summary; durable on return.

    Returns:
        Whether there was one.
    """
    with ledger.write() as connection:
        connection.execute("DELETE FROM summaries WHERE session_id = ?", (session_id,))
        return connection.changes() > 0


def replace_vector(ledger: Ledger, session_id: str, text: str, vector: npt.NDArray[np.float32]) -> bool:
    """Keep a summary under a new summary id with a vector ``(d,) float32`` made anew from its text.

    Returns:
        False when that summary is no longer there: it was replaced or forgotten meanwhile, and stays so.
    """
    with ledger.write() as connection:
        connection.execute(
            "INSERT OR REPLACE INTO summaries (session_id, text, digest, model_id, session_date, summarised_ms,"
            " tokens_in, tokens_out, vector) SELECT session_id, text, digest, model_id, session_date, summarised_ms,"
            " tokens_in, tokens_out, ? FROM summaries WHERE session_id = ? AND text = ?",
            (vector.astype("<f2").tobytes(), session_id, text),
        )
        return connection.changes() > 0
