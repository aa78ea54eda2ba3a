"""What the server holds taken away, by hand or with the server itself: the group is made again, and all goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.errors import TransientError
from pipeline.publish import Publisher
from pipeline.records import Scope
from pipeline.stream import connect
from tests.conftest import RunningServer, StartServer
from tests.crash.background import Background
from tests.crash.conftest import Row
from tests.crash.ledger_state import state_of
from tests.crash.live import Live, live, numbered
from tests.eventually import eventually

ROW = "FLUSHALL, DEL, NOGROUP, an empty server"
SCOPES = [Scope("user", f"u{number}") for number in range(4)]
EVENT_IDS = "SELECT event_id FROM turns"


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    """A server of this test's own: it is taken away."""
    return start_server("valkey", "--appendfsync", "always")


@pytest.fixture
def site(server: RunningServer, tmp_path: Path) -> Iterator[Live]:
    with live(server, tmp_path, REDIS__TIMEOUT_S="2") as started:
        started.ingester()
        started.worker()
        yield started


class Platform(Background):
    """Publishes numbered turns without end; one that was refused is published again until it is accepted."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        self._publisher = publisher
        self.accepted: list[str] = []
        self.refused: set[str] = set()

    def step(self) -> None:
        """Publish the next one, or the last one again."""
        number = len(self.accepted)
        turn = numbered(number, SCOPES[number % len(SCOPES)])
        try:
            self._publisher.publish(turn)
        except TransientError:
            self.refused.add(turn.event_id)
        else:
            self.accepted.append(turn.event_id)
        self.stopping.wait(0.005)


def remove(site: Live, server: RunningServer) -> dict[str, Callable[[], object]]:
    """The ways to lose what the server holds."""

    def replace() -> None:
        server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        server.start()

    def call(command: str, *arguments: str) -> Callable[[], object]:
        def send() -> object:
            with connect(server.url, timeout_s=5) as client:
                return client.execute_command(command, *arguments)  # type: ignore[no-untyped-call]

        return send

    return {
        "FLUSHALL": call("FLUSHALL"),
        "DEL": call("DEL", site.stream.name),
        "NOGROUP": call("XGROUP DESTROY", site.stream.name, site.stream.group),
        "an empty server": replace,
    }


@pytest.mark.timeout(240)
def test_what_the_server_loses_costs_nothing_that_was_ingested(
    site: Live, server: RunningServer, row: Row, long: int
) -> None:
    """Somebody cleans up by hand, or the machine of the server is a new one; the platform goes on publishing."""
    row.expect(ROW)
    kinds = remove(site, server)
    done: list[str] = []
    with Publisher(server.url, attempts=1, timeout_s=2) as publisher, Platform(publisher) as platform:
        for kind in [*kinds, *kinds, "FLUSHALL", "an empty server"] * long:
            eventually(lambda: len(site.rows(EVENT_IDS)) > 20 + len(done))
            kinds[kind]()
            n_accepted = len(platform.accepted)
            eventually(lambda n=n_accepted: len(platform.accepted) > n + 5)
            later = set(platform.accepted[n_accepted + 1 :])  # the one at hand may have been accepted before
            eventually(lambda later=later: later <= ids(site))
            done.append(kind)
    eventually(site.is_done)
    found = [event_id for (event_id,) in site.rows(EVENT_IDS)]
    assert len(found) == len(set(found)) == site.totals()["applied"]
    unread = set(platform.accepted) - set(found)  # what the server had accepted, and lost before it was ingested
    assert len(unread) < 20 * len(done)
    assert platform.refused <= set(found), "what was not accepted was published again"
    assert site.wrong() == []
    row(ROW, n=len(done), outcome=f"group made again, {len(platform.refused)} refused events resent,"
        f" nothing ingested touched; {len(unread)} unread ones went with the server")  # fmt: skip


def ids(site: Live) -> set[str]:
    return {event_id for (event_id,) in site.rows(EVENT_IDS)}


@pytest.mark.timeout(120)
def test_a_lost_server_leaves_the_ledgers_as_they_are(site: Live, server: RunningServer) -> None:
    """Published again after the loss, nothing is applied twice; dead letters alone are gone with it."""
    with site.pipeline.publisher() as publisher:
        told = [numbered(number, SCOPES[number % len(SCOPES)]) for number in range(40)]
        publisher.publish_many(told)
        eventually(site.is_done)
        eventually(lambda: len(site.rows("SELECT 1 FROM traces")) == 40)
        before = state_of(site.data_dir)
        for remove_all in remove(site, server).values():
            remove_all()
            publisher.publish_many(told)
            eventually(lambda: site.stream.unread() == 0)
    eventually(lambda: site.totals().get("duplicate", 0) >= 160)
    assert state_of(site.data_dir) == before
    assert site.totals()["applied"] == 40
