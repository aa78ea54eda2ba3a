"""Keeping the processes of `turnstream up` alive, and ending them with it.

Owns ``<data_dir>/run/up.lock``, locked as long as one `up` runs on the folder; the kernel frees it when that dies.

After a crash of the supervisor, Linux ends its children (SIGTERM, by parent-death signal). Elsewhere they outlive it:
the embedded server is then replaced at the next start, ingesters and workers must be ended by hand.

Why: one thread, one loop. The parent-death signal is tied to the thread that forked, and code between fork and exec
is only safe while no other thread can hold a lock.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog

from pipeline.errors import ConfigError

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_TICK_S: Final = 0.1
_LONGEST_TICK_S: Final = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """One process to keep running.

    Args:
        name: what the log calls it; unique.
        command: its command line, asked for anew at each start when it is a function.
        env: variables on top of ours.
        stop_timeout_s: time between asking it to end and ending it.
        ready: tells whether those after it may be started; None: at once.
    """

    name: str
    command: Sequence[str] | Callable[[], Sequence[str]]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_timeout_s: float = 10.0
    ready: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a dead child is started again.

    Args:
        first_s: the first wait; each further one is twice as long.
        longest_s: the longest.
        healthy_after_s: a child that ran so long starts again from ``first_s``.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    healthy_after_s: float = 30.0

    def wait_s(self, n_deaths: int) -> float:
        """Give the wait after this many deaths in a row, counted from 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(n_deaths - 1, 32))


class Supervisor:
    """Start children in order, start them again when they die, end them in reverse order.

    Args:
        specs: the children; one is started once those before it are ready.
        backoff: the waits before restarts.
        on_tick: called about ten times a second while all is well; must be quick.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        backoff: Backoff | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._children = [_Child(spec, backoff or Backoff()) for spec in specs]
        self._on_tick = on_tick
        self._n_stop_signals = 0

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or SIGHUP, or `stop`; on return no child is left. Main thread only.

        A second signal does not wait for the children to end by themselves.

        Raises:
            ConfigError: a child's program does not exist; the others were ended.
        """
        with self._signals() as wake_up:
            try:
                while not self._n_stop_signals:
                    self._step(time.monotonic())
                    _sleep_until(wake_up, self._next_due(time.monotonic()))
            finally:
                self._end_all(wake_up)

    def stop(self) -> None:
        """Have `run` end the children and return."""
        self._n_stop_signals += 1

    def pids(self) -> dict[str, int]:
        """Give the running children's process ids by name."""
        return {child.spec.name: child.process.pid for child in self._children if child.process}

    def _step(self, now: float) -> None:
        for child in self._children:
            child.notice_death(now)
        for child in self._children:
            child.start_if_due(now)
            if not child.is_ready():
                break
        if self._on_tick:
            self._on_tick()

    def _next_due(self, now: float) -> float:
        waits = [child.due - now for child in self._children if not child.process and child.due > now]
        watching = self._on_tick or not all(child.was_ready for child in self._children)
        return min([*waits, _TICK_S if watching else _LONGEST_TICK_S])

    def _end_all(self, wake_up: int) -> None:
        for child in reversed(self._children):
            child.ask_to_end()
            deadline = time.monotonic() + child.spec.stop_timeout_s
            while child.runs() and time.monotonic() < deadline and self._n_stop_signals <= 1:
                _sleep_until(wake_up, _TICK_S)
            child.end()

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Have signals wake the loop through a pipe, and put the former handlers back."""
        receiver, sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        heeded = [number for number in _STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
        handlers = {number: signal.signal(number, self._on_stop_signal) for number in heeded}
        handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the loop
        former = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(former)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(receiver)
            os.close(sender)

    def _on_stop_signal(self, number: int, _frame: object) -> None:
        self._n_stop_signals += 1
        log.info("supervisor.stopping", signal=signal.Signals(number).name)


class _Child:
    """One child's present process, and when it may be started next."""

    def __init__(self, spec: ChildSpec, backoff: Backoff) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.due = 0.0
        self.was_ready = False
        self._backoff = backoff
        self._started_at = 0.0
        self._n_starts = 0
        self._n_deaths = 0  # in a row

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start_if_due(self, now: float) -> None:
        if self.process or now < self.due:
            return
        command = list(self.spec.command() if callable(self.spec.command) else self.spec.command)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - the commands are ours
                command,
                env={**os.environ, **self.spec.env},
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C on the terminal reaches the supervisor alone
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - this process has one thread
            )
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigError(f"{self.spec.name}: {command[0]} cannot be run ({error.strerror})") from error
        except OSError as error:  # no memory or no process left: the machine may recover
            self._count_death(now)
            log.warning("child.start_failed", child=self.spec.name, error=error.strerror, next_start_s=self.due - now)
            return
        self._started_at, self._n_starts, self.was_ready = now, self._n_starts + 1, False
        event = "child.started" if self._n_starts == 1 else "child.restarted"
        log.info(event, child=self.spec.name, pid=self.process.pid, starts=self._n_starts)

    def is_ready(self) -> bool:
        """Tell whether the children after this one may start."""
        if not self.was_ready:
            self.was_ready = self.runs() and (self.spec.ready is None or self.spec.ready())
        return self.was_ready

    def notice_death(self, now: float) -> None:
        if self.process is None or self.process.poll() is None:
            return
        if now - self._started_at >= self._backoff.healthy_after_s:
            self._n_deaths = 0
        self.was_ready = False
        self._count_death(now)
        log.warning(
            "child.exited",
            child=self.spec.name,
            pid=self.process.pid,
            reason=_reason(self.process.returncode),
            next_start_s=round(self.due - now, 1),
        )
        self.end()

    def ask_to_end(self) -> None:
        if self.process and self.runs():
            self.process.terminate()

    def end(self) -> None:
        """End the process and whatever it started that stayed in its group."""
        if self.process is None:
            return
        if self.runs():
            log.warning("child.killed", child=self.spec.name, pid=self.process.pid)
        _kill_group(self.process.pid)
        self.process.wait()
        self.process = None

    def _count_death(self, now: float) -> None:
        self._n_deaths += 1
        self.due = now + self._backoff.wait_s(self._n_deaths)


class DataFolderLock:
    """At most one `up` on a data folder; a context manager.

    Raises:
        ConfigError: on entering, when another process holds the folder; says which and since when.
    """

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "run" / "up.lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)  # closed on exec: children do not hold it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise ConfigError(
                f"{self.path.parent.parent} is already in use by {holder}; end that first, or set another "
                "TURNSTREAM_DATA_DIR"
            ) from error
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": datetime.now(UTC).isoformat("T", "seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def _holder(raw: bytes) -> str:
    try:
        owner: dict[str, Any] = json.loads(raw)
        return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
    except (ValueError, KeyError, TypeError):  # between taking the lock and writing its name
        return "another process"


def _reason(returncode: int) -> str:
    if returncode >= 0:
        return f"exit {returncode}"
    known = {int(number): number.name for number in signal.Signals}
    return known.get(-returncode, f"signal {-returncode}")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left in it
        return


def _sleep_until(wake_up: int, timeout_s: float) -> None:
    if select.select([wake_up], [], [], timeout_s)[0]:
        os.read(wake_up, 4096)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def die_with_parent() -> Callable[[], None] | None:
    """Prepare, before the fork, that a child gets SIGTERM when the forking thread dies (a ``preexec_fn``, Linux)."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask_kernel
