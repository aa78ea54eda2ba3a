"""The walk: killed at every named point, at its first, second and third passing; nobody can tell afterwards.

The same events are published each time, in rounds: turns of three scopes, one of them twice, an edit, a deletion, the
closing of a session, and an entry that is no event. Whoever was killed is started again, and the end is compared with
that of a run in which nobody was.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import contract
from pipeline.crash_points import CrashPoint
from pipeline.embed.hashing import HashingEmbedder
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.records import Event, Scope, SessionClosed, Turn, TurnDeleted
from pipeline.registry import Registry
from pipeline.shards import Shards
from pipeline.stream import connect
from retrieval import open_memory
from tests.conftest import RunningServer, StartServer
from tests.crash.ledger_state import State, state_of
from tests.crash.logs import errors_in
from tests.crash.processes import Spawner
from tests.running import RunningPipeline
from workers.checkup import verify_data
from workers.cli import common

ROW = "named kill points × 3"
PASSINGS = (1, 2, 3)
N_ROUNDS = 3
TOWNS = ("Porto", "Lisbon", "Faro")
DONE_WITHIN_S = 30.0
SCOPES = [Scope("user", "u1"), Scope("user", "u10"), Scope("thread", "u1")]
EPOCH_S = 1_700_000_000
N_TALKED = 3
OTHER_GROUP = "another"
QUERIES = ["the harbour in round 1", "lanterns at night", "who went home"]
SETTINGS = {
    "TURNSTREAM_INDEX__MIN_TAIL": "2",
    "TURNSTREAM_INDEX__GROWTH": "0",
    "TURNSTREAM_STREAM__BLOCK_MS": "50",
    "TURNSTREAM_SUMMARY__SETTLE_S": "0",
    "TURNSTREAM_SUMMARY__THEME_TURNS": "1",
    "TURNSTREAM_WORKERS__SWEEP_EVERY_S": "0.1",
    "TURNSTREAM_LOG_LEVEL": "warning",
    "TURNSTREAM_LOG_FORMAT": "json",
}
UNCONDENSED = (
    "SELECT 1 FROM sessions LEFT JOIN condensed USING (session_id)"
    " WHERE closed AND sessions.version IS NOT condensed.version"
)
OF_THE_INGESTER = {
    CrashPoint.AFTER_READ, CrashPoint.AFTER_DEAD_LETTER, CrashPoint.BEFORE_BEGIN, CrashPoint.AFTER_INSERT,
    CrashPoint.AFTER_COMMIT, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_MARK, CrashPoint.AFTER_ACK,
    CrashPoint.BEFORE_TRIM, CrashPoint.AFTER_TRIM,
}  # fmt: skip
OF_BOTH = {CrashPoint.BEFORE_RING, CrashPoint.AFTER_RING}
CASES = [
    *(("ingester", point) for point in CrashPoint if point in OF_THE_INGESTER | OF_BOTH),
    *(("worker", point) for point in CrashPoint if point not in OF_THE_INGESTER),
]


def events_of(number: int) -> Iterator[Event]:
    """One round: every kind of event, so that every point is passed in each."""
    for scope in SCOPES:
        yield said(scope, number, "harbour", met(scope, number))
        yield said(scope, number, "lantern", f"Round {number}: {scope.kind} lanterns burnt all night.")
        yield said(scope, number, "goodbye", f"We said goodbye to round {number}.")
    first = SCOPES[0]
    yield said(first, number, "harbour", met(first, number))
    yield said(first, number, "lantern", f"Round {number}: the lanterns went out, and all went home.", revision=1)
    about = {"scope": first, "session_id": "s", "timestamp_ms": 1000 * (EPOCH_S + number)}
    yield TurnDeleted(**about, turn_id=f"{number}-goodbye", event_id=f"{number}-delete")
    yield SessionClosed(**about, event_id=f"{number}-close")
    yield from talk(first, number)


def talk(scope: Scope, number: int) -> Iterator[Event]:
    """More of a session that is in the end long enough to have themes."""
    for at in range(N_TALKED):
        for role, content in (
            ("user", f"When does ferry {number} {at} sail?"),
            ("assistant", f"Ferry {at} sails soon."),
        ):
            yield Turn(
                scope=scope, session_id="t", role=role, content=content, timestamp=EPOCH_S + 60 * number + at,
                event_id=f"{number}-{at}-{role}", index=2 * (N_TALKED * number + at) + (role == "assistant"),
            )  # fmt: skip
    yield SessionClosed(scope=scope, session_id="t", timestamp_ms=1000 * (EPOCH_S + number), event_id=f"{number}-end")


def met(scope: Scope, number: int) -> str:
    return f"In round {number} we met {scope.id} at the harbour. I live in {TOWNS[number % N_ROUNDS]}."


def said(scope: Scope, number: int, what: str, content: str, revision: int = 0) -> Turn:
    index = 3 * number + ["harbour", "lantern", "goodbye"].index(what)
    return Turn(
        scope=scope, session_id="s", role="user", content=content, index=index, revision=revision, tags=(what,),
        event_id=f"{number}-{what}-{revision}", turn_id=f"{number}-{what}", timestamp=EPOCH_S + 60 * index + revision,
    )  # fmt: skip


@dataclass
class Lane:
    """A server and a data folder of its own: walks in different lanes do not meet."""

    server: RunningServer
    spawner: Spawner
    folder: Path
    has_second_group: bool = False
    """Another reader of the stream: what ours has acked stays until a trim, which then is a step of its own."""
    n_published: int = 0

    def walk(self, kind: str = "", crash_at: str | None = None) -> Iterator[None]:
        """Publish all rounds while one process is armed; yields while there is nothing to do but wait."""
        self.folder.mkdir(mode=0o700)
        with connect(self.server.url, timeout_s=5) as client:
            client.flushall()
        self.pipeline = RunningPipeline(self.folder, self.server.url, settings=SETTINGS)
        plain = self.pipeline.environment
        armed = plain | ({"TURNSTREAM_CRASH_AT": crash_at} if crash_at else {})
        self.stream = common.stream_of(self.pipeline.effective())
        self.progress = self.pipeline.progress()
        start = {"ingester": self.spawner.ingester, "worker": self.spawner.worker}
        self.stream.ensure_group()
        if self.has_second_group:
            self.stream.client.xgroup_create(self.stream.name, OTHER_GROUP, id="0")
        self.publish(0)  # before anyone is there: a passing with nothing to do would be no test
        running = {of: begin(armed if of == kind else plain) for of, begin in start.items()}
        is_due = crash_at is not None
        for number in range(1, N_ROUNDS + 1):
            deadline = time.monotonic() + DONE_WITHIN_S
            while self.is_at_work() or (is_due and self.has_unpublished()):
                if is_due and (code := running[kind].exitcode) is not None:
                    assert code == -signal.SIGKILL
                    running[kind], is_due = start[kind](plain), False
                assert time.monotonic() < deadline, f"{crash_at}: not done"
                yield
            if number < N_ROUNDS:
                self.publish(number)
        assert not is_due, f"the {kind} did not pass {crash_at}"
        while (
            self.is_publishing() and time.monotonic() < deadline
        ):  # it is not waited for, and is ended before its end
            yield

    def publish(self, number: int) -> None:
        """Publish one round, and an entry that is no event."""
        ids = self.stream.append_many([*map(contract.encode, events_of(number)), b'{"type": "turn"'])
        if self.has_second_group:
            client: Any = self.stream.client
            client.xreadgroup(OTHER_GROUP, "c", {self.stream.name: ">"})
            client.xack(self.stream.name, OTHER_GROUP, *ids)
            self.n_published += len(ids)

    def is_at_work(self) -> bool:
        """Tell whether anything is to be done; also facts and themes, which nobody else waits for."""
        if self.progress.state().is_waiting:
            return True
        path = Shards(self.folder).ledger_path(SCOPES[0])
        with closing(connect_ledger(path, query_only=True)) as connection:
            return connection.execute(UNCONDENSED).fetchone() is not None

    def has_unpublished(self) -> bool:
        """Tell whether a scope was rung for: it is not again before it is published, and no ring is no passing."""
        with closing(Registry(self.folder, create=False)) as registry:
            return registry.waiting().snapshots > 0

    def is_publishing(self) -> bool:
        """Tell whether a file is half written; those that a kill left are removed by the next writer."""
        return any(self.folder.glob("shards/*/*/.*.tmp"))

    def outcome(self, embedder: HashingEmbedder) -> tuple[State, Any, Any]:
        """Check that nothing is wrong; give what the ledgers say, what is answered, what the stream holds."""
        assert verify_data(self.pipeline.effective(), idle=True) == []
        backlog = self.stream.backlog()
        assert backlog.length < self.n_published or not self.has_second_group, "no trim did anything"
        with closing(open_memory(settings=self.pipeline.effective(), embedder=embedder)) as memory:
            answers = [
                (hit.scope, query, hit.text, hit.tags)
                for scope in SCOPES
                for query in QUERIES
                for hit in memory.retrieve(query, scope).hits
            ]
        return state_of(self.folder), answers, (backlog.unread, backlog.dead)


def together(*walks: Iterator[None]) -> None:
    """Go on with each in turn until all are done."""
    running = list(walks)
    while running:
        running = [walk for walk in running if next(walk, StopIteration) is not StopIteration]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def servers(start_server: StartServer) -> list[RunningServer]:
    return [start_server("valkey") for _ in PASSINGS]


@pytest.fixture(scope="module")
def embedder() -> HashingEmbedder:
    return HashingEmbedder()


@pytest.fixture(scope="module")
def undisturbed(
    servers: list[RunningServer], embedder: HashingEmbedder, tmp_path_factory: pytest.TempPathFactory
) -> tuple[State, Any, Any]:
    """What it all comes to when nobody is killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    lane = Lane(servers[0], Spawner(folder / "log"), folder / "data")
    together(lane.walk())
    lane.spawner.end()
    found = lane.outcome(embedder)
    ledgers, answers, stream = found
    assert [len(parts["chunks"]) for _, parts in sorted(ledgers.items())] == [
        3 * N_ROUNDS,
        (2 + 2 * N_TALKED) * N_ROUNDS,
        3 * N_ROUNDS,
    ]
    assert len(ledgers["user/u1"]["summaries"]) == 2
    assert len(ledgers["user/u1"]["facts"]) == N_ROUNDS
    assert len(ledgers["user/u1"]["themes"]) >= 1
    assert {scope for scope, *_ in answers} == set(SCOPES)
    assert stream == (0, N_ROUNDS)
    return found


