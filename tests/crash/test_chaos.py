"""Chaos: processes and server killed and stopped at random while events arrive late, twice, edited and deleted.

Two forms. Under `turnstream up`, which starts again whoever dies; and with the same processes forked by the test, for
several times as many kills in the time. What must be there in the end is worked out by `author.Expected`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from pipeline import log
from tests.crash.author import Author, Kept
from tests.crash.chaos import (
    INGESTER,
    SERVER,
    WORKER,
    Asker,
    Clerk,
    Forked,
    Hand,
    Host,
    LedgerWatch,
    Probes,
    Supervised,
)
from tests.crash.conftest import Row
from tests.crash.logs import errors_in
from tests.crash.processes import rows
from workers.checkup import verify_data
from workers.cli import common

SEED = 20_261_130
KILLED, SERVER_KILLED = "SIGKILL of ingesters and workers", "SIGKILL of the embedded server, restarted"
STOPPED, LOADED = "SIGSTOP of server, ingesters, workers", "load while being killed"
RECOVERED_WITHIN_S = 15.0
LAG_P99_S = 2.0
PER_S = 1_000
SETTINGS = {
    "TURNSTREAM_WORKERS__N_WORKERS": "2",
    "TURNSTREAM_WORKERS__N_INGESTERS": "2",
    # One turn that is hit by three kills is taken for their cause; here none is.
    "TURNSTREAM_WORKERS__MAX_ATTEMPTS": "20",
    "TURNSTREAM_STREAM__CLAIM_IDLE_MS": "2000",
    "TURNSTREAM_LOG_LEVEL": "warning",
}
FOUND = (
    "SELECT turn_id, (SELECT value FROM meta WHERE key = 'scope'), session_id, revision, event_id, content, state,"
    " (SELECT count(*) FROM traces WHERE traces.turn_offset = turns.turn_offset) FROM turns"
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nobody reads a line per publication."""
    log.configure("warning", "json", process="test")
    yield
    structlog.reset_defaults()


def require_all_once(host: Host, clerk: Clerk, probes: Probes) -> str:
    """Wait until all is done; everything accepted is there once, as the model says, and nothing else is wrong."""
    host.pipeline.wait()
    for turn in probes.turns:
        clerk.expected.add(turn)
    expected = clerk.expected.turns()
    found: dict[str, Kept] = {}
    n_doubled = 0
    for turn_id, scope, session_id, revision, event_id, content, state, n_traces in rows(
        host.pipeline.data_dir, FOUND
    ):
        n_doubled += turn_id in found or n_traces != 1
        assert state == 2, f"{turn_id} is in state {state}"
        found[turn_id] = (scope, session_id, revision, event_id, content)
    n_lost = len(expected.keys() - found.keys())
    assert (n_lost, n_doubled) == (0, 0)
    assert found == expected
    assert verify_data(host.pipeline.effective(), idle=True) == []
    backlog = common.stream_of(host.pipeline.effective()).backlog()
    assert (backlog.unread, backlog.dead) == (0, 0)
    return "0 lost, 0 doubled"


def recovery(probes: Probes, patience: float) -> str:
    """Say how long it took from a kill until a turn published after it was searchable."""
    assert max(probes.seconds) <= RECOVERED_WITHIN_S * patience
    return f"searchable after p50 {statistics.median(probes.seconds):.1f} s, at most {max(probes.seconds):.1f} s"


@dataclass(frozen=True)
class Plan:
    """How often whom, for a host."""

    n_kills: int
    n_server_kills: int
    n_stops: int
    stop_s: tuple[float, float]
    pause_s: tuple[float, float]


