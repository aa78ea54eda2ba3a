"""Doorbells lost and doubled: what they ring for is done all the same, and once."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.records import Scope
from pipeline.stream import connect
from tests.conftest import RunningServer
from tests.crash.background import Background
from tests.crash.conftest import Row
from tests.crash.ledger_state import state_of
from tests.crash.live import EPOCH_S, Live, live, numbered
from tests.crash.poisonable_worker import WAITS_FOR
from tests.eventually import eventually
from tests.running import DONE_WITHIN_S
from workers import app as doorbells

N_SCOPES = 100
N_TIMES = 50
SEARCHABLE_WITHIN_S = 10.0
AS_IN_PRODUCTION_S = "2"


@pytest.fixture
def site(valkey_server: RunningServer, tmp_path: Path) -> Iterator[Live]:
    """An ingester that sweeps as often as it does in production."""
    with live(valkey_server, tmp_path, WORKERS__SWEEP_EVERY_S=AS_IN_PRODUCTION_S) as started:
        started.ingester()
        yield started


class Thief(Background):
    """Empties the workers' queues as soon as something lies in them; ``stolen`` are the scopes it was to ring for."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = connect(url, timeout_s=5)
        self.stolen: set[str] = set()

    def step(self) -> None:
        """Take what lies there now."""
        with self._client.pipeline(transaction=True) as both:
            for queue in doorbells.QUEUES:
                both.lrange(queue, 0, -1)
                both.delete(queue)
            replies = both.execute()
        for message in (message for found in replies[::2] for message in found):
            arguments, *_ = json.loads(base64.b64decode(json.loads(message)["body"]))
            self.stolen.update(arguments[0])
        self.stopping.wait(0.002)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._client.close()


@pytest.mark.timeout(180)
def test_turns_whose_doorbells_were_lost_are_searchable_soon(
    site: Live, tmp_path: Path, row: Row, long: int, patience: float
) -> None:
    """The worker is busy meanwhile; its queue is emptied under its nose."""
    row.expect("lost doorbells")
    gate = tmp_path / "gate"
    gate.touch()
    scopes = [Scope("user", f"lost-{number}") for number in range(N_SCOPES * long)]
    site.worker()
    with site.pipeline.publisher() as publisher:
        publisher.publish(numbered(0, Scope("user", "busy"), text=f"{WAITS_FOR}{gate}"))
        eventually(lambda: site.rows("SELECT 1 FROM turns WHERE state = 1"))
        with Thief(site.pipeline.url) as thief:
            for number, scope in enumerate(scopes):
                publisher.publish(numbered(number, scope))
            eventually(lambda: thief.stolen >= {scope.key for scope in scopes})
            gate.unlink()
    start = time.monotonic()
    eventually(site.is_done, within_s=SEARCHABLE_WITHIN_S * patience)
    took_s = time.monotonic() - start
    assert site.rows("SELECT count(*) FROM turns WHERE state <> 2") == [(0,)] * (len(scopes) + 1)
    assert site.wrong() == []
    row("lost doorbells", n=len(scopes), outcome=f"searchable {took_s:.1f} s after the last theft")


@pytest.mark.timeout(180)
def test_doorbells_doubled_fifty_times_change_nothing(site: Live, row: Row, long: int) -> None:
    """Half of the scopes are rung for once, half fifty times, by every bell there is, to two workers at once."""
    row.expect(f"doubled doorbells × {N_TIMES}")
    once, often = ([Scope("user", f"{kind}-{n:04}") for n in range(N_SCOPES * long)] for kind in ("once", "often"))
    with site.pipeline.publisher() as publisher:
        for scope in [*once, *often]:
            publisher.publish_many(numbered(n, scope) for n in range(2))
            publisher.close_session(scope, "s", timestamp=EPOCH_S + 9)
    eventually(lambda: site.stream.unread() == 0)
    with closing(doorbells.make_app(site.pipeline.url, timeout_s=5)) as app:
        for _ in range(N_TIMES):
            for task in doorbells.QUEUES:
                doorbells.ring(app, task, [scope.key for scope in often], scopes_per_task=50)
    site.worker("w1")
    site.worker("w2")
    site.pipeline.wait(DONE_WITHIN_S * long)
    eventually(lambda: all(site.stream.n_waiting(queue) == 0 for queue in doorbells.QUEUES))
    states = state_of(site.data_dir)
    for one, other in zip(once, often, strict=True):
        expected = json.loads(json.dumps(states[one.key], default=repr).replace(one.id, other.id))
        assert json.loads(json.dumps(states[other.key], default=repr)) == expected
    assert {x[0] for x in site.rows("SELECT attempts FROM turns")} == {1}
    assert {x[0] for x in site.rows("SELECT summary_id FROM summaries")} == {1}
    assert site.wrong() == []
    row(f"doubled doorbells × {N_TIMES}", n=len(often), outcome="same state as one run")
