"""The supervisor with real children, really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ConfigError
from tests.eventually import eventually
from workers.supervisor import ChildSpec, DataFolderLock, Supervisor

WITHIN_S = 15

SCRIPT = """
import json, sys
from pathlib import Path
from pipeline.log import configure
from workers.supervisor import Backoff, ChildSpec, DataFolderLock, Supervisor

configure(style="json")
folder = Path(sys.argv[1])
specs = [ChildSpec(**spec) for spec in json.loads(sys.argv[2])]
for n, spec in enumerate(specs):
    marker = folder / f"{spec.name}.ready"
    if marker.with_suffix(".wanted").exists():
        specs[n] = ChildSpec(name=spec.name, command=spec.command, ready=marker.exists)
with DataFolderLock(folder):
    Supervisor(specs, backoff=Backoff(first_s=0.05, longest_s=0.2)).run()
"""

CHILD = """
import os, signal, sys, time
from pathlib import Path
folder, name, manner = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def leave(number, frame):
    with (folder / "ends").open("a") as ends: ends.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if manner == "stubborn" else leave)
if manner == "parent":
    import subprocess
    grandchild = subprocess.Popen(["sleep", "600"])
    (folder / "grandchild.pid").write_text(str(grandchild.pid))
with (folder / (name + ".pids")).open("a") as pids: pids.write(f"{os.getpid()}\\n")
while True: time.sleep(0.01 if manner == "stubborn" else 60)
"""


class Up:
    """A supervisor in a process of its own, as `turnstream up` runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *children: tuple[str, str], stop_timeout_s: float = 5.0) -> subprocess.Popen[bytes]:
        """Start it with children of these names and manners."""
        specs = [
            {
                "name": name,
                "command": [sys.executable, "-c", CHILD, str(self.folder), name, manner],
                "stop_timeout_s": stop_timeout_s,
            }
            for name, manner in children
        ]
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(self.folder), json.dumps(specs)], stderr=log
            )
        return self.process

    def pids(self, name: str) -> list[int]:
        """Give the process ids a child has had."""
        path = self.folder / f"{name}.pids"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self) -> list[tuple[str, str | None]]:
        """Give what was logged: event and child."""
        lines = (self.folder / "log").read_text().split("\n")[:-1]
        return [(line["event"], line.get("child")) for line in map(json.loads, lines)]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    started = Up(tmp_path)
    yield started
    if started.process and started.process.poll() is None:
        started.process.terminate()
        started.process.wait(WITHIN_S)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_child_is_started_again(up) -> None:
    """The reason for having a supervisor."""
    up.start(("a", "polite"), ("b", "polite"))
    eventually(lambda: up.pids("a") and up.pids("b"), "both start")
    for n in (1, 2, 3):
        os.kill(up.pids("a")[-1], signal.SIGKILL)
        eventually(lambda n=n: len(up.pids("a")) == n + 1, "it is started again")
    assert len(up.pids("b")) == 1
    eventually(lambda: up.events().count(("child.restarted", "a")) == 3, "each is logged")
    assert up.events().count(("child.exited", "a")) == 3
    assert up.events().count(("child.started", "a")) == 1


def test_children_end_in_reverse_order(up) -> None:
    """A reader ends before what it reads from, and can finish its work."""
    process = up.start(("server", "polite"), ("ingester", "polite"), ("worker", "polite"))
    eventually(lambda: all(up.pids(name) for name in ("server", "ingester", "worker")), "all start")
    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == 0
    assert (up.folder / "ends").read_text().split() == ["worker", "ingester", "server"]


def test_a_child_that_will_not_end_is_ended(up) -> None:
    """A worker stuck in native code ignores SIGTERM for ever."""
    process = up.start(("stuck", "stubborn"), stop_timeout_s=0.3)
    eventually(lambda: up.pids("stuck"), "it starts")
    process.send_signal(signal.SIGINT)
    assert process.wait(WITHIN_S) == 0
    assert gone(up.pids("stuck")[0])
    assert ("child.killed", "stuck") in up.events()


