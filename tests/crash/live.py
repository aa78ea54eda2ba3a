"""A server, and an ingester and workers that a test starts and ends one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from pipeline.records import Scope, Turn
from pipeline.registry import Registry
from pipeline.stream import TurnStream, connect
from tests.conftest import RunningServer
from tests.crash import poisonable_worker
from tests.crash.processes import Spawner, rows
from tests.running import RunningPipeline
from workers.checkup import verify_data
from workers.cli import common

EPOCH_S = 1_700_000_000
UNDONE = "SELECT 1 FROM turns WHERE state IN (0, 1) LIMIT 1"


@dataclass
class Live:
    """What a test holds of it; ``settings`` of its commands are those of ``pipeline``."""

    pipeline: RunningPipeline
    spawner: Spawner
    log_file: Path

    def ingester(self, name: str = "i1", **settings: str) -> ForkServerProcess:
        """Start one, with settings of its own."""
        return self.spawner.ingester({**self.pipeline.environment, **settings}, name)

    def worker(self, name: str = "w1", s_per_text: float = 0.0) -> ForkServerProcess:
        """Start one whose embedder can be harmed."""
        environment = self.pipeline.environment
        return self.spawner.start(poisonable_worker.run, name, s_per_text, environment=environment)

    @property
    def data_dir(self) -> Path:
        """Its data folder."""
        return self.pipeline.data_dir

    @property
    def stream(self) -> TurnStream:
        """Its stream."""
        return common.stream_of(self.pipeline.effective())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask every ledger."""
        return rows(self.data_dir, statement)

    def totals(self) -> dict[str, int]:
        """What became of every event so far."""
        with closing(Registry(self.data_dir, create=False)) as registry:
            return registry.totals()

    def is_done(self) -> bool:
        """Tell whether all is ingested, and searchable or set aside."""
        return self.stream.unread() == 0 and not self.rows(UNDONE)

    def wrong(self) -> list[str]:
        """List everything that the checker finds wrong."""
        return [f"{finding.what}: {finding.detail}" for finding in verify_data(self.pipeline.effective())]

    def log(self) -> str:
        """What its processes logged."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of one event."""
        lines = [line for line in self.log().splitlines() if f'"{event}"' in line]
        return [json.loads(line) for line in lines]


@contextmanager
def live(server: RunningServer, folder: Path, **settings: str) -> Iterator[Live]:
    """Empty the server, and end on leaving what was started."""
    with connect(server.url, timeout_s=5) as client:
        client.flushall()
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700, exist_ok=True)
    given = {f"TURNSTREAM_{name}": value for name, value in settings.items()}
    pipeline = RunningPipeline(data_dir, server.url, settings={"TURNSTREAM_LOG_FORMAT": "json", **given})
    spawner = Spawner(folder / "log")
    try:
        yield Live(pipeline, spawner, folder / "log")
    finally:
        spawner.end()


def numbered(number: int, scope: Scope, *, session: str = "s", text: str = "") -> Turn:
    """Make a turn that differs from every other."""
    return Turn(
        scope=scope, session_id=session, role="user", content=text or f"heron number {number}",
        timestamp=EPOCH_S + number, event_id=f"{scope.id}-{number}",
    )  # fmt: skip


def of_one_scope(scope: Scope, texts: Sequence[str]) -> list[Turn]:
    """Make a session's turns of these texts."""
    return [numbered(number, scope, text=text) for number, text in enumerate(texts)]
