"""Cases that other systems are known to fail, with real processes; each with its right outcome."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.publish import Publisher
from pipeline.records import Scope
from pipeline.stream import connect
from tests import openai_server
from tests.conftest import RunningServer
from tests.crash.conftest import Row
from tests.crash.live import EPOCH_S, Live, live, numbered
from tests.eventually import eventually

U = Scope("user", "u")
CHUNK_SETS = (
    "SELECT turn_id, state, attempts, (SELECT count(*) FROM traces t WHERE t.turn_offset = turns.turn_offset)"
    " FROM turns"
)


@pytest.fixture
def site(valkey_server: RunningServer, tmp_path: Path) -> Iterator[Live]:
    with live(valkey_server, tmp_path, STREAM__CLAIM_IDLE_MS="500") as started:
        yield started


@pytest.mark.timeout(120)
def test_one_event_published_forty_times_is_one_chunk_set_and_one_summary_call(
    valkey_server: RunningServer, tmp_path: Path, row: Row
) -> None:
    """Ten of them while the worker is stopped: its claim must not be given away, nor its session asked for again."""
    row.expect("one event 40 times, 10 while the worker is stopped")
    with openai_server.running() as model:
        model.will(openai_server.ok())
        asked = {"SUMMARY__INVOKER": "openai", "SUMMARY__BASE_URL": model.base_url, "SUMMARY__API_KEY": "k"}
        with live(valkey_server, tmp_path, **asked) as site, site.pipeline.publisher() as publisher:
            site.ingester()
            worker = site.worker(s_per_text=0.5)
            event = numbered(0, U)
            publisher.publish_many([event] * 15)
            eventually(lambda: site.rows("SELECT 1 FROM turns WHERE state = 1"))
            os.kill(worker.pid or 0, signal.SIGSTOP)
            for _ in range(10):
                publisher.publish(event)
            publisher.close_session(U, "s", timestamp=EPOCH_S + 9)
            site.worker("w2")
            eventually(lambda: site.totals().get("duplicate") == 24)
            os.kill(worker.pid or 0, signal.SIGCONT)
            publisher.publish_many([event] * 15)
            site.pipeline.wait()
            eventually(lambda: site.totals().get("duplicate") == 39)
            site.pipeline.wait()
            assert site.rows(CHUNK_SETS) == [("u-0", 2, 1, 1)]
            assert len(model.requests) == 1
            assert site.rows("SELECT count(*) FROM summaries") == [(1,)]
            assert site.wrong() == []
    row("one event 40 times, 10 while the worker is stopped", n=40, outcome="1 chunk set, 1 summary call")


@pytest.mark.timeout(60)
def test_a_client_that_does_not_wait_for_a_slow_worker_doubles_nothing(site: Live, row: Row) -> None:
    """It asks after 1 s whether its turn is there, and publishes it again; the worker takes 2 s."""
    row.expect("client retries after 1 s, worker answers after 2 s")
    site.ingester()
    site.worker(s_per_text=2.0)
    with site.pipeline.publisher() as publisher:
        n_published = 0
        while not site.rows("SELECT 1 FROM turns WHERE state = 2"):
            publisher.publish(numbered(0, U))
            n_published += 1
            time.sleep(1)  # the case: it waits no longer
    eventually(site.is_done)
    assert n_published > 1
    assert site.rows(CHUNK_SETS) == [("u-0", 2, 1, 1)]
    assert site.totals() == {"applied": 1, "duplicate": n_published - 1}
    row("client retries after 1 s, worker answers after 2 s", n=n_published, outcome="1 chunk set")


@pytest.mark.timeout(60)
def test_a_client_whose_server_answers_too_late_doubles_nothing(
    valkey_server: RunningServer, site: Live, row: Row
) -> None:
    """The server, stopped for 2 s, takes each of its tries: several times in the stream, once in the ledger."""
    row.expect("client retries after 1 s, server answers after 2 s")
    site.ingester()
    eventually(lambda: site.stream.unread() == 0)
    with Publisher(site.pipeline.url, timeout_s=1, attempts=5) as publisher:
        publisher.publish(numbered(0, U))
        os.kill(valkey_server.process.pid, signal.SIGSTOP)
        goes_on = threading.Timer(2, os.kill, (valkey_server.process.pid, signal.SIGCONT))
        goes_on.start()
        publisher.publish(numbered(1, U))
        goes_on.join()
    site.worker()
    eventually(lambda: site.is_done() and len(site.rows(CHUNK_SETS)) == 2)
    assert sorted(site.rows(CHUNK_SETS)) == [("u-0", 2, 1, 1), ("u-1", 2, 1, 1)]
    assert site.totals()["applied"] == 2
    row(
        "client retries after 1 s, server answers after 2 s",
        n=site.totals().get("duplicate", 0) + 1,
        outcome="1 turn",
    )


@pytest.mark.timeout(60)
def test_pending_entries_that_maxlen_trims_are_counted_and_reported(site: Live, row: Row) -> None:
    """They are gone, and nobody could tell which; whoever published them must hear that there were any."""
    row.expect("pending entries trimmed by MAXLEN")
    with site.pipeline.publisher() as publisher, connect(site.pipeline.url, timeout_s=5) as client:
        publisher.publish_many(numbered(number, U) for number in range(60))
        site.stream.read("i1", count=20, block_ms=0)  # as the ingester that is started below did before it was killed
        site.stream.read("one that never comes back", count=20, block_ms=0)
        client.xtrim(site.stream.name, maxlen=25, approximate=False)
        site.ingester("i1")
        site.worker()
        eventually(lambda: site.totals().get("lost_before_ingest") == 15)
        eventually(lambda: site.is_done() and site.totals().get("applied") == 25)
    stats = site.pipeline.stats()
    assert stats["events"] == {"applied": 25, "dead_lettered": 20, "lost_before_ingest": 15}
    assert {letter.reason for letter in site.stream.dead_letters()} == {
        "the entry was removed from the stream before it was ingested; publish its event again"
    }
    (lost,) = site.logged("entries.lost")
    assert (lost["n_entries"], lost["level"]) == (15, "error")
    assert stats["stream"]["pending"] == 0
    row("pending entries trimmed by MAXLEN", n=35, outcome="20 dead letters, 15 counted as lost and logged")


@pytest.mark.timeout(60)
def test_entries_of_a_consumer_that_was_deleted_are_found_again(site: Live, row: Row) -> None:
    """XGROUP DELCONSUMER forgets that it held them; the group would never be given them again."""
    row.expect("a consumer deleted while it holds 50 entries")
    site.pipeline.settings["TURNSTREAM_STREAM__CLAIM_IDLE_MS"] = "60000"  # else they may be claimed before
    with site.pipeline.publisher() as publisher, connect(site.pipeline.url, timeout_s=5) as client:
        publisher.publish_many(numbered(number, U) for number in range(100))
        site.stream.read("deleted", count=50, block_ms=0)
        site.ingester()
        site.worker()
        eventually(lambda: site.totals().get("applied") == 50)
        assert client.xgroup_delconsumer(site.stream.name, site.stream.group, "deleted") == 50
        start = time.monotonic()
        eventually(lambda: site.totals().get("applied") == 100)
        took_s = time.monotonic() - start
    eventually(site.is_done)
    assert len(site.rows("SELECT 1 FROM turns WHERE state = 2")) == 100
    assert site.pipeline.stats()["events"] == {"applied": 100, "taken_up_again": 50}
    assert sum(line["n_entries"] for line in site.logged("entries.taken_up_again")) == 50
    assert site.wrong() == []
    row("a consumer deleted while it holds 50 entries", n=50, outcome=f"all applied {took_s:.1f} s later, reported")
