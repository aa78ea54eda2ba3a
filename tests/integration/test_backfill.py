"""Years of transcripts go in once, whatever happens on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import contract
from pipeline.records import Scope, Turn
from pipeline.stream import connect
from tests.commands import CommandLine
from tests.conftest import StartServer
from tests.eventually import eventually
from tests.running import RunningPipeline

N_SESSIONS, N_MESSAGES = 1_500, 4


@pytest.fixture
def running(data_dir: Path) -> Iterator[RunningPipeline]:
    pipeline = RunningPipeline(data_dir)
    pipeline.start()
    yield pipeline
    pipeline.stop()


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "years.jsonl"
    with path.open("w") as file:
        for number in range(N_SESSIONS):
            messages = [{"role": "user", "content": f"message {n} of chat {number}"} for n in range(N_MESSAGES)]
            record = {"session_id": f"c{number}", "created_at": 1_500_000_000 + 3_600 * number, "messages": messages}
            file.write(json.dumps(record) + "\n")
    return path


def test_a_killed_backfill_goes_on_where_it_was(running: RunningPipeline, transcript: Path) -> None:
    """An import of days must not begin again, and what was published twice is applied once."""
    command = ["backfill", str(transcript), "--format", "openai", "--scope", "user/alice"]
    noted = running.data_dir / "backfill"
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", *command], env=running.environment, stderr=subprocess.DEVNULL
    )

    def has_noted() -> bool:
        assert process.poll() is None
        return any(noted.glob("*.json"))

    eventually(has_noted, "a position is noted")
    process.kill()
    process.wait()
    report = json.loads(running.run(*command, "--json").stdout)[str(transcript)]
    assert report["resumed_at"] > 0
    assert report["published"] < N_SESSIONS * (N_MESSAGES + 1)
    running.wait()
    assert running.stats()["events"]["applied"] == N_SESSIONS * (N_MESSAGES + 1)
    memory = running.stats()["memory"]
    assert (memory["turns"], memory["traces"]) == (N_SESSIONS * N_MESSAGES,) * 2
    assert not list(noted.glob("*.json")), "a finished import leaves no note"


def test_ingest_that_falls_behind_slows_the_backfill_down(data_dir: Path, transcript: Path) -> None:
    """A transcript may be larger than the server's memory; with nobody ingesting, the import waits, then says so."""
    pipeline = RunningPipeline(
        data_dir,
        settings={"TURNSTREAM_WORKERS__N_INGESTERS": "0", "TURNSTREAM_REDIS__MAX_BACKLOG_ENTRIES": "1000"},
    )
    pipeline.start()
    try:
        command = ["backfill", str(transcript), "--format", "openai", "--scope", "user/alice", "--patience", "2"]
        done = pipeline.run(*command, check=False)
        assert done.returncode == 1
        assert "more than 1000" in done.stderr
        assert pipeline.stats()["stream"]["length"] < 3_000
    finally:
        pipeline.stop()


def test_backfill_and_publish_tell_alike_of_what_is_malformed(
    start_server: StartServer, turnstream: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    """A script reads the exit code; the person after it wants the line named, and the others published."""
    said = Turn(scope=Scope("user", "ann"), session_id="s1", role="user", content="Where is the lid?", timestamp=1)
    file = tmp_path / "events.jsonl"
    file.write_bytes(contract.encode(said) + b"\n{broken\n")
    server = start_server("valkey")
    where = (str(file), "--data-dir", str(data_dir), "--redis-url", server.url)
    for verb in (["publish"], ["backfill", "--format", "events"]):
        told, as_json = turnstream(*verb, *where), turnstream(*verb, *where, "--json")
        assert (told.code, as_json.code) == (1, 1), verb
        assert "line 2" in told.err
        assert "line 2" in as_json.out
    with connect(server.url, timeout_s=5) as client:
        assert client.xlen("turnstream:turns") == 4
