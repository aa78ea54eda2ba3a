"""When a dead child is started again; the processes themselves are in integration."""

from __future__ import annotations

import signal
from typing import Any

from workers.supervisor import Backoff, ChildSpec, data_folder
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
