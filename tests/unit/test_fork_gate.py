"""A fork waits for queries in flight, and queries wait for a fork; a thread never waits for itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from retrieval.fork_gate import ForkGate


def nothing() -> None:
    """Close nothing."""


def child_exit_code(work: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def can_pass(gate: ForkGate) -> bool:
    with gate.passing(), gate.passing():
        return True


def test_files_are_closed_before_the_fork_with_nobody_inside() -> None:
    """The owner's hook runs in the parent, once per fork."""
    pids: list[int] = []
    gate = ForkGate(lambda: pids.append(os.getpid()))
    assert child_exit_code(lambda: pids == [os.getppid()] and can_pass(gate)) == 0
    assert pids == [os.getpid()]
    assert can_pass(gate)


def test_a_fork_waits_for_the_query_in_flight() -> None:
    """The child must not inherit a half-done query."""
    inside, leave = threading.Event(), threading.Event()
    left_first: list[bool] = []
    gate = ForkGate(lambda: left_first.append(leave.is_set()))

    def query() -> None:
        with gate.passing():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=query)
    thread.start()
    inside.wait(10)
    threading.Timer(0.05, leave.set).start()
    assert child_exit_code(lambda: can_pass(gate)) == 0
    thread.join(10)
    assert left_first == [True]


def test_busy_threads_cannot_keep_a_fork_waiting_for_ever() -> None:
    """New queries wait outside once the gate closes."""
    gate, stop = ForkGate(nothing), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with gate.passing():
                time.sleep(0.001)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [child_exit_code(lambda: can_pass(gate)) for _ in range(5)] == [0] * 5
    stop.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_thread_that_forks_inside_its_own_query_does_not_wait_for_itself() -> None:
    """A reranker may start a process."""
    closed: list[int] = []
    gate = ForkGate(lambda: closed.append(1))
    with gate.passing():
        assert child_exit_code(lambda: can_pass(gate)) == 0
    assert closed == []
    assert can_pass(gate)
    assert child_exit_code(lambda: can_pass(gate)) == 0
