"""A whole pipeline as a child process: `turnstream up` with a folder, and a server, of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest import mock

import psutil

from pipeline.errors import ShardError
from pipeline.publish import Publisher
from pipeline.settings import Settings, load_settings
from pipeline.stream import server_url
from tests.eventually import eventually
from workers.cli import common, operate
from workers.progress import Progress, State

DONE_WITHIN_S = 60.0


@dataclass
class RunningPipeline:
    """`turnstream up`; ``redis_url`` None means the embedded server, ``log`` None the test's own output."""

    data_dir: Path
    redis_url: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    log: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What its commands see: nothing of the caller's own settings."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
        given = {
            "TURNSTREAM_DATA_DIR": str(self.data_dir),
            "TURNSTREAM_EMBEDDING__BACKEND": "hashing",
            "TURNSTREAM_WORKERS__N_WORKERS": "1",
            "TURNSTREAM_SUMMARY__SETTLE_S": "0.1",
            "TURNSTREAM_STREAM__CLAIM_IDLE_MS": "2000",
            "TURNSTREAM_WORKERS__SWEEP_EVERY_S": "0.5",
            "HF_HUB_OFFLINE": "1",
            **({"TURNSTREAM_REDIS__URL": self.redis_url} if self.redis_url else {}),
            **self.settings,
        }
        return {**inherited, **given}

    @property
    def url(self) -> str:
        """The server it reads from."""
        return server_url(self.redis_url, self.data_dir)

    def start(self) -> None:
        """Start it, and wait until its server answers."""
        with self.log.open("ab") if self.log else nullcontext() as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.cli", "up"], env=self.environment, stdout=log, stderr=log
            )
        self.wait_for_server()

    def wait_for_server(self) -> None:
        """Wait until its server answers."""

        def answers() -> bool:
            assert self.process is None or self.process.poll() is None, "up ended"
            with suppress(ShardError):
                self.progress().state()
                return True
            return False

        eventually(answers, "the server answers")

    def effective(self) -> Settings:
        """The settings that its commands see."""
        with mock.patch.dict(os.environ, self.environment, clear=True):
            return load_settings()

    def progress(self) -> Progress:
        """How far it is, asked in this process: a command of its own takes a second."""
        return Progress(self.data_dir, common.stream_of(self.effective()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; gives its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def children(self) -> dict[str, int]:
        """Give one pid of each kind of its processes."""
        return {kind: pids[-1] for kind, pids in self.pids().items()}

    def pids(self) -> dict[str, list[int]]:
        """Give the pids of its processes by what they are."""
        assert self.process is not None
        found: dict[str, list[int]] = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                line = " ".join(child.cmdline())
            except psutil.NoSuchProcess:  # it was killed, and is not started again yet
                continue
            kinds = (k for k in ("valkey", "ingester", "worker") if f" {k}" in line or f"{k}-server" in line)
            found.setdefault(next(kinds, line), []).append(child.pid)
        return found

    def publisher(self) -> Publisher:
        """A publisher to its server; patient, since tests kill servers on machines that are busy."""
        return Publisher(self.url, attempts=40)

    def run(self, *arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a verb of the command line."""
        done = subprocess.run(
            [sys.executable, "-m", "workers.cli", *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DONE_WITHIN_S * 2,
            check=False,
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def wait(self, timeout_s: float = DONE_WITHIN_S) -> None:
        """Wait as the verb does, in this process: until all is searchable and every closed session summarised."""
        progress, seen = self.progress(), list[State]()

        def is_done() -> bool:
            seen[:] = [progress.state()]
            return not seen[0].is_waiting

        eventually(is_done, lambda: f"all is done: {seen}", within_s=timeout_s)

    def retrieve(self, query: str, scope: str, *arguments: str) -> list[dict[str, Any]]:
        """Ask in a process of its own."""
        hits: list[dict[str, Any]] = json.loads(
            self.run("retrieve", query, "--scope", scope, "--json", *arguments).stdout
        )["hits"]
        return hits

    def stats(self) -> dict[str, dict[str, Any]]:
        """What happened to every event, as `turnstream stats --json` prints it."""
        return operate.statistics(self.effective())
