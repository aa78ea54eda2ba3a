"""What Prometheus and a probe are told, over HTTP, of a real server and a real registry."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.errors import ConfigError
from pipeline.publish import Publisher
from pipeline.records import Scope, Turn
from pipeline.registry import Counts, Registry
from pipeline.settings import Settings, load_settings
from pipeline.stream import TurnStream, connect
from tests.conftest import RunningServer, StartServer
from workers import metrics, vitals
from workers.liveness import INGESTER, WORKER, Pulse

SECRET = "u-4711"
Get = Callable[[str], tuple[int, str]]


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    return start_server("valkey")


@pytest.fixture
def settings(data_dir: Path, server: RunningServer) -> Settings:
    return load_settings(data_dir=data_dir, redis={"url": server.url, "timeout_s": 0.5})


@pytest.fixture
def get(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Get]:
    """Ask the endpoint; each answer is looked up anew."""
    monkeypatch.setattr(metrics, "_KEPT_S", -1.0)
    endpoint = metrics.make_server(settings, host="127.0.0.1", port=0)
    serving = threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.server_port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    yield ask
    endpoint.shutdown()
    serving.join()
    endpoint.server_close()


def samples(text: str) -> dict[str, float]:
    """Read what Prometheus would: name with labels, and value."""
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def publish(server: RunningServer, n_turns: int) -> None:
    scope = Scope("user", SECRET)
    with Publisher(server.url) as publisher:
        publisher.publish_many(
            Turn(scope=scope, session_id="s", role="user", content=f"hi {n}", timestamp=n, event_id=f"e{n}")
            for n in range(n_turns)
        )


def test_a_scrape_tells_where_everything_is(settings: Settings, server: RunningServer, get: Get) -> None:
    """A backlog with an age, an outcome of each event, and who lives; never whose they are."""
    publish(server, 5)
    Pulse(settings.data_dir, INGESTER, "i1", step_s=5)
    Pulse(settings.data_dir, WORKER, "w1", step_s=5).beat(-1_000)
    now_ms = time.time_ns() // 1_000_000
    with connect(server.url, timeout_s=5) as client, closing(Registry(settings.data_dir)) as registry:
        names = settings.stream
        stream = TurnStream(client, name=names.turns, dead_name=names.dead, group=names.group)
        stream.ensure_group()
        stream.read("i1", count=2, block_ms=1)
        registry.mark([f"user/{SECRET}"], now_ms=now_ms - 90_000)
        registry.settle([(f"user/{SECRET}", 1, None, Counts(turns=7, searchable=4, quarantined=3, summary_failed=1))])
        registry.mark([f"user/{SECRET}"], now_ms=now_ms - 80_000)
        registry.note_waiting([(f"user/{SECRET}", now_ms, None, True)], now_ms=now_ms - 70_000)
        registry.add_totals({"applied": 7, "duplicate": 2})
    vitals.note_verified(settings, n_gaps=2)
    status, text = get("/metrics")
    told = samples(text)
    assert status == 200
    assert SECRET not in text
    expected = {
        "turnstream_backlog_entries{undelivered}": 3, "turnstream_backlog_entries{pending}": 2,
        "turnstream_quarantined_turns": 3, "turnstream_dead_letters": 0, "turnstream_index_gaps": 2,
        "turnstream_events_total{applied}": 7, "turnstream_events_total{duplicate}": 2,
        "turnstream_sessions_unsummarised{failed}": 1, "turnstream_scopes{undone}": 1,
        "turnstream_up{server}": 1, "turnstream_up{i1}": 1, "turnstream_up{w1}": 0,
        "turnstream_process_starts_total{w1}": 1, "turnstream_degraded{process_stalled}": 1,
        "turnstream_degraded{server_unreachable}": 0, "turnstream_warning{turns_quarantined}": 1,
    }  # fmt: skip
    assert {name: told.get(name) for name in expected} == expected
    assert told["turnstream_oldest_pending_seconds"] > 0
    assert 80 <= told["turnstream_searchable_lag_seconds"] < 90
    assert 70 <= told["turnstream_snapshot_age_seconds"] < 80


def test_a_probe_learns_what_is_wrong_and_when_it_is_over(settings: Settings, get: Get) -> None:
    """A status for the machine, a line for each thing for a person."""
    status, text = get("/healthz")
    assert status == 503
    assert [json.loads(line)["what"] for line in text.splitlines()] == ["no_ingester", "no_worker"]
    for kind in (INGESTER, WORKER):
        Pulse(settings.data_dir, kind, "x", step_s=60)
    assert get("/healthz") == (200, "")
    vitals.note_verified(settings, n_gaps=1)  # makes nothing where there is no registry yet
    with closing(Registry(settings.data_dir)):
        vitals.note_verified(settings, n_gaps=1)
    status, text = get("/healthz")
    assert (status, json.loads(text)["what"], json.loads(text)["degraded"]) == (200, "index_gaps", False)
    assert get("/") == (404, "ask for /metrics or /healthz\n")


def test_while_the_server_is_down_a_scrape_says_so(settings: Settings, server: RunningServer, get: Get) -> None:
    """That is when it is looked at; what the registry knows is told all the same."""
    with closing(Registry(settings.data_dir)) as registry:
        registry.add_totals({"applied": 7})
    server.kill()
    told = samples(get("/metrics")[1])
    assert (told["turnstream_up{server}"], told["turnstream_degraded{server_unreachable}"]) == (0, 1)
    assert told["turnstream_events_total{applied}"] == 7
    assert "turnstream_searchable_lag_seconds" not in told
    assert "turnstream_backlog_entries{pending}" not in told
    assert get("/healthz")[0] == 503
    server.start()
    assert samples(get("/metrics")[1])["turnstream_up{server}"] == 1


def test_a_server_that_hangs_delays_a_scrape_and_no_more(server: RunningServer, get: Get) -> None:
    """Prometheus gives up after ten seconds, and would know nothing."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert samples(get("/metrics")[1])["turnstream_up{server}"] == 0
        assert time.monotonic() - start < 5
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_ten_thousand_scopes_are_looked_at_quickly(settings: Settings) -> None:
    """A scrape every few seconds must not be a load; no ledger is opened for it."""
    with closing(Registry(settings.data_dir)) as registry:
        keys = [f"user/{n}" for n in range(10_000)]
        registry.mark(keys, now_ms=1)
        registry.note_waiting([(key, 1, 1, True) for key in keys], now_ms=1)
    times = []
    for _ in range(5):
        start = time.process_time()  # other processes of the machine are not meant
        seen = vitals.look(settings)
        times.append(time.process_time() - start)
    assert seen.registry is not None
    assert seen.registry.waiting.scopes == 10_000
    assert min(times) < 0.05, times


def test_a_port_that_is_taken_is_named(settings: Settings) -> None:
    """`up` starts it again and again; the log must say what to change."""
    with metrics.make_server(settings, host="127.0.0.1", port=0) as taken:
        named = rf"127\.0\.0\.1:{taken.server_port}.*TURNSTREAM_METRICS__PORT"
        with pytest.raises(ConfigError, match=named):
            metrics.make_server(settings, host="127.0.0.1", port=taken.server_port)
