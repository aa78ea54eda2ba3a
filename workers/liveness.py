"""Which processes live, and which of them get on.

Owns ``<data_dir>/run/workers``, a file for each worker that may hold claims, locked as long as it runs, and
``<data_dir>/run/pulses``, a file for each ingester and worker by its name: the same lock, its pid, how often it was
started, and by when it will have made its next step.

Why locks: a pid may be reused, and means nothing to a worker in another container; a lock ends with its process,
whatever ends it.
Why promises, and no mere sign of life: only the process knows how long its next step may take. Times are of the
monotonic clock, which all processes of a machine share and nobody can set.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import secrets
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.errors import TransientError
from pipeline.shards import make_private_folder

INGESTER: Final = "ingester"
WORKER: Final = "worker"
_RECORD: Final = struct.Struct("<qqd")
"""pid, starts, deadline: each is written and read in one piece."""
_DEADLINE_AT: Final = 16
_LONGEST_NAME: Final = 100
_TELL_EVERY_S: Final = 1.0
_MISSED_FOR_S: Final = 86_400.0
STACK_SIGNAL: Final = signal.SIGUSR2
"""What has an ingester or a worker write where each of its threads is."""
STDERR: Final = 2
"""Where to, as a descriptor: ``sys.stderr`` may have been replaced by something that has none."""


class WorkerToken:
    """This process's proof of life.

    Args:
        data_dir: the data folder that its workers share.
        label: the worker's name in logs; the token adds something unique.
    """

    def __init__(self, data_dir: Path, label: str) -> None:
        self._folder = data_dir / "run" / "workers"
        make_private_folder(self._folder)
        self._sweep()
        self.name = f"{_plain(label)}-{os.getpid()}-{secrets.token_hex(4)}"
        self._descriptor = os.open(self._folder / self.name, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def is_alive(self, name: str) -> bool:
        """Tell whether the worker of that name still runs."""
        return name == self.name or _is_held(self._folder / name)

    def close(self) -> None:
        """End the proof of life."""
        (self._folder / self.name).unlink(missing_ok=True)
        os.close(self._descriptor)

    def _sweep(self) -> None:
        self.name = ""
        for path in self._folder.iterdir():
            if not self.is_alive(path.name):
                path.unlink(missing_ok=True)


def has_token(data_dir: Path, label: str, pid: int) -> bool:
    """Tell whether a process has made its token: a worker does so once its model is loaded."""
    return any((data_dir / "run" / "workers").glob(f"{glob.escape(_plain(label))}-{pid}-*"))


class Pulse:
    """This process's promise to make its next step in time, for its supervisor to read.

    Args:
        data_dir: the data folder.
        kind: `INGESTER` or `WORKER`.
        name: the process's name; it stays the same over its restarts.
        step_s: the longest that any of its steps should take, such as a wait for the server's reply.

    Raises:
        TransientError: the file cannot be made; the disk may be full.
    """

    def __init__(self, data_dir: Path, kind: str, name: str, *, step_s: float) -> None:
        self._step_s = step_s
        path = pulse_path(data_dir, kind, name)
        try:
            make_private_folder(path.parent)
            self._service_manager = ServiceManager.of_environment()
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # shared: its predecessor may still be ending
            before = _parsed(os.pread(self._descriptor, _RECORD.size, 0))
            starts = before[1] + 1 if before else 1
            os.pwrite(self._descriptor, _RECORD.pack(os.getpid(), starts, time.monotonic()), 0)
        except OSError as error:
            raise TransientError(f"{path}: {error.strerror}; free some space, it is tried again") from error

    def beat(self, allowance_s: float = 0.0) -> None:
        """Promise the next beat within a step's time and the allowance.

        Cheap: eight bytes into the page cache. Safe in any thread.
        """
        now_s = time.monotonic()
        with suppress(OSError):  # a promise not renewed passes, and the supervisor acts
            os.pwrite(self._descriptor, struct.pack("<d", now_s + self._step_s + allowance_s), _DEADLINE_AT)
        if self._service_manager is not None:
            self._service_manager.promise(now_s, self._step_s + allowance_s)

    def close(self) -> None:
        """End the promise, as the process's end would."""
        os.close(self._descriptor)
        if self._service_manager is not None:
            self._service_manager.close()


