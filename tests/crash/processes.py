"""An ingester and workers as the test's own children, started again at once: the supervisor would wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from pipeline.errors import TransientError
from pipeline.shards import LEDGER_FILE, Shards
from tests.running import RunningPipeline

INGESTER = ("workers.cli", "ingester", "--name", "i1")


class Processes:
    """Children that see one pipeline's settings; each is ended by its pid."""

    def __init__(self, pipeline: RunningPipeline, log: Path) -> None:
        self._environment = pipeline.environment
        self._log = log
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, *module_and_arguments: str) -> subprocess.Popen[bytes]:
        """Start one."""
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", *module_and_arguments], env=self._environment, stdout=log, stderr=log
            )
        self._all.append(child)
        return child

    def end(self) -> None:
        """End what still runs."""
        for child in self._all:
            if child.poll() is None:
                child.kill()
            child.wait()


def rows(data_dir: Path, statement: str) -> list[tuple[Any, ...]]:
    """Ask every ledger the same."""
    found: list[tuple[Any, ...]] = []
    for folder in Shards(data_dir).walk():
        with closing(apsw.Connection(str(folder / LEDGER_FILE))) as connection:
            connection.set_busy_timeout(5_000)
            found += connection.execute(statement).fetchall()
    return found


def eventually(holds: Callable[[], Any], within_s: float = 60.0) -> Any:
    """Wait until something holds; gives it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if value := holds():
                return value
        except TransientError:
            pass
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)
