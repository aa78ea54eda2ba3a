"""One child of the supervisor: started, started again, and ended when it hangs.

Each is the leader of a process group, which is ended with it: a child's own children would work on beside its
successor's. One that dies at once again and again is waited for longer each time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from pipeline.errors import ConfigError, TransientError
from workers.liveness import STACK_SIGNAL
from workers.supervisor.watch import Watch

_PR_SET_PDEATHSIG: Final = 1
_TIME_FOR_STACK_S: Final = 0.5

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
        is_needed: whether those after it wait for it at all.
        serves: tells by its process id whether it has loaded what it works with; no other child waits for that.
        watch: tells whether it gets on; None: that it lives is enough.
        writes_stack: whether `STACK_SIGNAL` has it write its stack.
    """

    name: str
    command: Sequence[str] | Callable[[], Sequence[str]]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_timeout_s: float = 10.0
    ready: Callable[[], bool] | None = None
    is_needed: bool = True
    serves: Callable[[int], bool] | None = None
    watch: Watch | None = None
    writes_stack: bool = False


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
    healthy_after_s: float = 5.0

    def wait_s(self, n_deaths: int) -> float:
        """Give the wait after this many deaths in a row, counted from 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(n_deaths - 1, 32))


class Child:
    """One child's present process, and when it may be started next."""

    def __init__(self, spec: ChildSpec, backoff: Backoff) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.due = 0.0
        self.was_ready = False
        self._backoff = backoff
        self._started_at = 0.0
        self._excused_at = 0.0
        self._end_at: float | None = None  # it is stalled, and has been asked for its stack
        self._n_starts = 0
        self._n_deaths = 0  # in a row

    def runs(self) -> bool:
        """Tell whether it has a process that has not ended."""
        return self.process is not None and self.process.poll() is None

    def start_if_due(self, now: float) -> None:
        """Start it unless it runs, or its wait is not over.

        Raises:
            ConfigError: its program cannot be run.
        """
        if self.process or now < self.due:
            return
        try:
            command = list(self.spec.command() if callable(self.spec.command) else self.spec.command)
        except TransientError as error:
            self._note_failed_start(now, str(error))
            return
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
            self._note_failed_start(now, str(error.strerror))
            return
        self._started_at, self._n_starts, self.was_ready = now, self._n_starts + 1, False
        event = "child.started" if self._n_starts == 1 else "child.restarted"
        log.info(event, child=self.spec.name, pid=self.process.pid, starts=self._n_starts)

    def _note_failed_start(self, now: float, reason: str) -> None:
        self._count_death(now)
        log.warning("child.start_failed", child=self.spec.name, reason=reason, next_start_s=round(self.due - now, 1))

    def is_ready(self) -> bool:
        """Tell whether the children after this one may start."""
        if not self.was_ready:
            self.was_ready = self.runs() and (self.spec.ready is None or self.spec.ready())
        return self.was_ready

    def serves(self) -> bool:
        """Tell whether it is ready, and has loaded what it works with."""
        if self.process is None or not self.was_ready:
            return False
        return self.spec.serves is None or self.spec.serves(self.process.pid)

    def notice_death(self, now: float) -> None:
        """Log a process that ended, and set when the next is due."""
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
            reason=reason_of(self.process.returncode),
            next_start_s=round(self.due - now, 1),
        )
        self.end()

    def excuse(self, now: float) -> None:
        """Count nothing against it that it did not do until now: nobody ran."""
        self._excused_at = now

    def end_if_stalled(self, now: float, *, after_s: float) -> None:
        """Kill a process that has not shown for so long that it gets on; the next one is due as after any death.

        It is asked for its stack first, and killed at a later call.
        """
        if self.process is None or self.spec.watch is None:
            return
        silent_s = now - max(self.spec.watch.due_s(self.process.pid, self._started_at, now), self._excused_at)
        if self._end_at is None and silent_s > after_s:
            log.error("child.stalled", child=self.spec.name, pid=self.process.pid, silent_s=round(silent_s, 1))
            if self.spec.writes_stack:
                self.process.send_signal(STACK_SIGNAL)
            self._end_at = now + _TIME_FOR_STACK_S
        elif self._end_at is not None and now >= self._end_at:
            _kill_group(self.process.pid)

    def ask_to_end(self) -> None:
        """Ask its process to end."""
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
        self.process = self._end_at = None

    def _count_death(self, now: float) -> None:
        self._n_deaths += 1
        self.due = now + self._backoff.wait_s(self._n_deaths)


def reason_of(returncode: int) -> str:
    """Say in words how a process ended."""
    if returncode >= 0:
        return f"exit {returncode}"
    known = {int(number): number.name for number in signal.Signals}
    return known.get(-returncode, f"signal {-returncode}")


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(pid, signal.SIGKILL)


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
