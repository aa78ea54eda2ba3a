"""The server killed during a task, with each end of the allowed range of Celery and its broker library."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.records import Scope
from tests.conftest import RunningServer, StartServer
from tests.crash.conftest import Row
from tests.crash.live import numbered
from tests.crash.poisonable_worker import WAITS_FOR
from tests.crash.processes import rows
from tests.eventually import eventually
from tests.running import RunningPipeline

RANGES = {"5.6": ">=5.6,<5.7", "5.7": ">=5.7,<5.8"}
"""What pyproject.toml allows, by minor version; Celery's broker library has the same."""
ROW = "SIGKILL of the server during a task of 6 s, either end of the Celery range"
TASK_S = 6.0
RUNS_WITHIN_S = 15.0


def installed() -> str:
    return ".".join(importlib.metadata.version("celery").split(".")[:2])


def test_the_ranges_are_those_of_the_package() -> None:
    """Who widens the range must have it tested."""
    (allowed,) = (x for x in importlib.metadata.requires("turnstream") or () if x.startswith("celery"))
    assert set(allowed.removeprefix("celery").split(",")) == {">=5.6", "<5.8"}
    assert installed() in RANGES


def other_version(folder: Path) -> str | None:
    """Install the other end of the range into a folder; gives its minor version, or None without a package index."""
    (other,) = RANGES.keys() - {installed()}
    wanted = [f"{name}{RANGES[other]}" for name in ("celery", "kombu")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *wanted],
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    return None if done.returncode else other


@pytest.mark.timeout(240)
def test_the_next_task_runs_soon_after_the_server_was_killed_during_one(
    start_server: StartServer, tmp_path: Path, row: Row, patience: float
) -> None:
    """A Celery worker may end, or wait for ever, when its broker was restarted while it was busy."""
    row.expect(ROW)
    other = other_version(tmp_path / "other")
    folders = {installed(): None} | ({other: tmp_path / "other"} if other else {})
    with ThreadPoolExecutor() as threads:  # mostly they wait
        started = {
            minor: threads.submit(
                try_version, start_server("valkey", "--appendfsync", "always"), minor, folder, tmp_path
            )
            for minor, folder in folders.items()
        }
    for minor, took in started.items():
        row(ROW, n=1, outcome=f"Celery {minor}: the next task ran after {took.result():.1f} s")
        assert took.result() <= RUNS_WITHIN_S * patience
    if other is None:
        pytest.skip("there is no package index with the other end of the range")


def try_version(server: RunningServer, minor: str, folder: Path | None, tmp_path: Path) -> float:
    """Give how long the next task took with the version that lies in a folder, None for the installed one."""
    path = {"PYTHONPATH": f"{folder}:{Path.cwd()}"} if folder else {}
    data_dir = tmp_path / f"data-{minor}"
    data_dir.mkdir(mode=0o700)
    pipeline = RunningPipeline(data_dir, server.url, settings=path)
    assert version_seen(pipeline) == minor
    with (tmp_path / f"log-{minor}").open("wb") as log:
        commands = [["workers.cli", "ingester", "--name", "i1"], ["tests.crash.poisonable_worker", "w1", "0"]]
        children = [  # not forked: their parent has imported the installed version
            subprocess.Popen([sys.executable, "-m", *command], env=pipeline.environment, stdout=log, stderr=log)
            for command in commands
        ]
    try:
        took_s = kill_during_task(server, pipeline, tmp_path / f"gate-{minor}")
        assert [child.poll() for child in children] == [None, None]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return took_s


def kill_during_task(server: RunningServer, pipeline: RunningPipeline, gate: Path) -> float:
    """Kill the server, start it again, and let the task end; gives how long the next one took from there on."""
    busy, next_one = Scope("user", "busy"), Scope("user", "next")  # another scope: the task at hand will not do it
    gate.touch()
    with pipeline.publisher() as publisher:
        publisher.publish(numbered(0, busy, text=f"{WAITS_FOR}{gate}"))
        eventually(lambda: rows(pipeline.data_dir, "SELECT 1 FROM turns WHERE state = 1"))
        begun = time.monotonic()
        server.kill()
        server.start()
        publisher.publish(numbered(1, next_one))
        time.sleep(max(0.0, begun + TASK_S - time.monotonic()))  # the case: the task goes on without its broker
        gate.unlink()
        ended = time.monotonic()
        eventually(lambda: len(rows(pipeline.data_dir, "SELECT 1 FROM turns WHERE state = 2")) == 2)
        return time.monotonic() - ended


def version_seen(pipeline: RunningPipeline) -> str:
    """Ask a process with the same environment."""
    asked = "import celery, kombu; print(celery.__version__, kombu.__version__)"
    shown = subprocess.run(
        [sys.executable, "-c", asked], env=pipeline.environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    (minor,) = {".".join(found.split(".")[:2]) for found in shown.stdout.split()}
    return minor
