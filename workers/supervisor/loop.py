"""The supervisor's loop.

After a crash of the supervisor, Linux ends its children (SIGTERM, by parent-death signal). One that does not hear it,
or any elsewhere, outlives it: the next `up` ends it, and replaces the embedded server.

Why: one thread, one loop. The parent-death signal is tied to the thread that forked, and code between fork and exec
is only safe while no other thread can hold a lock.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog

from workers.supervisor.child import Backoff, Child, ChildSpec

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TICK_S: Final = 0.1
_LONGEST_TICK_S: Final = 1.0
_OVERSLEPT_S: Final = 5.0
"""A loop that comes round so late was stopped itself, perhaps with the whole machine."""

log = structlog.get_logger()


class Supervisor:
    """Start children in order, start them again when they die or stall, end them in reverse order.

    Args:
        specs: the children; one is started once those before it are ready.
        backoff: the waits before restarts.
        stalled_after_s: how long past its time a watched child may be before it is replaced.
        on_tick: called about ten times a second while all is well; must be quick.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        backoff: Backoff | None = None,
        stalled_after_s: float = 60.0,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._children = [Child(spec, backoff or Backoff()) for spec in specs]
        self._stalled_after_s = stalled_after_s
        self._on_tick = on_tick
        self._n_stop_signals = 0
        self._stepped_at = 0.0
        self._was_ready = False

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
        if now - self._stepped_at > _OVERSLEPT_S:
            for child in self._children:
                child.excuse(now)
        self._stepped_at = now
        for child in self._children:
            child.notice_death(now)
            child.end_if_stalled(now, after_s=self._stalled_after_s)
        for child in self._children:
            child.start_if_due(now)
            if not child.is_ready() and child.spec.is_needed:
                break
        self._note_ready()
        if self._on_tick:
            self._on_tick()

    def _note_ready(self) -> None:
        """Log once that every child that is needed does its work."""
        if not self._was_ready and all(child.serves() for child in self._children if child.spec.is_needed):
            self._was_ready = True
            log.info("pipeline.ready", children=len(self._children))

    def _next_due(self, now: float) -> float:
        waits = [child.due - now for child in self._children if not child.process and child.due > now]
        watching = self._on_tick or not self._was_ready or not all(child.was_ready for child in self._children)
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


def _sleep_until(wake_up: int, timeout_s: float) -> None:
    if select.select([wake_up], [], [], timeout_s)[0]:
        os.read(wake_up, 4096)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
