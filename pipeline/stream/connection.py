"""Reaching the server: its address, a client for it, and what its errors mean to us.

The embedded server listens on a socket in the data folder. A path too long for a socket address is replaced by one
in the run-time folder, which both sides find by the same rule; they must see the same ``XDG_RUNTIME_DIR``.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline import server_address
from pipeline.errors import Backpressure, ConfigError, ServerUnreachableError, TransientError, TurnstreamError

_SETTING: Final = "TURNSTREAM_REDIS__URL"
MIN_MAJOR_VERSION: Final = 7
MAX_SOCKET_PATH_BYTES: Final = 100
"""The system's limit is 104 to 108, the closing NUL included."""

_REFUSED_LOGIN: Final = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
)
_PASSING: Final = (
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
)
_PASSING_CODES: Final = ("MISCONF", "NOREPLICAS", "BUSY", "UNBLOCKED", "NOGROUP")


def connect(url: str, *, timeout_s: float) -> redis.Redis:
    """Make a client; nothing is sent yet. It never retries by itself: each caller states its own policy.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        timeout_s: longest wait to connect, and for one reply.

    Raises:
        ConfigError: the URL cannot be read.
    """
    server_address.require_readable(url, _SETTING)
    return server_address.made(
        lambda: redis.Redis.from_url(
            url,
            protocol=2,  # the same replies from every server and every version of the library
            decode_responses=False,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        ),
        _SETTING,
        redis_errors.RedisError,
    )


def address(client: redis.Redis) -> str:
    """Name the server for a message or a log line, without user and password."""
    options = client.connection_pool.connection_kwargs
    if path := options.get("path"):
        return f"unix://{path}"
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"


@contextmanager
def translated(client: redis.Redis) -> Iterator[None]:
    """Turn the library's errors into ours; their texts hold no event.

    Raises:
        ServerUnreachableError: no answer.
        Backpressure: the server's memory is full.
        TransientError: it answers, but not now: it loads its data, cannot write its disk, is a replica, ….
        ConfigError: wrong user or password, a key of another type, or a server that is too old.
    """
    try:
        yield
    except redis_errors.RedisError as error:
        raise translate(error, address(client)) from error


def translate(error: redis_errors.RedisError, server: str) -> TurnstreamError:
    """Give our error for one of the library's."""
    text = str(error).partition(", with args beginning")[0]  # what follows may be an event
    if isinstance(error, _REFUSED_LOGIN):
        return ConfigError(f"{server} refused the user or password: {text}; correct {_SETTING}")
    if isinstance(error, _PASSING) or text.startswith(_PASSING_CODES):
        return TransientError(f"{server} cannot serve now: {text}; it will be asked again")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError):
        return ServerUnreachableError(
            f"{server} does not answer ({text}); start 'turnstream up', or correct {_SETTING}"
        )
    if isinstance(error, redis_errors.OutOfMemoryError):
        return Backpressure(f"{server} is full: {text}; wait for the ingesters, or raise its maxmemory")
    if isinstance(error, redis_errors.ResponseError):
        return ConfigError(f"{server} refused a command: {text}; use Redis >= 7 or Valkey, and unused key names")
    return TransientError(f"{server} answered something unreadable: {text}; it will be asked again")


def check_server(client: redis.Redis) -> list[str]:
    """List what makes the server unfit to hold events; empty when it is fit.

    Raises:
        TransientError: it does not answer, or not now.
    """
    with translated(client):
        info: dict[str, Any] = client.info()
    server, problems = address(client), []
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    if int(version.partition(".")[0]) < MIN_MAJOR_VERSION:
        problems.append(f"{server} is version {version}; use Redis >= 7 or Valkey")
    if (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
        problems.append(f"{server} has maxmemory-policy {policy} and may drop unread events; set noeviction")
    if not info.get("aof_enabled"):
        problems.append(f"{server} has appendonly no and forgets unread events when it stops; set appendonly yes")
    if info.get("cluster_enabled"):
        problems.append(f"{server} is a cluster, and the keys lie in different slots; use a single server")
    return problems


def server_url(configured: str | None, data_dir: Path) -> str:
    """Give the server's URL: the configured one, or else the embedded server of the data folder."""
    return configured or embedded_url(data_dir)


def embedded_url(data_dir: Path) -> str:
    """Give the URL of the embedded server that `turnstream up` runs on this data folder; creates nothing."""
    return f"unix://{quote(str(socket_path(data_dir)))}"


def socket_path(data_dir: Path) -> Path:
    """Give the embedded server's socket; a path over `MAX_SOCKET_PATH_BYTES` moves to the run-time folder."""
    folder = data_dir.expanduser().resolve()
    path = folder / "server" / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    run_dir = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return run_dir / f"turnstream-{os.getuid()}-{digest}" / "valkey.sock"
