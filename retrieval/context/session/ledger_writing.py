"""How session memory writes: straight into the scope's ledger, in the order in which ingest does.

Apply, flush, mark. A kill between the last two leaves turns that are found by words, and embedded once something
else is said in the scope or `turnstream up` starts again.

Why a ledger is opened for each call: it is written by one thread at a time, must not be shared with a forked child,
and a repair waits until nobody has it open. It takes a millisecond, and a flush takes several.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing

import structlog

from pipeline.errors import ShardError, TransientError
from pipeline.ledger import LedgerPool, disk, events
from pipeline.records import Scope, SessionDeleted, Turn
from pipeline.registry import Registry
from pipeline.shards import Shards, require_usable

_log = structlog.get_logger()


def apply(shards: Shards, turns: Sequence[Turn], *, now_ms: int, busy_timeout_ms: int) -> bool:
    """Write turns of one scope in one transaction; durable on return. A scope that does not exist is made.

    Returns:
        Whether all are new; False: some were there before, or were forgotten.

    Raises:
        ConfigError: the data folder cannot be used.
        ShardError: the ledger is damaged.
        TransientError: the disk is full, or the ledger locked; nothing is written.
    """
    scope = turns[0].scope
    if not shards.root.is_dir():
        require_usable(shards.data_dir)
    outcomes = _apply(shards, scope, turns, now_ms=now_ms, busy_timeout_ms=busy_timeout_ms)
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


def _apply(
    shards: Shards, scope: Scope, published: Sequence[Turn | SessionDeleted], *, now_ms: int, busy_timeout_ms: int
) -> list[events.Outcome]:
    pool = LedgerPool(shards, max_open=1, busy_timeout_ms=busy_timeout_ms, is_flushed=True)
    with closing(pool):
        ledger = pool.open(scope)
        outcomes = events.apply(ledger, published, now_ms=now_ms)
        disk.flush([ledger])
    try:
        with closing(Registry(shards.data_dir, busy_timeout_ms=busy_timeout_ms)) as registry:
            registry.mark([scope.key], now_ms=now_ms)
    except (ShardError, TransientError) as error:  # it is remembered; to say otherwise would have it said twice
        _log.warning("scope.left_unmarked", reason=str(error))
    return outcomes
