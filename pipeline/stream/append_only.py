"""The server's append-only file: what was deleted leaves it only when the server writes it anew.

Nothing of ours is kept here. A rewrite that a crash cut off is done again by whoever still has a purge to end.
"""

from __future__ import annotations

import time
from typing import Any, Final

import redis
from redis import exceptions as redis_errors

from pipeline.errors import TransientError
from pipeline.stream.connection import address, translated

_POLL_S: Final = 0.02
_NODE_ENTRIES: Final = "stream-node-max-entries"


def mark(client: redis.Redis) -> str | None:
    """Note the present, for `rewrite_since`; None when the server keeps no such file.

    Raises:
        ConfigError: the server does not let us ask.
        TransientError: it does not answer.
    """
    with translated(client):
        facts = _facts(client)
    return f"{facts['run_id']}:{facts['aof_rewrites']}" if facts["aof_enabled"] else None


def is_known(client: redis.Redis, noted: str) -> bool:
    """Tell whether the server still counts from where it did when a mark was made: it was not started anew.

    Raises:
        ConfigError: the server does not let us ask.
        TransientError: it does not answer.
    """
    with translated(client):
        facts = _facts(client)
    run_id, _, n_before = noted.partition(":")
    return bool(facts["run_id"] == run_id and facts["aof_rewrites"] >= int(n_before))


def rewrite_since(client: redis.Redis, noted: str, *, timeout_s: float) -> None:
    """Wait until a rewrite that began after a mark has ended, and begin one if need be.

    What was deleted before the mark is then gone from the file. One that takes longer than ``timeout_s`` goes on, and
    the next call with the same mark waits for it.

    Raises:
        ConfigError: the server does not let us ask for it.
        TransientError: it failed, say for a full disk or a want of memory, or takes longer.
    """
    deadline, has_asked, n_before = time.monotonic() + timeout_s, False, int(noted.partition(":")[2])
    with translated(client):
        while True:
            facts = _facts(client)
            is_running = facts["aof_rewrite_in_progress"] or facts["aof_rewrite_scheduled"]
            if not is_running and facts["aof_rewrites"] > n_before and facts["aof_last_bgrewrite_status"] == "ok":
                return
            if not is_running and has_asked:
                raise TransientError(f"{address(client)} could not rewrite its append-only file; it is asked again")
            if not is_running:
                has_asked = _began(client)
            if time.monotonic() > deadline:
                raise TransientError(f"{address(client)} is still rewriting its append-only file; it is asked again")
            time.sleep(_POLL_S)


def keeps_deleted(client: redis.Redis) -> bool:
    """Tell whether the server keeps a deleted entry's bytes as long as one beside it is there; its default.

    Raises:
        ConfigError: the server does not let us ask.
        TransientError: it does not answer.
    """
    with translated(client):
        facts = client.config_get(_NODE_ENTRIES)
    return facts.get(_NODE_ENTRIES) != "1"


def _began(client: redis.Redis) -> bool:
    try:
        client.bgrewriteaof()
    except redis_errors.NoPermissionError:
        raise
    except redis_errors.ResponseError as error:
        if "in progress" in str(error):  # somebody else was faster
            return False
        if str(error).startswith("unknown command"):
            raise
        raise TransientError(
            f"{address(client)} cannot rewrite its append-only file now: {error}; it is asked again"
        ) from error
    return True


def _facts(client: redis.Redis) -> dict[str, Any]:
    facts: dict[str, Any] = {**client.info("server"), **client.info("persistence")}
    return facts
