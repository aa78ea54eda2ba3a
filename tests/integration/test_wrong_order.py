"""Things done too early, twice, or again after a kill: each says so, or simply works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline.records import Scope, Turn
from tests.commands import CommandLine
from tests.eventually import eventually
from tests.running import RunningPipeline

ALICE = Scope("user", "alice")


def turn(number: int) -> Turn:
    return Turn(
        scope=ALICE, session_id="s", role="user", content=f"kettle number {number}",
        timestamp=1_700_000_000 + number, event_id=f"k{number}",
    )  # fmt: skip


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    file = tmp_path / "chat.jsonl"
    message = {"role": "user", "content": "Where is the kettle?"}
    file.write_text(json.dumps({"session_id": "c1", "created_at": 1_700_000_000, "messages": [message]}) + "\n")
    return file


@pytest.mark.parametrize("folder", ["absent", "empty"])
def test_publishing_before_up_was_ever_started_says_what_to_start(
    turnstream: CommandLine, tmp_path: Path, transcript: Path, folder: str
) -> None:
    """The first thing somebody new does; nothing may seem to have been accepted."""
    data_dir = tmp_path / "new"
    if folder == "empty":
        data_dir.mkdir()
    turnstream.settings |= {"TURNSTREAM_DATA_DIR": str(data_dir), "TURNSTREAM_REDIS__PUBLISH_ATTEMPTS": "2"}
    for verb in (
        ["backfill", str(transcript), "--format", "openai", "--scope", "user/alice"],
        ["forget", "--scope", "user/alice"],
        ["wait"],
        ["stats"],
        ["dead-letters", "list"],
    ):
        ended = turnstream(*verb)
        assert ended.code == 3, verb
        assert "turnstream up" in ended.err
        assert str(data_dir) in ended.err
        assert "published" not in ended.out


def test_reading_before_anything_exists_finds_nothing_and_makes_nothing(
    turnstream: CommandLine, tmp_path: Path, server_url: str
) -> None:
    """A bot may be started before its pipeline."""
    turnstream.settings |= {"TURNSTREAM_DATA_DIR": str(tmp_path / "new"), "TURNSTREAM_REDIS__URL": server_url}
    assert json.loads(turnstream("retrieve", "kettle", "--scope", "user/alice", "--json").out)["hits"] == []
    assert turnstream("retrieve", "kettle", "--scope", "user/alice").err.startswith("no hits")
    stats = json.loads(turnstream("stats", "--json").out)
    assert (stats["events"], stats["memory"]["turns"], stats["stream"]["length"]) == ({}, 0, 0)
    assert json.loads(turnstream("dead-letters", "list", "--json").out) == {
        "dead_letters": [],
        "quarantined": [],
        "unsummarised": [],
    }
    assert turnstream("doctor").code == 1  # nothing runs
    assert not (tmp_path / "new").exists()


def test_waiting_for_nothing_returns_at_once(turnstream: CommandLine, data_dir: Path, server_url: str) -> None:
    """A script may wait whether or not it had something to publish."""
    turnstream.settings |= {"TURNSTREAM_DATA_DIR": str(data_dir), "TURNSTREAM_REDIS__URL": server_url}
    started = time.monotonic()
    assert turnstream("wait").code == 0
    assert time.monotonic() - started < 2


def test_waiting_without_a_pipeline_gives_up_and_says_so(
    turnstream: CommandLine, data_dir: Path, server_url: str
) -> None:
    """Somebody has published, nobody ingests."""
    with RunningPipeline(data_dir, server_url).publisher() as publisher:
        publisher.publish(turn(1))
    turnstream.settings |= {"TURNSTREAM_DATA_DIR": str(data_dir), "TURNSTREAM_REDIS__URL": server_url}
    ended = turnstream("wait", "--timeout", "0.2")
    assert ended.code == 1
    assert "1 events to ingest" in ended.err
    assert "turnstream up" in ended.err


def test_up_starts_again_after_it_was_killed(data_dir: Path, tmp_path: Path) -> None:
    """A lock, a socket and perhaps a server are left over; what was accepted is still there."""
    pipeline = RunningPipeline(data_dir, log=tmp_path / "up.log")
    pipeline.start()
    for life in range(3):
        publish_at_last(pipeline, [turn(10 * life + n) for n in range(10)])
        assert pipeline.process is not None
        pipeline.process.kill()
        pipeline.process.wait()
        pipeline.start()
    pipeline.wait()
    counts = pipeline.stats()["memory"]
    assert (counts["turns"], counts["searchable"], counts["traces"]) == (30, 30, 30)
    assert pipeline.stop() == 0
    assert_nothing_runs_on(data_dir)


def publish_at_last(pipeline: RunningPipeline, turns: list[Turn]) -> None:
    """Publish again and again: at first the server may be the one left over, which is about to be replaced."""

    def is_accepted() -> list[str]:
        with pipeline.publisher() as publisher:
            return publisher.publish_many(turns)

    eventually(is_accepted, "the server takes them")


@pytest.mark.parametrize("after_s", [0.0, 0.6, 1.2, 2.0, 3.0])
def test_up_can_be_ended_right_at_its_start(data_dir: Path, tmp_path: Path, after_s: float) -> None:
    """A service manager may change its mind; no process and no obstacle stays behind."""
    pipeline = RunningPipeline(data_dir, log=tmp_path / "up.log")
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "up"], env=pipeline.environment, stdout=log, stderr=log
        )
    time.sleep(after_s)
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) in {0, -signal.SIGTERM}  # the latter before it has read its own code
    assert_nothing_runs_on(data_dir)
    assert "Traceback" not in (tmp_path / "up.log").read_text()


@pytest.mark.timeout(180)
def test_up_can_be_ended_while_the_model_is_exported(data_dir: Path, tmp_path: Path) -> None:
    """The first start takes long enough for somebody to lose patience; half a model must not be taken for one."""
    onnx = {"TURNSTREAM_EMBEDDING__BACKEND": "onnx-int8", "TURNSTREAM_WORKERS__N_WORKERS": "2"}
    pipeline = RunningPipeline(data_dir, log=tmp_path / "up.log", settings=onnx)
    pipeline.start()
    assert pipeline.process is not None
    up = psutil.Process(pipeline.process.pid)
    exports = eventually(lambda: [p for child in up.children() for p in child.children()], "the model is exported")
    time.sleep(1)
    assert pipeline.stop() == 0
    assert not [process for process in exports if process.is_running() and process.status() != "zombie"]
    assert_nothing_runs_on(data_dir)
    assert not list((data_dir / "models").rglob("*.onnx"))


def assert_nothing_runs_on(data_dir: Path) -> None:
    """No process is left that was told of this folder; one that was asked to end is given a moment."""

    def left() -> list[int]:
        return [p.pid for p in psutil.process_iter() if p.pid != os.getpid() and _knows(p, data_dir)]

    eventually(lambda: not left(), lambda: f"the end of {left()}")


def _knows(process: psutil.Process, data_dir: Path) -> bool:
    try:
        told = [*process.cmdline(), *process.environ().values()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(str(data_dir) in word for word in told)
