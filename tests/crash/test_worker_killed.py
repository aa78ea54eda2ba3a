"""Workers poisoned and stopped: every turn ends searchable once, or set aside alone with its reason."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from pipeline.records import Scope, Turn
from pipeline.stream import connect
from tests.commands import CommandLine
from tests.conftest import RunningServer
from tests.crash import poisonable_worker
from tests.crash.poisonable_worker import KILLS, RAISES
from tests.crash.processes import Spawner, rows
from tests.eventually import eventually
from tests.running import RunningPipeline

TRACES = (
    "SELECT turn_id, state, attempts, (SELECT count(*) FROM traces t WHERE t.turn_offset = turns.turn_offset),"
    " failure FROM turns"
)
CLAIMS = "SELECT 1 FROM turns WHERE state = 1 LIMIT 1"
UNDONE = "SELECT 1 FROM turns WHERE state IN (0, 1) LIMIT 1"


@dataclass
class Site:
    """A server, an ingester, and as many workers as a test starts."""

    pipeline: RunningPipeline
    spawner: Spawner

    def worker(self, name: str = "w1", s_per_text: float = 0.0) -> ForkServerProcess:
        """Start one more."""
        return self.spawner.start(poisonable_worker.run, name, s_per_text, environment=self.pipeline.environment)

    def publish(self, contents: dict[str, list[str]]) -> None:
        """Publish texts by scope id; a turn's id is its scope and place."""
        with self.pipeline.publisher() as publisher:
            publisher.publish_many(
                Turn(
                    scope=Scope("user", scope_id), session_id="s", role="user", content=text,
                    timestamp=1_700_000_000 + place, event_id=f"{scope_id}-{place}",
                )
                for scope_id, texts in contents.items() for place, text in enumerate(texts)
            )  # fmt: skip
        n_turns = sum(map(len, contents.values()))
        eventually(lambda: len(self.rows("SELECT 1 FROM turns")) >= n_turns)

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        """Ask every ledger."""
        return rows(self.pipeline.data_dir, statement)


@pytest.fixture
def site(valkey_server: RunningServer, data_dir: Path, tmp_path: Path) -> Iterator[Site]:
    with connect(valkey_server.url, timeout_s=5) as client:
        client.flushall()
    pipeline = RunningPipeline(data_dir, valkey_server.url, settings={"TURNSTREAM_WORKERS__CLAIM_TURNS": "64"})
    site = Site(pipeline, Spawner(tmp_path / "log"))
    site.spawner.ingester(pipeline.environment)
    yield site
    site.spawner.end()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("poison", [KILLS, RAISES])
def test_a_poison_turn_is_set_aside_alone_after_three_attempts(
    site: Site, turnstream: CommandLine, poison: str, row
) -> None:
    """First in its scope, and in one doorbell with others that were tried with it: they must not share its fate."""
    texts = [f"heron number {place}" for place in range(10)]
    site.publish({"sick": [f"{poison} heron", *texts], "near": texts, "far": texts})
    worker, n_deaths = site.worker(), 0
    while site.rows(UNDONE):
        if worker.exitcode is not None:
            assert worker.exitcode == -signal.SIGKILL
            n_deaths += 1
            worker = site.worker()
        time.sleep(0.05)
    assert n_deaths == (3 if poison == KILLS else 0)
    found = {turn_id: (state, attempts, n_traces) for turn_id, state, attempts, n_traces, _ in site.rows(TRACES)}
    assert found.pop("sick-0") == (4, 3, 0)
    assert {(state, n_traces) for state, _, n_traces in found.values()} == {(2, 1)}
    assert max(attempts for _, attempts, _ in found.values()) == 2

    site.pipeline.wait()
    turnstream.settings = {k: v for k, v in site.pipeline.environment.items() if k.startswith("TURNSTREAM_")}
    assert json.loads(turnstream("stats", "--json").out)["memory"]["quarantined"] == 1
    (quarantined,) = json.loads(turnstream("dead-letters", "list", "--json").out)["quarantined"]
    assert (quarantined["scope"], quarantined["turn_id"], quarantined["attempts"]) == ("user/sick", "sick-0", 3)
    assert ("worker ended" if poison == KILLS else "RuntimeError: more than it can take") in quarantined["failure"]
    assert len(json.loads(turnstream("retrieve", "heron", "--scope", "user/sick", "--json").out)["hits"]) > 0

    worker.kill()
    worker.join()
    assert turnstream("dead-letters", "replay").out == "0 entries and 1 turns put back\n"
    site.spawner.worker(site.pipeline.environment, "healthy")
    eventually(lambda: not site.rows(UNDONE))
    assert site.rows("SELECT 1 FROM turns WHERE state != 2") == []
    row(
        "a turn that kills its worker, or raises", n=1, outcome="quarantined after 3, neighbours searchable, replayed"
    )


@pytest.mark.timeout(240)
def test_a_worker_that_was_stopped_for_a_while_loses_and_doubles_nothing(site: Site, row) -> None:
    """It lives, so its claims are its own; it goes on where it was."""
    site.publish({"u": [f"turn {place}" for place in range(200)]})
    stopped = site.worker("stopped", 0.01)
    eventually(lambda: site.rows(CLAIMS))
    os.kill(stopped.pid, signal.SIGSTOP)
    held = site.rows("SELECT turn_offset FROM turns WHERE state = 1")
    site.worker("other")
    eventually(lambda: not site.rows("SELECT 1 FROM turns WHERE state = 0 LIMIT 1"))
    time.sleep(1)
    assert site.rows("SELECT turn_offset FROM turns WHERE state = 1") == held
    os.kill(stopped.pid, signal.SIGCONT)
    eventually(lambda: not site.rows(UNDONE))
    assert {row[1:4] for row in site.rows(TRACES)} == {(2, 1, 1)}
    row("SIGSTOP of a worker that holds claims", n=1, outcome="keeps them, goes on where it was")
