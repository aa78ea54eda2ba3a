"""The parts of a chaos run: who publishes, who asks, who kills and stops, and what is measured meanwhile."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol, Self

import apsw

from pipeline.embed.hashing import HashingEmbedder
from pipeline.errors import TransientError
from pipeline.ledger.connection import connect
from pipeline.publish import Publisher
from pipeline.records import Event, Scope, Turn
from pipeline.shards import Shards
from retrieval import open_memory
from tests.crash.author import N_SCOPES, Author, Expected
from tests.crash.background import Background
from tests.crash.processes import Spawner
from tests.eventually import eventually
from tests.running import RunningPipeline
from workers import liveness
from workers.embedded import EmbeddedServer

SERVER, INGESTER, WORKER = "valkey", "ingester", "worker"
QUESTIONS = ["violin at the harbour", "copper thunder", "who was on the glacier", "walnut"]
_REPLY_WITHIN_S = 2.0
_TICK_S = 0.1
_AT_WORK_S = 0.5
_MOST_OPEN_PROBES = 3
"""Kills from which it has not recovered yet before another: a slow machine is given the time it needs."""
_PROBES = Scope("probe", "p")


class Host(Protocol):
    """Processes that are killed, and whoever starts them again."""

    pipeline: RunningPipeline
    least_age_s: float

    def pids(self) -> dict[str, list[int]]:
        """Give the running processes by what they are."""

    def tend(self) -> None:
        """Start again who is to be started by hand."""


class Supervised:
    """`turnstream up`, which starts again whoever dies; killed is who has lived so long that it does so at once."""

    least_age_s = 5.5

    def __init__(self, data_dir: Path, log: Path, settings: dict[str, str]) -> None:
        self.pipeline = RunningPipeline(data_dir, settings=settings, log=log)

    def __enter__(self) -> Self:
        self.pipeline.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.pipeline.stop() == 0

    def pids(self) -> dict[str, list[int]]:
        """Give the running processes by what they are."""
        return self.pipeline.pids()

    def tend(self) -> None:
        """Do nothing: that is its work."""


class Forked:
    """The same processes without the wait of a supervisor and of imports: several times as many kills in the time."""

    least_age_s = 0.5

    def __init__(self, data_dir: Path, log: Path, settings: dict[str, str]) -> None:
        self.pipeline = RunningPipeline(data_dir, settings=settings, log=log)
        self._spawner = Spawner(log)
        self._server = EmbeddedServer(data_dir)
        self._server_process: subprocess.Popen[bytes] | None = None
        self._starts = {INGESTER: self._spawner.ingester, WORKER: self._spawner.worker}
        self._children: dict[tuple[str, str], ForkServerProcess] = {}

    def __enter__(self) -> Self:
        self.tend()
        self._server.wait_ready(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._spawner.end()
        if self._server_process is not None:
            self._server_process.kill()
            self._server_process.wait()

    def pids(self) -> dict[str, list[int]]:
        """Give the running processes by what they are."""
        found: dict[str, list[int]] = {SERVER: [], INGESTER: [], WORKER: []}
        if self._server_process is not None and self._server_process.poll() is None:
            found[SERVER].append(self._server_process.pid)
        for (kind, _), child in self._children.items():
            if child.is_alive() and child.pid is not None:
                found[kind].append(child.pid)
        return found

    def tend(self) -> None:
        """Start again at once whoever died."""
        if self._server_process is None or self._server_process.poll() is not None:
            self._server_process = subprocess.Popen(self._server.command(), env=self.pipeline.environment)
        for kind, number in itertools.product(self._starts, range(2)):
            name = f"{kind}-{number}"
            child = self._children.get((kind, name))
            if child is None or not child.is_alive():
                assert child is None or child.exitcode == -signal.SIGKILL, f"{name} ended with {child.exitcode}"
                self._children[kind, name] = self._starts[kind](self.pipeline.environment, name)


class Clerk(Background):
    """Publishes what the author writes at a steady rate, each event until it is accepted."""

    def __init__(self, pipeline: RunningPipeline, author: Author, *, per_s: float, at_once: int = 10) -> None:
        super().__init__()
        self.expected = Expected()
        self.accepted_at: dict[str, float] = {}
        self.n_accepted = self.n_refused = 0
        self._publisher = Publisher(pipeline.url, attempts=1, timeout_s=_REPLY_WITHIN_S)
        self._events: Iterator[Event] = author.events()
        self._at_once = at_once
        self._wait_s = at_once / per_s
        self._next = self._since = 0.0
        self.per_s = 0.0

    def __enter__(self) -> Self:
        self._next = self._since = time.monotonic()
        return super().__enter__()

    def step(self) -> None:
        """Publish a few, and wait for the next ones' time."""
        some = [next(self._events) for _ in range(self._at_once)]
        while not self._is_accepted(some):
            self.n_refused += 1
            time.sleep(0.05)
        now = time.monotonic()
        for event in some:
            self.accepted_at.setdefault(event.event_id, now)
            self.expected.add(event)
        self.n_accepted += len(some)
        self.per_s = self.n_accepted / (now - self._since)
        self._next += self._wait_s
        self.stopping.wait(max(0.0, self._next - now))

    def _is_accepted(self, some: Sequence[Event]) -> bool:
        try:
            self._publisher.publish_events(some)
        except TransientError:
            return False
        return True


