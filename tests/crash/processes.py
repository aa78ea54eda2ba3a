"""An ingester and workers as the test's own children, started again at once: the supervisor would wait.

They are forked from a process that has imported everything and used nothing: a tenth of a second instead of two.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

from pipeline.settings import load_settings
from pipeline.shards import LEDGER_FILE, Shards
from workers.worker import THREAD_VARIABLES

_IMPORTED_BEFORE_THE_FORK = [
    "pytest", "celery.bin.celery", "celery.app.amqp", "celery.worker.components", "celery.worker.consumer",
    "celery.concurrency.solo", "kombu.transport.redis", "workers.ingester", "workers.worker", "workers.cli.operate",
    "pipeline.embed.hashing", "faiss", "tokenizers", "semantic_text_splitter",
]  # fmt: skip
_PR_SET_PDEATHSIG = 1


class Spawner:
    """Forks children quickly; each is ended by its pid, the rest by `end`, and all of them with the tests."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._all: list[ForkServerProcess] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED_BEFORE_THE_FORK)
        with mock.patch.dict(os.environ, dict.fromkeys(THREAD_VARIABLES, "1")):
            forkserver.ensure_running()

    def ingester(self, environment: Mapping[str, str], name: str = "i1") -> ForkServerProcess:
        """Fork an ingester."""
        return self.start(run_ingester, name, environment=environment)

    def worker(self, environment: Mapping[str, str], name: str = "w1") -> ForkServerProcess:
        """Fork a worker that summarises too."""
        return self.start(run_worker, name, environment=environment)

    def start(
        self, run: Callable[..., None], *arguments: object, environment: Mapping[str, str]
    ) -> ForkServerProcess:
        """Fork a child that calls a module's function with this environment; its output goes to the log."""
        child = self._context.Process(
            target=_become, args=(run, arguments, dict(environment), str(self._log)), daemon=True
        )
        child.start()
        self._all.append(child)
        return child

    def end(self) -> None:
        """End what still runs."""
        for child in self._all:
            child.kill()
        for child in self._all:
            child.join()
        self._all.clear()


def run_ingester(name: str) -> None:
    """Be an ingester."""
    from workers import ingester  # noqa: PLC0415 - imported before the fork, not by the tests

    ingester.run(load_settings(), name=name)


def run_worker(name: str) -> None:
    """Be a worker."""
    from workers import worker  # noqa: PLC0415 - as above

    worker.run(load_settings(), name=name, summarises=True)


def _become(run: Callable[..., None], arguments: tuple[object, ...], environment: dict[str, str], log: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # its parent ends when the tests do
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    run(*arguments)


def rows(data_dir: Path, statement: str) -> list[tuple[Any, ...]]:
    """Ask every ledger the same."""
    found: list[tuple[Any, ...]] = []
    for folder in Shards(data_dir).walk():
        with closing(apsw.Connection(str(folder / LEDGER_FILE))) as connection:
            connection.set_busy_timeout(5_000)
            found += connection.execute(statement).fetchall()
    return found
