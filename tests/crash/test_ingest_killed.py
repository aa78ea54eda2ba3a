"""Ingesters and servers killed while events arrive: none is lost, none is applied twice, every entry is acked."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from pipeline.errors import TransientError
from pipeline.records import Scope, Turn
from pipeline.registry import Registry
from pipeline.stream import connect
from tests.conftest import RunningServer
from tests.crash.processes import INGESTER, Processes, eventually, rows
from tests.running import RunningPipeline
from workers.cli import common

SEED = 20_260_301
SCOPES = [Scope("user", f"u{n}") for n in range(5)]
N_EVENTS = 3_000
N_KILLS = 10
NO_WORKERS = {"TURNSTREAM_WORKERS__N_WORKERS": "0", "TURNSTREAM_STREAM__BATCH_ENTRIES": "500"}


def numbered(number: int) -> Turn:
    return Turn(
        scope=SCOPES[number % len(SCOPES)], session_id="s", role="user", content=f"number {number}",
        timestamp=1_700_000_000 + number, event_id=f"n{number}",
    )  # fmt: skip


def turns_in(data_dir: Path) -> list[str]:
    """The event ids of all turns in all ledgers."""
    return [str(row[0]) for row in rows(data_dir, "SELECT event_id FROM turns")]


def kill_next(pipeline: RunningPipeline, kind: str, former: int | None) -> int:
    """SIGKILL the child of that kind that was started after the former one."""
    pid: int = eventually(lambda: (p := pipeline.children().get(kind)) != former and p)
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.fixture
def pipeline(data_dir: Path, tmp_path: Path) -> Iterator[RunningPipeline]:
    """An embedded server and an ingester; nobody embeds."""
    running = RunningPipeline(data_dir, settings=NO_WORKERS, log=tmp_path / "up.log")
    running.start()
    yield running
    assert running.stop() == 0


def n_unread(pipeline: RunningPipeline) -> int:
    return common.stream_of(pipeline.effective()).unread()


@pytest.mark.timeout(240)
def test_every_event_is_applied_once_however_often_the_ingester_is_killed(
    valkey_server: RunningServer, data_dir: Path, tmp_path: Path
) -> None:
    """Between commit and ack is the moment that doubles, between read and commit the one that loses."""
    chance = random.Random(SEED)
    with connect(valkey_server.url, timeout_s=5) as client:
        client.flushall()
    pipeline = RunningPipeline(data_dir, valkey_server.url, settings=NO_WORKERS)
    processes = Processes(pipeline, tmp_path / "log")
    numbers = [*range(N_EVENTS), *chance.sample(range(N_EVENTS), N_EVENTS // 4)]
    chance.shuffle(numbers)
    share = len(numbers) // N_KILLS
    with pipeline.publisher() as publisher:
        for kill in range(N_KILLS):
            ingester, before = processes.start(*INGESTER), len(turns_in(data_dir))
            for number in numbers[kill * share : (kill + 1) * share]:
                publisher.publish(numbered(number))
            if kill % 2:  # half the kills hit it at work, the others wherever it is
                eventually(lambda before=before: len(turns_in(data_dir)) > before)
            time.sleep(chance.uniform(0, 0.05))
            ingester.kill()
            ingester.wait()
    processes.start(*INGESTER)
    eventually(lambda: n_unread(pipeline) == 0)
    processes.end()
    assert sorted(turns_in(data_dir)) == sorted(f"n{n}" for n in range(N_EVENTS))
    backlog = common.stream_of(pipeline.effective()).backlog()
    assert (backlog.pending, backlog.undelivered, backlog.dead) == (0, 0, 0)
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.timeout(240)
def test_no_event_that_was_accepted_is_lost_when_the_server_is_killed(pipeline: RunningPipeline) -> None:
    """With the default durability an entry id is a promise."""
    accepted: set[str] = set()
    refused: set[str] = set()
    stopping = threading.Event()

    def publish() -> None:
        with pipeline.publisher() as publisher:
            number = 0
            while not stopping.is_set():
                event = numbered(number)
                try:
                    publisher.publish(event)
                    accepted.add(event.event_id)
                except TransientError:
                    refused.add(event.event_id)
                number += 1

    publishing = threading.Thread(target=publish)
    publishing.start()
    chance, former = random.Random(SEED), None
    try:
        for _ in range(4):
            known = len(accepted)
            eventually(lambda known=known: len(accepted) > known + 20)
            time.sleep(chance.uniform(0, 0.2))
            former = kill_next(pipeline, "valkey", former)
        known = len(accepted)
        eventually(lambda: len(accepted) > known + 20)
    finally:
        stopping.set()
        publishing.join()
    eventually(lambda: n_unread(pipeline) == 0)
    found = turns_in(pipeline.data_dir)
    assert len(found) == len(set(found))
    assert accepted - set(found) == set()
    assert set(found) <= accepted | refused


def test_a_stream_or_group_that_was_removed_is_made_again(pipeline: RunningPipeline) -> None:
    """Somebody cleans up by hand; what is published later must flow."""
    with pipeline.publisher() as publisher, connect(pipeline.url, timeout_s=5) as client:
        stream = common.stream_of(pipeline.effective())
        removals = [
            client.flushall,
            lambda: client.delete(stream.name),
            lambda: client.xgroup_destroy(stream.name, stream.group),
        ]
        for number, remove in enumerate(removals):
            remove()
            publisher.publish(numbered(number))
            eventually(lambda number=number: f"n{number}" in turns_in(pipeline.data_dir))
        eventually(lambda: stream.unread() == 0)
    with closing(Registry(pipeline.data_dir)) as registry:
        assert registry.totals()["applied"] == len(removals)
    assert psutil.pid_exists(pipeline.children()["ingester"])


def test_a_group_made_again_applies_nothing_twice(pipeline: RunningPipeline) -> None:
    """It starts at the first entry that is still there, so some are delivered again."""
    with pipeline.publisher() as publisher, connect(pipeline.url, timeout_s=5) as client:
        stream = common.stream_of(pipeline.effective())
        publisher.publish_many(numbered(n) for n in range(50))
        eventually(lambda: len(turns_in(pipeline.data_dir)) == 50)
        publisher.publish_many(numbered(n) for n in range(50, 100))
        client.xgroup_destroy(stream.name, stream.group)
        publisher.publish_many(numbered(n) for n in range(100))
        eventually(lambda: stream.unread() == 0 and len(turns_in(pipeline.data_dir)) >= 100)
    assert sorted(turns_in(pipeline.data_dir)) == sorted(f"n{n}" for n in range(100))
