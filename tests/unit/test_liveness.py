"""A process's promise can be read by its supervisor, and only a living process's lock is held."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from pipeline.errors import TransientError
from workers.liveness import INGESTER, WORKER, Pulse, WorkerToken, forget_dead, promise_of, pulse_path, signs


def test_each_beat_promises_the_next_one(tmp_path: Path) -> None:
    """The supervisor compares it with a clock that nobody can set."""
    pulse = Pulse(tmp_path, WORKER, "w", step_s=5)
    before = time.monotonic()
    pulse.beat(100)
    promise = promise_of(pulse_path(tmp_path, WORKER, "w"))
    assert promise is not None
    assert promise[0] == os.getpid()
    assert before + 105 <= promise[1] <= time.monotonic() + 105
    pulse.beat()
    assert promise_of(pulse_path(tmp_path, WORKER, "w"))[1] <= time.monotonic() + 5
    assert promise_of(tmp_path / "none") is None


def test_starts_are_counted_and_the_dead_are_seen(tmp_path: Path) -> None:
    """A worker that is restarted every minute looks well at any one moment."""
    Pulse(tmp_path, WORKER, "w", step_s=1).close()
    Pulse(tmp_path, INGESTER, "i", step_s=1)
    seen = {(sign.kind, sign.name): (sign.n_starts, sign.lives) for sign in signs(tmp_path)}
    assert seen == {(WORKER, "w"): (1, False), (INGESTER, "i"): (1, True)}
    Pulse(tmp_path, WORKER, "w", step_s=1)
    assert {(sign.n_starts, sign.lives) for sign in signs(tmp_path) if sign.kind == WORKER} == {(2, True)}


def test_a_file_cut_short_is_no_sign(tmp_path: Path) -> None:
    """The disk was full when it was made."""
    Pulse(tmp_path, WORKER, "w", step_s=1)
    pulse_path(tmp_path, WORKER, "w").write_bytes(b"\x01")
    assert signs(tmp_path) == []
    assert promise_of(pulse_path(tmp_path, WORKER, "w")) is None


def test_only_what_died_long_ago_is_forgotten(tmp_path: Path) -> None:
    """A container has a new host name each time; a worker between two starts keeps its count."""
    for name in ("old", "new"):
        Pulse(tmp_path, WORKER, name, step_s=1).close()
    Pulse(tmp_path, WORKER, "living", step_s=1)
    for name in ("old", "living"):
        os.utime(pulse_path(tmp_path, WORKER, name), (1, 1))
    forget_dead(tmp_path, after_s=60)
    assert [sign.name for sign in signs(tmp_path)] == ["living", "new"]


@pytest.mark.parametrize("name", ["../../../x", "a/b", "x" * 300, "ü\n"])
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    """The operator chooses it."""
    Pulse(tmp_path, WORKER, name, step_s=1)
    token = WorkerToken(tmp_path, name)
    assert token.is_alive(token.name)
    assert {path.parent.name for path in tmp_path.rglob("*") if path.is_file()} == {"pulses", "workers"}
    token.close()


def test_a_pulse_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """A full disk passes; the supervisor tries again."""
    pulse_path(tmp_path, WORKER, "w").mkdir(parents=True)
    with pytest.raises(TransientError, match=r"worker\.w.*free some space"):
        Pulse(tmp_path, WORKER, "w", step_s=1)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_service_manager_with_a_watchdog_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_abstract: bool
) -> None:
    """Units run without our supervisor; one that hangs would hold its claims for ever."""
    name = f"turnstream-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if is_abstract else str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if is_abstract else str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "60000000")
        pulse = Pulse(tmp_path, WORKER, "w", step_s=5)
        pulse.beat()
        assert manager.recv(99) == b"WATCHDOG=1\nWATCHDOG_USEC=65000000"
        for _ in range(99):
            pulse.beat()  # a scope each: not worth a word
        pulse.beat(100)
        assert manager.recv(99) == b"WATCHDOG=1\nWATCHDOG_USEC=165000000"
    pulse.beat(1_000)  # nobody listens any more, and that is no reason to stop working
    pulse.close()


def test_without_a_watchdog_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket alone is for other news."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert Pulse(tmp_path, WORKER, "w", step_s=5)._service_manager is None
