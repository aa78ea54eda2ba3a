"""The tail of the embedded server's append-only file lost: it starts on what is left, which is what was accepted."""

from __future__ import annotations

import random
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import contract
from pipeline.publish import Publisher
from pipeline.records import Scope, Turn
from pipeline.stream import connect
from tests.crash.in_process import InProcess, settings_of
from workers.checkup import verify_data
from workers.embedded import EmbeddedServer

SEED = 20_260_305
SCOPE = Scope("user", "u1")
N_EVENTS = 200
N_IMAGES = 80
N_GAPS = 4
STREAM = "turnstream:turns"


def numbered(number: int) -> Turn:
    return Turn(
        scope=SCOPE, session_id="s", role="user", content=f"number {number}", timestamp=1.6e9 + number,
        event_id=f"e{number}", index=number,
    )  # fmt: skip


@contextmanager
def running(server: EmbeddedServer) -> Iterator[None]:
    """Run the server on what its folder holds, and end it as a power cut does."""
    process = subprocess.Popen(server.command()[-2:])
    try:
        server.wait_ready(20)
        yield
    finally:
        process.kill()
        process.wait()


def accepted(server: EmbeddedServer) -> list[bytes]:
    """Give the events that the stream holds, in its order."""
    with connect(server.url, timeout_s=5) as client:
        return [fields[b"event"] for _, fields in client.xrange(STREAM)]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with tempfile.TemporaryDirectory(prefix="turnstream-") as folder:  # short: a socket's path may have 104 bytes
        yield EmbeddedServer(Path(folder) / "data")


def append_only_file(server: EmbeddedServer) -> Path:
    (path,) = server.folder.glob("appendonlydir/*.incr.aof")
    return path


@pytest.mark.timeout(240)
def test_a_server_whose_file_lost_its_tail_serves_what_came_before(
    server: EmbeddedServer, tmp_path: Path, row, long: int
) -> None:
    """A disk that lied about a flush loses the newest; ingest must see a prefix, and the checker name the rest."""
    name = "tail of the server's append-only file cut"
    row.expect(name)
    chance, ends = random.Random(SEED), []
    with running(server), Publisher(server.url) as publisher:
        for number in range(N_EVENTS):
            publisher.publish(numbered(number))
            ends.append(append_only_file(server).stat().st_size)
    whole = append_only_file(server).read_bytes()
    raws = [contract.encode(numbered(number)) for number in range(N_EVENTS)]
    for image in range(N_IMAGES * long):
        at = chance.randrange(ends[N_EVENTS // 2] if image < N_GAPS else 0, len(whole))
        append_only_file(server).write_bytes(whole[:at])
        n_left = bisect_right(ends, at)
        with running(server):
            assert accepted(server) == raws[:n_left]
            if image < N_GAPS:
                assert_gap_is_named(server, tmp_path / str(image), n_left)
    row(name, n=N_IMAGES * long, outcome="started, exact prefix, gap reported by name")


def assert_gap_is_named(server: EmbeddedServer, data_dir: Path, n_left: int) -> None:
    """The publisher goes on where it was; what it need not send again, because it was accepted, is missed by name."""
    with Publisher(server.url) as publisher:
        publisher.publish(numbered(N_EVENTS))
    with InProcess(settings_of(data_dir)) as run:
        run.take(accepted(server))
        found = [finding.detail for finding in verify_data(run.settings, scopes=[SCOPE])]
        assert len(found) == 1
        assert f"session 's' has no turn with index {n_left}" in found[0]
        run.publish(*(numbered(number) for number in range(n_left, N_EVENTS)))
        assert verify_data(run.settings, scopes=[SCOPE]) == []
