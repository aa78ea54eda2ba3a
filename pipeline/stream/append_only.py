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


def rewrite(client: redis.Redis, *, timeout_s: float) -> bool:
    """Have the server write its append-only file anew, and wait until what was deleted before this call is gone.

    Returns:
        False when the server keeps no such file.

    Raises:
        ConfigError: the server does not let us ask for it.
        TransientError: it failed, say for a full disk, or takes longer than ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    with translated(client):
        if not _facts(client)["aof_enabled"]:
            return False
        while not _began(client):
            _wait(client, deadline)  # for one that began before this call, and may hold what it is about
        _wait(client, deadline)
        if _facts(client)["aof_last_bgrewrite_status"] != "ok":
            raise TransientError(f"{address(client)} could not rewrite its append-only file; it is asked again")
    return True


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
    except redis_errors.ResponseError as error:
        if "in progress" not in str(error):
            raise
        return False
    return True


def _wait(client: redis.Redis, deadline: float) -> None:
    while (facts := _facts(client))["aof_rewrite_in_progress"] or facts["aof_rewrite_scheduled"]:
        if time.monotonic() > deadline:
            raise TransientError(f"{address(client)} is still rewriting its append-only file; it is asked again")
        time.sleep(_POLL_S)


def _facts(client: redis.Redis) -> dict[str, Any]:
    facts: dict[str, Any] = client.info("persistence")
    return facts
