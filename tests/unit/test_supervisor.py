"""When a dead child is started again; the processes themselves are in integration."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from pipeline.errors import TransientError
from workers.liveness import STACK_SIGNAL, WORKER, Pulse, pulse_path
from workers.supervisor import Backoff, ChildSpec, PulseWatch, ServerWatch, Supervisor, data_folder
from workers.supervisor.child import Child, reason_of


def test_waits_between_restarts_double_up_to_a_bound() -> None:
    """A child that cannot start must not use up a core, nor be given up."""
    backoff = Backoff(first_s=0.2, longest_s=10.0)
    assert [backoff.wait_s(n) for n in (1, 2, 3, 6, 7, 10_000)] == [0.2, 0.4, 0.8, 6.4, 10.0, 10.0]


class DeadProcess:
    """A process that has ended; its id is one no process can have."""

    pid = 2**30
    returncode = -signal.SIGKILL

    def poll(self) -> int:
        """Tell that it has ended."""
        return self.returncode

    def wait(self) -> int:
        """Have nothing to wait for."""
        return self.returncode


def die(child: Any, *, started: float, died: float) -> float:
    """Let the child have lived so long; gives the wait until its next start."""
    child.process, child._started_at = DeadProcess(), started
    child.notice_death(died)
    assert child.process is None
    return round(child.due - died, 3)


def test_a_child_that_was_healthy_starts_again_quickly() -> None:
    """A crash a day must not be punished like a crash loop."""
    child = Child(ChildSpec(name="a", command=["true"]), Backoff())
    assert [die(child, started=n, died=n + 1.0) for n in range(3)] == [0.2, 0.4, 0.8]
    assert die(child, started=100, died=104.9) == 1.6
    assert die(child, started=200, died=205.0) == 0.2
    assert die(child, started=300, died=301.0) == 0.4


def test_an_exit_is_told_in_words() -> None:
    """A signal's number means nothing in a log; an unnamed one must not end the supervisor."""
    assert [reason_of(code) for code in (0, 2, -9, -15, -40)] == [
        "exit 0",
        "exit 2",
        "SIGKILL",
        "SIGTERM",
        "signal 40",
    ]


def test_a_lock_file_without_a_name_still_says_something() -> None:
    """The holder may be between taking the lock and writing who it is."""
    assert data_folder._holder(b"") == data_folder._holder(b"[]") == data_folder._holder(b"{}") == "another process"


class Due:
    """A watch whose child is due at a time that the test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def due_s(self, _pid: int, _started_s: float, _now_s: float) -> float:
        """Give that time."""
        return self.at_s


@pytest.fixture
def watched() -> Iterator[tuple[Due, Supervisor, subprocess.Popen[bytes]]]:
    """A supervisor with one child that lives and does nothing, and when it is due."""
    due = Due()
    spec = ChildSpec(name="a", command=["sleep", "60"], watch=due, writes_stack=True)
    supervisor = Supervisor([spec], stalled_after_s=10.0, backoff=Backoff(first_s=1.0))
    supervisor._step(0.0)
    process = supervisor._children[0].process
    assert process is not None
    yield due, supervisor, process
    supervisor._children[0].end()


def step(supervisor: Supervisor, start: int, end: int) -> list[str]:
    """Let the loop come round once a second; gives what was logged."""
    with structlog.testing.capture_logs() as logged:
        for now in range(start, end):
            supervisor._step(float(now))
    return [line["event"] for line in logged]


def test_a_child_that_does_not_get_on_is_asked_for_its_stack_then_replaced(watched: Any) -> None:
    """It would hold its claims for ever."""
    due, supervisor, process = watched
    due.at_s = 5.0
    assert step(supervisor, 1, 16) == []
    process.send_signal(signal.SIGSTOP)  # it would die of the signal for the stack: nobody handles it
    assert step(supervisor, 16, 17) == ["child.stalled"]
    assert process.poll() is None
    with structlog.testing.capture_logs() as logged:
        supervisor._step(17.0)
        process.wait(10)
        supervisor._step(18.0)
        supervisor._step(19.0)
    assert [line["event"] for line in logged] == ["child.exited", "child.restarted"]
    assert logged[0]["reason"] in {"SIGKILL", STACK_SIGNAL.name}


def test_nobody_is_blamed_for_the_time_the_supervisor_slept(watched: Any) -> None:
    """A machine that was suspended wakes with every promise broken."""
    due, supervisor, _process = watched
    due.at_s = 5.0
    step(supervisor, 1, 10)
    assert step(supervisor, 500, 511) == []
    assert step(supervisor, 511, 512) == ["child.stalled"]


def test_a_child_that_keeps_its_promises_is_left_alone(watched: Any) -> None:
    """However long the steps it announced."""
    due, supervisor, process = watched
    for now in range(1, 40):
        due.at_s = now - 9.0
        assert step(supervisor, now, now + 1) == []
    assert process.poll() is None


def test_nobody_waits_for_a_child_that_is_not_needed() -> None:
    """The metrics' port may be taken; ingest goes on."""
    metrics = ChildSpec(name="metrics", command=["false"], is_needed=False)
    supervisor = Supervisor([metrics, ChildSpec(name="b", command=["sleep", "9"])])
    supervisor._step(0.0)
    supervisor._children[0].process.wait(10)
    supervisor._children[1].end()
    step(supervisor, 1, 2)
    assert set(supervisor.pids()) == {"b"}
    supervisor._children[1].end()


