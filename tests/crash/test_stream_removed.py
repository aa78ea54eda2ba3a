"""The stream or its group removed under a running ingester: both are made again, and nothing is applied twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from pipeline.records import Scope, Turn
from pipeline.registry import Registry
from pipeline.stream import connect
from tests.conftest import RunningServer
from tests.crash.processes import Spawner, eventually, rows
from tests.running import RunningPipeline
from workers.cli import common

SCOPES = [Scope("user", f"u{n}") for n in range(5)]


def numbered(number: int) -> Turn:
    return Turn(
        scope=SCOPES[number % len(SCOPES)], session_id="s", role="user", content=f"number {number}",
        timestamp=1_700_000_000 + number, event_id=f"n{number}",
    )  # fmt: skip


def turns_in(data_dir: Path) -> list[str]:
    """The event ids of all turns in all ledgers."""
    return [str(row[0]) for row in rows(data_dir, "SELECT event_id FROM turns")]


@dataclass
class Site:
    """A server, and an ingester that reads it; nobody embeds."""

    pipeline: RunningPipeline
    ingester: ForkServerProcess


@pytest.fixture
def site(valkey_server: RunningServer, data_dir: Path, tmp_path: Path) -> Iterator[Site]:
    with connect(valkey_server.url, timeout_s=5) as client:
        client.flushall()
    pipeline, spawner = RunningPipeline(data_dir, valkey_server.url), Spawner(tmp_path / "log")
    yield Site(pipeline, spawner.ingester(pipeline.environment))
    spawner.end()


def test_a_stream_or_group_that_was_removed_is_made_again(site: Site, row) -> None:
    """Somebody cleans up by hand; what is published later must flow."""
    pipeline = site.pipeline
    stream = common.stream_of(pipeline.effective())
    with pipeline.publisher() as publisher, connect(pipeline.url, timeout_s=5) as client:
        removals = [
            client.flushall,
            lambda: client.delete(stream.name),
            lambda: client.xgroup_destroy(stream.name, stream.group),
        ] * 3
        for number, remove in enumerate(removals):
            remove()
            publisher.publish(numbered(number))
            eventually(lambda number=number: f"n{number}" in turns_in(pipeline.data_dir))
        eventually(lambda: stream.unread() == 0)
    with closing(Registry(pipeline.data_dir)) as registry:
        assert registry.totals()["applied"] == len(removals)
    assert site.ingester.is_alive()
    row("FLUSHALL, DEL of the stream, group destroyed", n=len(removals), outcome="made again, later events flow")


def test_a_group_made_again_applies_nothing_twice(site: Site, row) -> None:
    """It starts at the first entry that is still there, so some are delivered again."""
    pipeline = site.pipeline
    with pipeline.publisher() as publisher, connect(pipeline.url, timeout_s=5) as client:
        stream = common.stream_of(pipeline.effective())
        publisher.publish_many(numbered(n) for n in range(50))
        eventually(lambda: len(turns_in(pipeline.data_dir)) == 50)
        publisher.publish_many(numbered(n) for n in range(50, 100))
        client.xgroup_destroy(stream.name, stream.group)
        publisher.publish_many(numbered(n) for n in range(100))
        eventually(lambda: stream.unread() == 0 and len(turns_in(pipeline.data_dir)) >= 100)
    assert sorted(turns_in(pipeline.data_dir)) == sorted(f"n{n}" for n in range(100))
    row("group destroyed with entries pending", n=1, outcome="delivered again, applied once")