def test_a_second_signal_does_not_wait(up) -> None:
    """Who presses Ctrl-C twice means it."""
    process = up.start(("stuck", "stubborn"), stop_timeout_s=600)
    eventually(lambda: up.pids("stuck"), "it starts")
    process.send_signal(signal.SIGINT)
    eventually(lambda: ("supervisor.stopping", None) in up.events(), "it is heard")
    process.send_signal(signal.SIGINT)
    assert process.wait(WITHIN_S) == 0
    assert gone(up.pids("stuck")[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_supervisor_leaves_no_orphan(up) -> None:
    """Orphans would read the stream beside their successors, for ever."""
    process = up.start(("a", "polite"), ("b", "polite"))
    eventually(lambda: up.pids("a") and up.pids("b"), "both start")
    process.kill()
    process.wait()
    eventually(lambda: gone(up.pids("a")[0]) and gone(up.pids("b")[0]), "no orphan is left")
    assert sorted((up.folder / "ends").read_text().split()) == ["a", "b"]


def test_what_a_dead_child_started_goes_with_it(up) -> None:
    """Its helper would work on beside the one of its successor."""
    up.start(("a", "parent"))
    eventually(lambda: up.pids("a"), "it starts")
    grandchild = int((up.folder / "grandchild.pid").read_text())
    os.kill(up.pids("a")[0], signal.SIGKILL)
    eventually(lambda: gone(grandchild), "the grandchild ends")
    eventually(lambda: len(up.pids("a")) == 2, "it is started again")


def test_ctrl_c_on_the_terminal_reaches_the_supervisor_alone(up) -> None:
    """Children of its own group would all end at once, in no order."""
    process = up.start(("a", "polite"))
    eventually(lambda: up.pids("a"), "it starts")
    assert os.getpgid(up.pids("a")[0]) != os.getpgid(process.pid)


def test_a_child_waits_for_those_before_it_to_be_ready(up) -> None:
    """An ingester without its server would only fill the log."""
    (up.folder / "server.wanted").touch()
    up.start(("server", "polite"), ("ingester", "polite"))
    eventually(lambda: up.pids("server"), "the first starts")
    time.sleep(0.3)
    assert not up.pids("ingester")
    (up.folder / "server.ready").touch()
    eventually(lambda: up.pids("ingester"), "the second starts")


def test_a_second_up_on_a_folder_is_told_who_holds_it(up) -> None:
    """Two supervisors would run two ingesters and two servers on one folder."""
    process = up.start(("a", "polite"))
    eventually(lambda: up.pids("a"), "it starts")
    with pytest.raises(ConfigError, match=rf"process {process.pid} on \S+ since 20\d\d-"), DataFolderLock(up.folder):
        pass
    process.kill()
    process.wait()
    with DataFolderLock(up.folder):  # free at once: its children do not hold it
        pass


def test_a_program_that_does_not_exist_ends_everything() -> None:
    """Retrying cannot help; what already runs must not stay behind."""
    pids = []
    specs = [ChildSpec(name="a", command=["sleep", "60"]), ChildSpec(name="b", command=["/nowhere/program"])]
    supervisor = Supervisor(specs)
    supervisor._end_all = _spying(supervisor, pids)
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError, match="b: /nowhere/program"):
        supervisor.run()
    assert [gone(pid) for pid in pids] == [True]
    assert signal.getsignal(signal.SIGTERM) is former


def _spying(supervisor: Supervisor, pids: list[int]) -> Callable[[int], None]:
    end_all = supervisor._end_all

    def spy(wake_up: int) -> None:
        pids.extend(supervisor.pids().values())
        end_all(wake_up)

    return spy


def test_it_can_be_stopped_from_within() -> None:
    """A bounded run, such as the demo, ends it without a signal."""
    seen: list[dict[str, int]] = []

    def watch() -> None:
        seen.append(supervisor.pids())
        if len(seen) == 3:
            supervisor.stop()

    supervisor = Supervisor([ChildSpec(name="a", command=lambda: ["sleep", "60"])], on_tick=watch)
    supervisor.run()
    assert set(seen[0]) == {"a"}
    assert supervisor.pids() == {}
    assert gone(seen[0]["a"])


def test_the_environment_is_ours_and_the_child_s_own(tmp_path) -> None:
    """Thread counts must be set before a library is imported."""
    out = tmp_path / "out"
    command = ["sh", "-c", f'echo "$OMP_NUM_THREADS:$HOME" > {out}; exec sleep 60']
    supervisor = Supervisor(
        [ChildSpec(name="a", command=command, env={"OMP_NUM_THREADS": "1"})],
        on_tick=lambda: supervisor.stop() if out.exists() and out.read_text() else None,
    )
    supervisor.run()
    assert out.read_text() == f"1:{os.environ['HOME']}\n"