def rage(host: Host, plan: Plan, seed: int, row: Row, named: str, patience: float) -> None:
    """Kill and stop as planned while events arrive; then nothing is lost or doubled, and a row says so for each."""
    row.expect(f"{KILLED}{named}")
    probes = Probes(host.pipeline)
    clerk, asker = Clerk(host.pipeline, Author(random.Random(seed)), per_s=100), Asker(host.pipeline)
    hand = Hand(host, random.Random(SEED), probes, pause_s=plan.pause_s)
    hand.plan(plan.n_kills, [INGESTER, WORKER])
    hand.plan(plan.n_server_kills, [SERVER])
    hand.plan(plan.n_stops, [SERVER, INGESTER, WORKER], stop_s=plan.stop_s)
    hand.wait_until_at_work()
    with clerk, asker:
        hand.rage()
        hand.calm()
    once = require_all_once(host, clerk, probes)
    row(f"{KILLED}{named}", n=plan.n_kills, outcome=f"{once}; {recovery(probes, patience)}")
    none_lost = f"0 of {clerk.n_accepted} acknowledged events lost"
    row(f"{SERVER_KILLED}{named}", n=plan.n_server_kills, outcome=none_lost)
    row(STOPPED, n=plan.n_stops, outcome=f"resumes by itself; {asker.n_answers} answers, 0 errors")


@pytest.mark.timeout(900)
def test_nothing_is_lost_under_up_whoever_is_killed(
    data_dir: Path, tmp_path: Path, row: Row, long: int, patience: float
) -> None:
    """Whoever runs this in production sleeps: it comes back by itself."""
    stop_s = (0.5, 3.0) if long == 1 else (1.0, 60.0)
    plan = Plan(30 * long, 8 * long, 8 * long, stop_s, pause_s=(0.2, 1.5))
    with Supervised(data_dir, tmp_path / "log", SETTINGS) as host:
        rage(host, plan, SEED, row, ", under up", patience)
    assert errors_in(tmp_path / "log") == []


@pytest.mark.timeout(900)
def test_nothing_is_lost_when_killed_every_half_second(
    data_dir: Path, tmp_path: Path, row: Row, long: int, patience: float
) -> None:
    """Started again at once, so that more is killed in the middle of something."""
    plan = Plan(70 * long, 32 * long, 6 * long, (0.5, 3.0), pause_s=(0.1, 0.6))
    with Forked(data_dir, tmp_path / "log", SETTINGS) as host:
        rage(host, plan, SEED + 1, row, "", patience)
    assert errors_in(tmp_path / "log") == []


@pytest.mark.timeout(900)
def test_a_kill_under_load_delays_few_events(
    data_dir: Path, tmp_path: Path, row: Row, long: int, patience: float
) -> None:
    """A process killed at work must not be noticed by those who write and ask meanwhile."""
    seconds = 20 if long == 1 else 60
    row.expect(LOADED)
    author, chance = Author(random.Random(SEED + 2), share_deleted=0.0005), random.Random(SEED)
    with Supervised(data_dir, tmp_path / "log", SETTINGS) as host:
        probes = Probes(host.pipeline)
        clerk, watch = Clerk(host.pipeline, author, per_s=1_050, at_once=100), LedgerWatch(host.pipeline)
        asker = Asker(host.pipeline, pause_s=0.1)
        hand = Hand(host, chance, probes, pause_s=(3.0, 5.0))
        hand.plan(seconds, [INGESTER, WORKER])
        hand.wait_until_at_work()
        with watch:
            with clerk, asker:
                hand.rage(for_s=seconds)
            hand.calm()
            once = require_all_once(host, clerk, probes)
    lags = [watch.seen_at[e] - clerk.accepted_at[e] for e in clerk.accepted_at.keys() & watch.seen_at.keys()]
    p99 = statistics.quantiles(lags, n=100)[-1]
    row(
        f"{LOADED}, {seconds} s, {hand.n_done} kills",
        n=clerk.n_accepted,
        outcome=f"{once}; {clerk.per_s:.0f} events/s, lag p99 {p99:.2f} s; {asker.n_answers} answers, 0 errors",
    )
    assert hand.n_done > 0
    assert p99 < LAG_P99_S * patience
    assert clerk.per_s >= PER_S / patience
