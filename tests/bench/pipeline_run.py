"""A whole pipeline for a benchmark: `turnstream up` on a folder of its own, fed and waited for."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pipeline import log
from pipeline.errors import TransientError
from pipeline.publish import Publisher
from pipeline.records import Event, Scope, Turn
from pipeline.settings import Settings, load_settings
from pipeline.stream import TurnStream, connect, server_url
from workers.progress import Progress, State

WORDS = (Path(__file__).parent / "words.txt").read_text().split()


@dataclass
class Running:
    """A pipeline that serves."""

    settings: Settings
    url: str
    process: subprocess.Popen[bytes]

    def publish(self, events: Iterable[Event]) -> None:
        """Publish as fast as the server takes it."""
        with Publisher(self.url, max_backlog_entries=1_000_000, backlog_wait_s=600) as publisher:
            publisher.publish_events(events)

    def progress(self) -> Progress:
        """How far it is."""
        names = self.settings.stream
        client = connect(self.url, timeout_s=30)
        stream = TurnStream(client, name=names.turns, dead_name=names.dead, group=names.group)
        return Progress(self.settings.data_dir, stream)

    def cpu_s(self) -> dict[str, float]:
        """Give the CPU seconds that each of its processes has used so far, and this one."""
        used = {"publisher": time.process_time()}
        for child in psutil.Process(self.process.pid).children():
            line = " ".join(child.cmdline())
            name = next((name for name in ("ingester", "worker-0", "worker-1", "valkey") if name in line), "other")
            used[name] = sum(child.cpu_times()[:2])
        return used

    def wait(self, *, n_searchable: int, timeout_s: float = 900.0) -> State:
        """Wait until so many turns are searchable; gives the last state."""
        progress, deadline = self.progress(), time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            state = progress.state()
            if state.counts.searchable >= n_searchable and not state.n_unread:
                return state
            time.sleep(0.1)
        raise TimeoutError(str(progress.state()))

    def wait_quiet(self, timeout_s: float = 900.0) -> None:
        """Wait until nothing is left to do, summaries included."""
        progress, deadline = self.progress(), time.monotonic() + timeout_s
        while progress.state().is_waiting:
            assert time.monotonic() < deadline, str(progress.state())
            time.sleep(0.05)


@contextmanager
def pipeline(*, backend: str, models_dir: Path, warm: bool = True, **environment: str) -> Iterator[Running]:
    """Start it, warm, and end it; its folder is removed."""
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        variables = {
            "TURNSTREAM_DATA_DIR": folder,
            "TURNSTREAM_EMBEDDING__BACKEND": backend,
            "TURNSTREAM_EMBEDDING__CACHE_DIR": str(models_dir),
            "TURNSTREAM_LOG_LEVEL": os.environ.get("BENCH_LOG_LEVEL", "warning"),
            "HF_HUB_OFFLINE": "1",
            **environment,
        }
        os.environ.update(variables)
        settings = load_settings()
        log.configure("warning", "console")
        process = subprocess.Popen([sys.executable, "-m", "workers.cli", "up"])
        running = Running(settings, server_url(None, settings.data_dir), process)
        try:
            if warm:
                _warm(running)
            yield running
        finally:
            process.terminate()
            process.wait(60)
            for name in variables:
                os.environ.pop(name)


def _warm(running: Running) -> None:
    deadline = time.monotonic() + 180
    turn = Turn(scope=Scope("user", "warm-up"), session_id="s", role="user", content="hello", timestamp=1_700_000_000)
    while True:
        try:
            running.publish([turn])
            break
        except TransientError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    running.wait(n_searchable=1)
    time.sleep(3)  # both workers are up, and idle


def sentences(n: int, *, seed: int = 0, n_words: tuple[int, int] = (8, 40)) -> Iterator[str]:
    """Make texts of the length of chat turns."""
    chance = random.Random(seed)
    for _ in range(n):
        yield " ".join(chance.choices(WORDS, k=chance.randint(*n_words))).capitalize() + "."


def report(name: str, **figures: Any) -> None:
    """Print one JSON line with the machine and the commit."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({"bench": name, **figures, "machine": machine, "commit": commit.stdout.strip()}), flush=True)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
