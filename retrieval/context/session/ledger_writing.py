"""How session memory writes: straight into the scope's ledger, in the order in which ingest does.

Apply, flush, mark. A kill between the last two leaves turns that are found by words, and embedded once something
else is said in the scope or `turnstream up` starts again.

Why a ledger is opened for each call: it is written by one thread at a time, must not be shared with a forked child,
and a repair waits until nobody has it open. It takes a millisecond, and a flush takes several.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import closing

import apsw
import structlog

from pipeline.errors import NotFoundError, ShardError, TransientError
from pipeline.ledger import LedgerPool, disk, events, forgetting, session_reads
from pipeline.records import Scope, SessionDeleted, Turn
from pipeline.registry import Registry
from pipeline.shards import Shards, require_usable

_log = structlog.get_logger()


def apply(shards: Shards, turns: Sequence[Turn], *, now_ms: int, busy_timeout_ms: int) -> bool:
    """Write the turns of an exchange in one transaction; durable on return. A scope that does not exist is made.

    Returns:
        Whether they are new; False: they were written before.

    Raises:
        ValueError: the session has another turn of one of their ids; nothing is written.
        NotFoundError: the session, or one of them, was forgotten; nothing is written.
        ConfigError: the data folder cannot be used.
        ShardError: the ledger is damaged.
        TransientError: the disk is full, or the ledger locked; nothing is written.
    """
    scope = turns[0].scope
    if not shards.root.is_dir():
        require_usable(shards.data_dir)
    outcomes = _apply(
        shards,
        scope,
        turns,
        now_ms=now_ms,
        busy_timeout_ms=busy_timeout_ms,
        require=lambda connection: _require_free(connection, turns),
    )
    return set(outcomes) == {events.Outcome.APPLIED}


def forget_session(shards: Shards, scope: Scope, session_id: str, *, now_ms: int, busy_timeout_ms: int) -> None:
    """Forget a session; durable on return. In a scope that does not exist there is nothing to forget.

    Raises:
        ShardError: the ledger is damaged.
        TransientError: the disk is full, or the ledger locked; nothing is forgotten.
    """
    if not shards.ledger_path(scope).exists():
        return
    event = SessionDeleted(scope=scope, session_id=session_id, timestamp_ms=now_ms, event_id=uuid.uuid4().hex)
    _apply(shards, scope, [event], now_ms=now_ms, busy_timeout_ms=busy_timeout_ms)


def _require_free(connection: apsw.Connection, turns: Sequence[Turn]) -> None:
    """Refuse turns of which one could be written and another not, unless they were written before.

    Raises:
        ValueError: another turn has one of their ids.
        NotFoundError: the session, or one of them, was forgotten.
    """
    if any(events.is_applied(connection, turn.event_id) for turn in turns):
        return
    for turn in turns:
        if session_reads.has_turn(connection, turn.session_id, turn.turn_id):
            raise ValueError(
                f"entry_id: {turn.turn_id!r} is taken by another turn of the session {turn.session_id!r}; use another"
            )
    if any(forgetting.is_forgotten(connection, t.session_id, t.turn_id, t.timestamp_ms) for t in turns):
        raise NotFoundError(why_forgotten(turns[0].session_id))


def why_forgotten(session_id: str) -> str:
    """Say that an exchange cannot be remembered again."""
    return (
        f"session_id: the session {session_id!r}, or this exchange of it, was forgotten, and so is what arrives"
        " for it later; use another id"
    )


def _apply(
    shards: Shards,
    scope: Scope,
    published: Sequence[Turn | SessionDeleted],
    *,
    now_ms: int,
    busy_timeout_ms: int,
    require: Callable[[apsw.Connection], None] | None = None,
) -> list[events.Outcome]:
    pool = LedgerPool(shards, max_open=1, busy_timeout_ms=busy_timeout_ms, is_flushed=True)
    with closing(pool):
        ledger = pool.open(scope)
        outcomes = events.apply(ledger, published, now_ms=now_ms, require=require)
        disk.flush([ledger])
    try:
        with closing(Registry(shards.data_dir, busy_timeout_ms=busy_timeout_ms)) as registry:
            registry.mark([scope.key], now_ms=now_ms)
    except (ShardError, TransientError) as error:  # it is remembered; to say otherwise would have it said twice
        _log.warning("scope.left_unmarked", reason=str(error))
    return outcomes