class ServiceManager:
    """The same promise to systemd, which runs a unit with ``WatchdogSec=`` as `up` runs a child.

    Args:
        address: its socket.
        patience_s: what it grants beyond each promise.
    """

    def __init__(self, address: str, patience_s: float) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._patience_s = patience_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._told_s = self._due_s = 0.0

    @classmethod
    def of_environment(cls) -> ServiceManager | None:
        """Give the one that started this process with a watchdog, if one did."""
        address, patience_us = os.environ.get("NOTIFY_SOCKET"), os.environ.get("WATCHDOG_USEC", "")
        return cls(address, int(patience_us) / 1e6) if address and patience_us.isdecimal() else None

    def promise(self, now_s: float, within_s: float) -> None:
        """Tell it by when to expect the next word; not more than once a second, unless that is later than told."""
        if now_s - self._told_s < _TELL_EVERY_S and now_s + within_s <= self._due_s + _TELL_EVERY_S:
            return
        wait_us = round((within_s + self._patience_s) * 1e6)
        with suppress(OSError):  # as above
            self._socket.sendto(f"WATCHDOG=1\nWATCHDOG_USEC={wait_us}".encode(), self._address)
            self._told_s, self._due_s = now_s, now_s + within_s

    def close(self) -> None:
        """Close its socket."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Sign:
    """What a process's file tells.

    Args:
        kind: `INGESTER` or `WORKER`.
        name: its name.
        pid: as it saw itself; in another container it means nothing here.
        n_starts: how often a process of this name was started since the file was made.
        due_s: monotonic time by which it promised its next step.
        lives: whether it still runs.
    """

    kind: str
    name: str
    pid: int
    n_starts: int
    due_s: float
    lives: bool


def pulse_path(data_dir: Path, kind: str, name: str) -> Path:
    """Give the file of a process's pulse, whether or not it exists."""
    return data_dir / "run" / "pulses" / f"{kind}.{_plain(name)}"


def promise_of(path: Path) -> tuple[int, float] | None:
    """Read a pulse: the pid of who beat last, and the monotonic time promised; None when there is none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            found = _parsed(os.pread(descriptor, _RECORD.size, 0))
        finally:
            os.close(descriptor)
        return found and (found[0], found[2])
    return None


def signs(data_dir: Path) -> list[Sign]:
    """Read the pulse of every process that runs on the data folder or did within a day, by name.

    Why a day: one that is gone for good, on a host that is or after scaling down, must not be missed for ever.
    """
    return [sign for _, sign, silent_s in _pulses(data_dir) if sign.lives or silent_s < _MISSED_FOR_S]


def forget_dead(data_dir: Path) -> None:
    """Remove the files of processes that ended more than a day ago: a container's host name is new each time."""
    for path, sign, silent_s in _pulses(data_dir):
        if not sign.lives and silent_s >= _MISSED_FOR_S:
            path.unlink(missing_ok=True)


def _pulses(data_dir: Path) -> Iterator[tuple[Path, Sign, float]]:
    """Yield each pulse's file, what it tells, and for how many seconds it has not beaten."""
    folder = data_dir / "run" / "pulses"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        kind, _, name = path.name.partition(".")
        with suppress(OSError):
            if found := _parsed(path.read_bytes()[: _RECORD.size]):
                sign = Sign(kind, name, found[0], found[1], found[2], lives=_is_held(path))
                yield path, sign, time.time() - path.stat().st_mtime


def _is_held(path: Path) -> bool:
    """Tell whether a process holds the file's lock; nobody does when the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # its file was swept after it ended
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _parsed(raw: bytes) -> tuple[int, int, float] | None:
    if len(raw) != _RECORD.size:
        return None
    pid, starts, deadline = _RECORD.unpack(raw)
    return int(pid), int(starts), float(deadline)


def _plain(name: str) -> str:
    """Make a name that can be a file's."""
    return re.sub(r"[^\w.-]", "_", name)[:_LONGEST_NAME]
