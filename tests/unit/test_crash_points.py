"""The named points: armed ones end the process at the right passing, all others cost nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from pipeline import crash_points
from pipeline.crash_points import CrashPoint, arm, passing
from pipeline.errors import ConfigError
from pipeline.settings import load_settings


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm(None)


def end_of(run: Callable[[], None]) -> int:
    """Run it in a child; give the child's exit code, negative for a signal, 7 when it came to its end."""
    pid = os.fork()
    if pid == 0:
        run()
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(("n_passings", "code"), [(1, 7), (2, -signal.SIGKILL)])
def test_the_nth_passing_is_a_kill_and_none_before(n_passings: int, code: int) -> None:
    """A test of the second passing must not hit the first; SIGKILL, so that no handler cleans up."""

    def run() -> None:
        arm("after-commit:2")
        passing(CrashPoint.BEFORE_BEGIN)
        passing(CrashPoint.BEFORE_BEGIN)
        for _ in range(n_passings):
            passing(CrashPoint.AFTER_COMMIT)

    assert end_of(run) == code


def test_without_a_number_the_first_passing_is_meant() -> None:
    """The shortest way to say it is the one that is tried by hand."""

    def run() -> None:
        arm("after-ack")
        passing(CrashPoint.AFTER_ACK)

    assert end_of(run) == -signal.SIGKILL


@pytest.mark.parametrize("text", ["after-lunch:1", "after-commit:0", "after-commit:-1", "after-commit:x", ":1", "2"])
def test_what_is_no_point_is_refused(text: str) -> None:
    """A test armed with a misspelt point would pass without having tested anything."""
    with pytest.raises(ConfigError, match="TURNSTREAM_CRASH_AT"):
        arm(text)
    assert crash_points._armed.point is None


def test_nothing_is_armed_unless_asked() -> None:
    """Production passes every point all the time."""
    arm(None)
    for point in CrashPoint:
        passing(point)


def test_a_wrong_point_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` would otherwise start children that end at once, again and again."""
    monkeypatch.setenv("TURNSTREAM_CRASH_AT", "after-lunch:1")
    with pytest.raises(ConfigError, match=r"after-lunch.*after-commit"):
        load_settings()
