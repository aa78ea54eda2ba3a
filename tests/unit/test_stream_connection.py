"""Addresses and errors of the server, without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis import exceptions as redis_errors

from pipeline.errors import Backpressure, ConfigError, TransientError
from pipeline.stream import address, connect, embedded_url, server_url, socket_path
from pipeline.stream.connection import translate
from tests.redis_errors import MEANING


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        *MEANING,
        (redis_errors.ResponseError("NOREPLICAS"), TransientError),
        (redis_errors.OutOfMemoryError("full"), Backpressure),
        (redis_errors.ResponseError("unknown command"), ConfigError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_an_error_is_sorted_by_what_to_do(error, ours) -> None:
    """Retried for ever, a wrong password stays wrong; given up at once, a loading server is lost for nothing."""
    assert type(translate(error, "here")) is ours
    assert "here" in str(translate(error, "here"))


def test_an_unknown_command_s_arguments_are_not_quoted() -> None:
    """The server repeats them, and they hold what a user said."""
    error = redis_errors.ResponseError("unknown command 'XADD', with args beginning with: 't' 'secret'")
    assert "secret" not in str(translate(error, "here"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@example.org:6380/1", "example.org:6380"),
        ("redis://example.org", "example.org:6379"),
        ("rediss://:secret@example.org/0", "example.org:6379"),
        ("unix://user:secret@/run/a%20b.sock", "unix:///run/a b.sock"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown) -> None:
    """Messages end in logs and bug reports."""
    with connect(url, timeout_s=1) as client:
        assert address(client) == shown


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "", "redis://host:port/0"])
def test_an_unreadable_url_names_its_setting(url) -> None:
    """The traceback of a library would not."""
    with pytest.raises(ConfigError, match="TURNSTREAM_REDIS__URL"):
        connect(url, timeout_s=1)


def test_the_configured_server_comes_before_the_embedded_one(tmp_path) -> None:
    """Setting a URL is all it takes to use a server of one's own."""
    assert server_url("redis://mine", tmp_path) == "redis://mine"
    assert server_url(None, tmp_path) == embedded_url(tmp_path)


def test_one_folder_has_one_socket_however_it_is_spelled(tmp_path, monkeypatch) -> None:
    """A bot and `turnstream up` must meet."""
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = [tmp_path, tmp_path / "link", Path(), Path("~"), tmp_path / "x" / ".."]
    assert len({socket_path(folder) for folder in spellings}) == 1


def test_a_long_path_moves_to_the_run_time_folder(monkeypatch) -> None:
    """The system allows about a hundred bytes, and cuts or refuses what is longer; two folders never share one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    long = [socket_path(Path("/" + "x" * 120 + str(n))) for n in range(3)]
    assert len(set(long)) == 3
    for path in long:
        assert str(path).startswith(f"/run/user/1/turnstream-{os.getuid()}-")
        assert len(os.fsencode(path)) <= 100
