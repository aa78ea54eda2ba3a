"""Processes that live and do not get on are replaced without a human, and nothing is lost by it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.publish import Publisher
from pipeline.records import Scope, Turn
from pipeline.stream import connect
from tests.conftest import StartServer
from tests.crash.processes import Spawner
from tests.eventually import eventually
from tests.running import RunningPipeline
from workers.liveness import WORKER, promise_of, pulse_path

SCOPE = Scope("user", "u1")
HURRIED = {
    "TURNSTREAM_WORKERS__STALLED_AFTER_S": "3",  # one second is soon gone on a busy machine
    "TURNSTREAM_REDIS__TIMEOUT_S": "2",
    "TURNSTREAM_LOG_FORMAT": "json",
}


@pytest.fixture
def pipeline(data_dir: Path, tmp_path: Path) -> Iterator[RunningPipeline]:
    with RunningPipeline(data_dir, settings=HURRIED, log=tmp_path / "log") as running:
        yield running


def publish(pipeline: RunningPipeline, start: int, end: int) -> None:
    with pipeline.publisher() as publisher:
        publisher.publish_many(
            Turn(scope=SCOPE, session_id="s", role="user", content=f"heron {n}", timestamp=n, event_id=f"e{n}")
            for n in range(start, end)
        )


def logged(path: Path) -> list[tuple[str, str]]:
    """Give event and child of each line of the supervisor."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"')]
    return [(line["event"], line["child"]) for line in lines if "child" in line]


def beats(pipeline: RunningPipeline) -> bool:
    """Whether the worker is past its start."""
    pid, due_s = promise_of(pulse_path(pipeline.data_dir, WORKER, "worker-0")) or (0, 0.0)
    return pid == pipeline.children().get("worker") and due_s < time.monotonic() + 9


@pytest.mark.timeout(180)
def test_whoever_hangs_is_replaced(pipeline: RunningPipeline, tmp_path: Path) -> None:
    """Stopped, they hold what they claimed, and answer nobody; `up` itself killed, its successor ends the stopped."""
    eventually(lambda: beats(pipeline))
    publish(pipeline, 0, 10)
    stopped = pipeline.children()
    for pid in stopped.values():
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: len(pipeline.children()) == 3 and not stopped.items() & pipeline.children().items())
    publish(pipeline, 10, 20)
    pipeline.wait()
    assert pipeline.progress().state().counts.searchable == 20
    stalled = [child for event, child in logged(tmp_path / "log") if event == "child.stalled"]
    assert len(stalled) == len(set(stalled)) == 3, stalled

    eventually(lambda: beats(pipeline))
    former = pipeline.children()
    os.kill(former["worker"], signal.SIGSTOP)
    assert pipeline.process is not None
    pipeline.process.kill()
    pipeline.process.wait()
    pipeline.start()
    publish(pipeline, 20, 30)
    pipeline.wait()
    assert not any(pid in pipeline.children().values() or runs(pid) for pid in former.values())


def runs(pid: int) -> bool:
    """Whether it still runs; nobody may have taken note of its end."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_waits_for_a_server_that_is_full(start_server: StartServer, data_dir: Path, tmp_path: Path) -> None:
    """The server refuses it a key of its own; it says so, in one line, and begins when there is room."""
    server = start_server("valkey")
    with Publisher(server.url) as publisher, connect(server.url, timeout_s=5) as client:
        publisher.publish(Turn(scope=SCOPE, session_id="s", role="user", content="hi", timestamp=1, event_id="e"))
        client.config_set("maxmemory", "1")
    log = tmp_path / "log"
    log.touch()
    pipeline, spawner = RunningPipeline(data_dir, server.url, settings=HURRIED), Spawner(log)
    try:
        worker = spawner.worker(pipeline.environment)
        eventually(lambda: "server.refused" in log.read_text())
        assert worker.is_alive()
        assert "Traceback" not in log.read_text()
        with connect(server.url, timeout_s=5) as client:
            client.config_set("maxmemory", "0")
        spawner.ingester(pipeline.environment)
        pipeline.wait()
        assert worker.is_alive()
        assert pipeline.progress().state().counts.searchable == 1
    finally:
        spawner.end()
