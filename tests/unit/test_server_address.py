"""Addresses of servers, and what the errors of those that hosts share session memory on mean, without a server."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as pg_errors
from redis import exceptions as redis_errors

from pipeline.errors import ConfigError, ServerUnreachableError, TransientError
from pipeline.stream import connect
from retrieval.context.backends import postgres, redis
from retrieval.context.backends.protocol import Limits
from tests.commands import CommandLine
from tests.redis_errors import MEANING

OPEN: dict[str, Callable[[str], object]] = {
    "TURNSTREAM_REDIS__URL": lambda url: connect(url, timeout_s=1),
    "TURNSTREAM_CONTEXT__URL": lambda url: redis.RedisWindows(url, Limits(10, None)),
}


@pytest.mark.parametrize("setting", OPEN)
@pytest.mark.parametrize(
    "url",
    [
        *("nonsense", "", "http://h/0", "redis://h:x/0", "redis://h:99999/0", "redis://h:0/0", "redis://h..x/0"),
        *("redis://[::1/0", "redis://h/0?foo=1", "redis://h/0?decode_responses=1", "redis://h/0?protocol=9"),
        *("redis://h/0?db=x", "redis://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=some"),
        *("rediss://h/0?ssl_ca_certs=/nowhere/ca.pem", "redis://u:hunter2@h/0?=hunter2", "unix:///s?parser_class=x"),
    ],
)
def test_an_address_no_client_can_be_made_of_is_refused_by_its_setting(setting: str, url: str) -> None:
    """The library takes it, and fails at the first command with an error of Python's."""
    with pytest.raises(ConfigError, match=setting) as raised:
        OPEN[setting](url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("setting", OPEN)
@pytest.mark.parametrize(
    "url",
    ["redis://h", "redis://u:p@h:1/2?health_check_interval=5", "rediss://h/0?ssl_cert_reqs=none", "unix:///s?db=3"],
)
def test_an_address_that_can_be_is_taken(setting: str, url: str) -> None:
    """What operators write today goes on working."""
    OPEN[setting](url)


def _untrusted() -> redis_errors.ConnectionError:
    error = redis_errors.ConnectionError("certificate verify failed")
    error.__context__ = ssl.SSLCertVerificationError("self-signed")
    return error


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        *MEANING,
        (redis_errors.OutOfMemoryError("full"), TransientError),
        (redis_errors.ResponseError("OOM in a script"), TransientError),
        (redis_errors.ResponseError("DB index is out of range"), ConfigError),
        (_untrusted(), ConfigError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_an_error_of_shared_redis_is_sorted_by_what_to_do(error: redis_errors.RedisError, ours: type) -> None:
    """Who cannot be reached is not who refuses: a shell is told so by its exit code."""
    assert type(redis._ours(error, "here")) is ours
    assert "here" in str(redis._ours(error, "here"))


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (psycopg.OperationalError("connection failed: Connection refused"), ServerUnreachableError),
        (psycopg.OperationalError("FATAL:  the database system is starting up"), ServerUnreachableError),
        (psycopg.errors.ConnectionTimeout("timeout expired"), ServerUnreachableError),
        (psycopg.InterfaceError("the connection is closed"), ServerUnreachableError),
        (pg_errors.AdminShutdown("terminating connection"), ServerUnreachableError),
        (pg_errors.ConnectionFailure("lost"), ServerUnreachableError),
        (pg_errors.DiskFull("could not extend file"), TransientError),
        (pg_errors.OutOfMemory("out of memory"), TransientError),
        (pg_errors.QueryCanceled("statement timeout"), TransientError),
        (pg_errors.ReadOnlySqlTransaction("a standby"), TransientError),
        (pg_errors.DeadlockDetected("deadlock"), TransientError),
        (psycopg.OperationalError('FATAL:  password authentication failed for user "u"'), ConfigError),
        (psycopg.OperationalError("SSL error: certificate verify failed"), ConfigError),
        (psycopg.OperationalError("server does not support SSL, but SSL was required"), ConfigError),
        (pg_errors.InsufficientPrivilege("denied"), ConfigError),
        (pg_errors.UndefinedColumn("no column"), ConfigError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_an_error_of_shared_postgres_is_sorted_by_what_to_do(error: psycopg.Error, ours: type) -> None:
    """A full disk is no server that is away: it answers."""
    assert type(postgres._ours(error, "here")) is ours
    assert "here" in str(postgres._ours(error, "here"))


@pytest.mark.parametrize(("backend", "scheme"), [("redis", "redis"), ("postgres", "postgresql")])
def test_shared_memory_that_cannot_be_reached_is_exit_3(
    turnstream: CommandLine, tmp_path: Path, backend: str, scheme: str
) -> None:
    """As with every other server; 1 says that the command itself failed."""
    turnstream.settings |= {
        "TURNSTREAM_DATA_DIR": str(tmp_path),
        "TURNSTREAM_CONTEXT__BACKEND": backend,
        "TURNSTREAM_CONTEXT__URL": f"{scheme}://127.0.0.1:1/0",
    }
    ended = turnstream("context", "s-1", "--scope", "user/u1")
    assert ended.code == 3
    assert "TURNSTREAM_CONTEXT__URL" in ended.err
