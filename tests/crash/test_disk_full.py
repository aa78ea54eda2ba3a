"""Small disks that fill up and are freed again: everything waits, says why, and goes on by itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TransientError
from pipeline.publish import Publisher
from pipeline.records import Scope, Turn
from tests.crash.conftest import Row
from tests.crash.live import numbered
from tests.crash.processes import rows
from tests.eventually import eventually
from tests.running import RunningPipeline
from workers.checkup import verify_data

ROW = "disk full: server file, ledger, snapshot"
OLD, NEW = Scope("user", "old"), Scope("user", "new")
SEARCHABLE = "SELECT event_id FROM turns WHERE state = 2"
N_BEFORE, N_MORE = 3_000, 400
"""Turns of which a snapshot takes 2.6 MB."""


class SmallDisk:
    """A file system in memory."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = f"size={size_bytes},mode=0700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"this user may not mount: {done.stderr.decode(errors='replace').strip()}")

    def fill(self, *, but_bytes: int = 0) -> None:
        """Leave no more than so many bytes."""
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4_096))
            except OSError:
                filler.truncate(max(0, filler.tell() - but_bytes))

    def free(self) -> None:
        """Remove what filled it."""
        (self.folder / "filler").unlink()

    def unmount(self) -> None:
        """Take it away."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture
def make_disk() -> Iterator[Callable[[Path, int], SmallDisk]]:
    """Mount small disks; they are unmounted last."""
    disks: list[SmallDisk] = []

    def make(folder: Path, size_bytes: int) -> SmallDisk:
        disks.append(SmallDisk(folder, size_bytes))
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


class Site:
    """A running pipeline whose server file, and whose shards, lie on small disks."""

    def __init__(self, pipeline: RunningPipeline, log: Path, server: SmallDisk, shards: SmallDisk) -> None:
        self.pipeline = pipeline
        self.server = server
        self.shards = shards
        self.accepted: set[str] = set()
        self._log = log

    def publish(self, turns: list[Turn], *, attempts: int = 5) -> None:
        """Publish; what was accepted is to be found later."""
        with Publisher(self.pipeline.url, attempts=attempts) as publisher:
            publisher.publish_many(turns)
        self.accepted |= {turn.event_id for turn in turns}

    def found(self) -> set[str]:
        """What is searchable."""
        return {str(row[0]) for row in rows(self.pipeline.data_dir, SEARCHABLE)}

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one event."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"event": "{event}"' in line and line.startswith("{")]

    def largest_snapshot(self) -> int:
        """Give how many traces the largest snapshot had that was published."""
        return max((int(line["count"]) for line in self.logged("snapshot.published")), default=0)

    def says(self, event: str, word: str) -> bool:
        """Tell whether some such line has the word in its reason."""
        return any(word in str(line.get("reason")) for line in self.logged(event))


@pytest.fixture
def site(data_dir: Path, tmp_path: Path, make_disk: Callable[[Path, int], SmallDisk], long: int) -> Iterator[Site]:
    server = make_disk(data_dir / "server", 8 << 20)
    shards = make_disk(data_dir / "shards", long * 32 << 20)  # what is said stays, round after round
    log = tmp_path / "up.log"
    settings = {
        "TURNSTREAM_LOG_FORMAT": "json",
        "TURNSTREAM_WORKERS__CLAIM_TURNS": "16",
        "TURNSTREAM_INDEX__GROWTH": "0",
    }
    with RunningPipeline(data_dir, log=log, settings=settings) as pipeline:
        yield Site(pipeline, log, server, shards)


def numbers(start: int, n: int, scope: Scope = OLD) -> list[Turn]:
    return [numbered(number, scope) for number in range(start, start + n)]


@pytest.mark.timeout(240)
def test_a_full_disk_is_waited_for_and_loses_nothing(site: Site, row: Row, long: int) -> None:
    """The ledgers' disk, then with room for the ledger and none for a snapshot, then the server's."""
    row.expect(ROW)
    site.publish(numbers(0, 20))
    eventually(lambda: site.found() == site.accepted)
    for turn_of in range(long):
        start = 100_000 * (turn_of + 1)
        fill_ledgers(site, start)
        fill_snapshots(site, start + 10_000)
        fill_server(site, start + 20_000)
    assert site.pipeline.process is not None
    assert site.pipeline.process.poll() is None
    site.pipeline.wait()
    assert site.found() == site.accepted
    assert verify_data(site.pipeline.effective()) == []
    row(ROW, n=3 * long, outcome="paused with the reason in the log, healed alone, 0 lost")


def fill_ledgers(site: Site, start: int) -> None:
    site.shards.fill()
    site.publish(numbers(start, 30) + numbers(start, 30, NEW))
    eventually(lambda: site.says("batch.postponed", "full"))
    assert not {turn.event_id for turn in numbers(start, 30, NEW)} & site.found()
    site.shards.free()
    eventually(lambda: site.found() == site.accepted)


def fill_snapshots(site: Site, start: int) -> None:
    """Leave room for the words and vectors of some hundred turns, and none for a snapshot of all of them."""
    site.publish(numbers(start, N_BEFORE))
    eventually(lambda: site.found() == site.accepted)
    n_before = len(site.found())
    site.shards.fill(but_bytes=2_000_000)
    site.publish(numbers(start + N_BEFORE, N_MORE))
    eventually(lambda: site.found() == site.accepted)
    eventually(lambda: site.says("scope.postponed", "is the disk full"))
    assert site.largest_snapshot() <= n_before
    site.shards.free()
    site.publish(numbers(start + N_BEFORE + N_MORE, 1))  # it finds the snapshot due; without it a minute would pass
    eventually(lambda: site.largest_snapshot() > n_before)


def fill_server(site: Site, start: int) -> None:
    """The server ends rather than accept what it cannot keep; what it had accepted is there when it is back."""
    site.server.fill()
    refused = numbers(start, 300)
    with pytest.raises(TransientError, match="not published"):
        site.publish(refused, attempts=1)
    eventually(lambda: site.says("child.start_failed", "no space left"))
    site.server.free()
    eventually(lambda: _accepts(site, refused))
    eventually(lambda: site.found() == site.accepted)


def _accepts(site: Site, turns: list[Turn]) -> bool:
    site.publish(turns, attempts=1)
    return True
