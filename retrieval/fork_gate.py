"""A gate that queries pass and a fork waits for, so that a child never inherits a query in flight.

Why: SQLite keeps its file locks per process. A child that inherits an open connection believes in locks it does not
hold, and a checkpoint may then pull pages from under its reads. So before a fork the gate closes, waits for the
queries inside, and lets its owner close its files; both processes open their own afterwards. Libraries that hold a
mutex during a query (FAISS, onnxruntime) are at rest then, too.

A process forked without Python's knowledge, or from inside a query, skips all this; owners notice by the process id
and abandon what they inherited.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ForkGate:
    """Counts the threads inside; keeps new ones out while the process forks.

    Args:
        before_fork: called with nobody inside, just before the fork; closes what a child must not inherit.
    """

    def __init__(self, before_fork: Callable[[], None]) -> None:
        self._before_fork = before_fork
        self._reset()
        _register(self)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Stay inside for the length of the block; a thread inside may pass again."""
        depth = getattr(self._mine, "depth", 0)
        if depth == 0:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_closed)
                self._n_inside += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            if depth == 0:
                with self._changed:
                    self._n_inside -= 1
                    self._changed.notify_all()

    def close(self) -> None:
        """Wait until nobody is inside and keep everybody out."""
        self._changed.acquire()
        self._is_closed = True
        if getattr(self._mine, "depth", 0):
            return  # this thread forks inside its own query: waiting for itself would never end
        self._changed.wait_for(lambda: self._n_inside == 0)
        self._before_fork()

    def reopen(self) -> None:
        """Let queries in again, in the parent."""
        self._is_closed = False
        self._changed.notify_all()
        self._changed.release()

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._mine = threading.local()
        self._n_inside = 0
        self._is_closed = False

    def start_afresh(self) -> None:
        """Forget the parent's threads, in the child."""
        depth = getattr(self._mine, "depth", 0)
        self._reset()
        if depth:
            self._mine.depth = depth
            self._n_inside = 1


_gates: weakref.WeakSet[ForkGate] = weakref.WeakSet()
_gates_lock = threading.Lock()
_closed_gates: list[ForkGate] = []
_is_registered = False


def _register(gate: ForkGate) -> None:
    global _is_registered  # noqa: PLW0603 - the interpreter's fork hooks are global and cannot be taken back
    with _gates_lock:
        _gates.add(gate)
        if not _is_registered and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_close_all, after_in_parent=_reopen_all, after_in_child=_start_all_afresh)
            _is_registered = True


def _close_all() -> None:
    _gates_lock.acquire()
    for gate in list(_gates):
        gate.close()
        _closed_gates.append(gate)


def _reopen_all() -> None:
    while _closed_gates:
        _closed_gates.pop().reopen()
    _gates_lock.release()


def _start_all_afresh() -> None:
    while _closed_gates:
        _closed_gates.pop().start_afresh()
    _gates_lock.release()