def test_the_log_tells_of_errors_but_not_of_a_killed_server(tmp_path: Path) -> None:
    """A search that finds nothing proves nothing until it has found something."""
    log = tmp_path / "log"
    reported = '{"level": "error", "event": "library.reported", "error": "%s", "template": "Task %%s raised"}'
    log.write_text("\n".join([
        '{"level": "warning", "event": "doorbell.lost"}', reported % "ConnectionError", reported % "KeyError",
        '{"level": "error", "event": "scope.refused", "reason": "torn"}', "Traceback (most recent call last):",
    ]))  # fmt: skip
    assert [line.split()[0] for line in errors_in(log)] == ["library.reported", "scope.refused", "Traceback"]
    assert "KeyError" in errors_in(log)[0]


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_kill_at_any_point_leaves_no_trace(
    kind: str, point: CrashPoint, servers: list[RunningServer], embedder, undisturbed, tmp_path: Path, row
) -> None:
    """Between any two lines that matter lies a state that nobody planned."""
    row.expect(ROW)
    spawner = Spawner(tmp_path / "log")
    is_trim = point in {CrashPoint.BEFORE_TRIM, CrashPoint.AFTER_TRIM}
    lanes = [
        Lane(server, spawner, tmp_path / f"data-{n}", has_second_group=is_trim)
        for n, server in zip(PASSINGS, servers, strict=True)
    ]
    try:
        together(*(lane.walk(kind, f"{point}:{n}") for n, lane in zip(PASSINGS, lanes, strict=True)))
    finally:
        spawner.end()
    for lane in lanes:
        assert lane.outcome(embedder) == undisturbed
    assert errors_in(tmp_path / "log") == []
    row(ROW, n=len(PASSINGS), outcome="verify clean, same state as without")