def test_it_is_said_once_that_all_work() -> None:
    """Who runs it in a terminal waits for that line; a worker has yet to load its model when it is started."""
    loaded: set[int] = set()
    specs = [
        ChildSpec(name="metrics", command=["false"], is_needed=False),
        ChildSpec(name="worker", command=["sleep", "9"], serves=loaded.__contains__),
        ChildSpec(name="another", command=["sleep", "9"]),
    ]
    supervisor = Supervisor(specs)
    assert "pipeline.ready" not in step(supervisor, 0, 2)
    assert {"worker", "another"} <= set(supervisor.pids())  # nobody waits for its model
    loaded.add(supervisor.pids()["worker"])
    assert step(supervisor, 2, 5).count("pipeline.ready") == 1
    for child in supervisor._children:
        child.end()


def test_a_promise_of_another_process_counts_for_nothing(tmp_path: Path) -> None:
    """The file is the predecessor's until the child first beats."""
    Pulse(tmp_path, WORKER, "w", step_s=7).beat()
    watch = PulseWatch(pulse_path(tmp_path, WORKER, "w"))
    assert watch.due_s(os.getpid() + 1, 1000.0, 0.0) == 1120.0
    assert watch.due_s(os.getpid(), 1000.0, 0.0) != 1120.0


def test_a_server_is_heard_without_waiting_for_it(tmp_path: Path) -> None:
    """One that was stopped accepts connections and answers nothing; one that loads its data answers that."""
    watch = ServerWatch(tmp_path / "s")
    assert watch.due_s(1, 0.0, 1.0) == 120.0  # it does not listen yet
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        assert watch.due_s(1, 0.0, 2.0) == 2.0
        connection, _ = listening.accept()
        assert connection.recv(99) == b"PING\r\n"
        connection.sendall(b"-LOADING\r\n")
        assert (watch.due_s(1, 0.0, 3.0), watch.is_ready()) == (3.0, False)
        connection.sendall(b"+PONG\r\n")
        assert (watch.due_s(1, 0.0, 4.0), watch.is_ready()) == (4.0, True)
        for now in range(5, 300):
            assert watch.due_s(1, 0.0, float(now)) == 4.0
        assert connection.recv(99) == b"PING\r\n" * 2  # it does not fill the pipe of who does not read
        connection.close()
        assert watch.due_s(1, 0.0, 301.0) == 4.0
        assert not watch.is_ready()
    assert watch.due_s(2, 400.0, 401.0) == 520.0  # started again


def test_a_child_that_cannot_be_started_now_is_started_later() -> None:
    """A full disk is no reason to end all the others."""
    reasons = ["no space left", "no space left"]

    def command() -> list[str]:
        if reasons:
            raise TransientError(reasons.pop())
        return ["sleep", "60"]

    child = Child(ChildSpec(name="a", command=command), Backoff(first_s=1.0))
    for now, runs in ((0.0, False), (0.5, False), (1.0, False), (2.9, False), (3.0, True)):
        child.start_if_due(now)
        assert child.runs() is runs, now
    child.end()