class Asker(Background):
    """Asks all the time; a question that raises ends the run."""

    def __init__(self, pipeline: RunningPipeline, *, pause_s: float = 0.02) -> None:
        super().__init__()
        self.n_answers = 0
        self._pause_s = pause_s
        self._memory = open_memory(settings=pipeline.effective(), embedder=HashingEmbedder())

    def step(self) -> None:
        """Ask one question in one scope."""
        scope = Scope("user", f"u{self.n_answers % N_SCOPES}")
        self._memory.retrieve(QUESTIONS[self.n_answers % len(QUESTIONS)], scope)
        self.n_answers += 1
        time.sleep(self._pause_s)


class LedgerWatch(Background):
    """Notes when each event is first seen in a ledger, looking some twenty times a second."""

    def __init__(self, pipeline: RunningPipeline) -> None:
        super().__init__()
        self.seen_at: dict[str, float] = {}
        self._paths = [Shards(pipeline.data_dir).ledger_path(Scope("user", f"u{n}")) for n in range(N_SCOPES)]
        self._open: dict[Path, tuple[apsw.Connection, int]] = {}

    def step(self) -> None:
        """Look at each ledger once."""
        for path in self._paths:
            if path not in self._open and path.exists():
                self._open[path] = connect(path, query_only=True), 0
            if path in self._open:
                connection, last = self._open[path]
                rows = connection.execute("SELECT turn_offset, event_id FROM turns WHERE turn_offset > ?", (last,))
                for offset, event_id in rows.fetchall():
                    self.seen_at.setdefault(str(event_id), time.monotonic())
                    last = max(last, int(offset))
                self._open[path] = connection, last
        time.sleep(0.05)


class Probes:
    """One turn published right after each kill: how long until it is searchable."""

    def __init__(self, pipeline: RunningPipeline) -> None:
        self.seconds: list[float] = []
        self.turns: list[Turn] = []
        self._since: dict[str, float] = {}
        self._refused: list[Turn] = []
        self._publisher = Publisher(pipeline.url, attempts=1, timeout_s=_REPLY_WITHIN_S)
        self._path = Shards(pipeline.data_dir).ledger_path(_PROBES)

    @property
    def n_open(self) -> int:
        """How many are not searchable yet."""
        return len(self._since)

    def begin(self) -> None:
        """Publish one now."""
        name = f"probe-{len(self.turns)}"
        turn = Turn(scope=_PROBES, session_id="p", role="user", content=name, timestamp=1.7e9, event_id=name)
        self.turns.append(turn)
        self._refused.append(turn)
        self._since[name] = time.monotonic()

    def look(self) -> None:
        """Publish what was refused, and note what is searchable by now."""
        try:
            while self._refused:
                self._publisher.publish(self._refused[0])
                self._refused.pop(0)
        except TransientError:
            return
        if self._since and self._path.exists():
            with closing(connect(self._path, query_only=True)) as connection:
                found = connection.execute("SELECT event_id FROM turns WHERE state = 2").fetchall()
            for (name,) in found:
                if (since := self._since.pop(str(name), None)) is not None:
                    self.seconds.append(time.monotonic() - since)


class Hand:
    """Kills and stops whom chance names, of those that have lived long enough."""

    def __init__(self, host: Host, chance: random.Random, probes: Probes, *, pause_s: tuple[float, float]) -> None:
        self._host = host
        self._chance = chance
        self._probes = probes
        self._pause_s = pause_s
        self._plan: list[Callable[[], bool]] = []
        self._seen_at: dict[int, float] = {}
        self._at_work_since: dict[int, float] = {}
        self._stopped_until: dict[int, float] = {}
        self._next = time.monotonic()
        self.n_done = 0

    def plan(self, n: int, kinds: Sequence[str], *, stop_s: tuple[float, float] | None = None) -> None:
        """Intend n kills among these kinds, or with ``stop_s`` n stops of so many seconds, in between the others."""
        self._plan += [lambda: self._hit(kinds, stop_s)] * n
        self._chance.shuffle(self._plan)

    def wait_until_at_work(self) -> None:
        """Wait until a turn published now is searchable: the first start is no recovery."""
        self._probes.begin()
        self.calm()
        self._probes.seconds.clear()

    def rage(self, *, for_s: float | None = None) -> None:
        """Do all that was intended, or what can be done of it in so many seconds; what was stopped goes on then."""
        until = math.inf if for_s is None else time.monotonic() + for_s
        try:
            while (self._plan or self._stopped_until or for_s is not None) and time.monotonic() < until:
                self._step()
                time.sleep(_TICK_S)
        finally:
            self._release(math.inf)

    def _step(self) -> None:
        self._host.tend()
        now = time.monotonic()
        self._release(now)
        for pid in itertools.chain.from_iterable(self._host.pids().values()):
            self._seen_at.setdefault(pid, now)
        for sign in liveness.signs(self._host.pipeline.data_dir):
            self._at_work_since.setdefault(sign.pid, now)
        if now >= self._next and self._probes.n_open < _MOST_OPEN_PROBES and self._act():
            self._next = now + self._chance.uniform(*self._pause_s)
        self._probes.look()

    def _act(self) -> bool:
        """Do the next thing intended for which there is somebody."""
        for place in reversed(range(len(self._plan))):
            if self._plan[place]():
                del self._plan[place]
                self.n_done += 1
                return True
        return False

    def calm(self) -> None:
        """Wait until every probe is searchable."""

        def are_searchable() -> bool:
            self._host.tend()
            self._probes.look()
            return not self._probes.n_open

        eventually(are_searchable, lambda: f"{self._probes.n_open} turns are searchable")

    def _hit(self, kinds: Sequence[str], stop_s: tuple[float, float] | None) -> bool:
        alive = ((kind, pid) for kind, pids in self._host.pids().items() if kind in kinds for pid in pids)
        victims = [pid for kind, pid in alive if self._is_worth_it(kind, pid)]
        if not victims:
            return False
        pid = self._chance.choice(victims)
        if stop_s is not None:
            self._stopped_until[pid] = time.monotonic() + self._chance.uniform(*stop_s)
            return _signal(pid, signal.SIGSTOP)
        self._probes.begin()
        return _signal(pid, signal.SIGKILL)

    def _is_worth_it(self, kind: str, pid: int) -> bool:
        """Tell whether it has started and had time to be in the middle of something."""
        now = time.monotonic()
        works_since = self._seen_at.get(pid, now) if kind == SERVER else self._at_work_since.get(pid, now)
        is_old = now - self._seen_at.get(pid, now) >= self._host.least_age_s
        return is_old and now - works_since >= _AT_WORK_S and pid not in self._stopped_until

    def _release(self, now: float) -> None:
        for pid, until in list(self._stopped_until.items()):
            if now >= until:
                del self._stopped_until[pid]
                _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it ended by itself: somebody was faster
        return False
    return True
