"""From a publisher into the stream: what arrives, what a slow or dead server does to it, and foreign writers."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from pipeline import contract, publish
from pipeline.errors import Backpressure, ConfigError, PoisonError, PublishError, ServerUnreachableError
from pipeline.publish import Publisher
from pipeline.records import Event, Scope, ScopeDeleted, SessionClosed, SessionDeleted, Turn, TurnDeleted
from pipeline.stream import TurnStream, connect

SCOPE = Scope("user", "u42")
TURNS, DEAD, GROUP = "turnstream:turns", "turnstream:dead", "ingest"


def turn(n: int = 0, content: str = "hello") -> Turn:
    return Turn(
        scope=SCOPE, session_id="s", role="user", content=content, timestamp=1714566600 + n, event_id=f"e{n}", index=n
    )


@pytest.fixture
def stream(client: redis.Redis) -> TurnStream:
    return TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)


@pytest.fixture
def publisher(server_url: str) -> Iterator[Publisher]:
    with Publisher(server_url, backlog_wait_s=0.3, attempts=3) as made:
        yield made


def arrived(stream: TurnStream) -> list[Event]:
    return [contract.decode(entry.raw or b"") for entry in stream.read("c", count=100_000, block_ms=0)]


def test_a_turn_arrives_as_it_was_published(publisher, stream) -> None:
    """The whole point of the first arrow."""
    entry_id = publisher.publish(turn(7))
    (entry,) = stream.read("c", count=9, block_ms=0)
    assert entry.id == entry_id
    received = contract.decode(entry.raw)
    assert (received.event_id, received.content, received.index, received.timestamp_ms) == (
        "e7",
        "hello",
        7,
        turn(7).timestamp_ms,
    )


def test_many_turns_arrive_in_order_from_an_endless_source(publisher, stream) -> None:
    """A backfill is larger than memory: it is taken slice by slice, as it is sent."""
    in_memory = most = 0

    def source() -> Iterator[Turn]:
        nonlocal in_memory, most
        for n in range(1200):
            in_memory = n - stream.backlog().length if n % 100 == 0 else in_memory
            most = max(most, in_memory)
            yield turn(n)

    ids = publisher.publish_many(source())
    assert len(ids) == len(set(ids)) == 1200
    assert [event.index for event in arrived(stream)] == list(range(1200))
    assert most <= publish.SLICE_ENTRIES


def test_large_turns_are_sliced_by_size(publisher, stream, monkeypatch) -> None:
    """Five hundred turns of a megabyte are not sent at once."""
    sizes: list[int] = []
    append_many = TurnStream.append_many

    def noting(self: TurnStream, raws: list[bytes]) -> list[str]:
        sizes.append(sum(map(len, raws)))
        return append_many(self, raws)

    monkeypatch.setattr(TurnStream, "append_many", noting)
    publisher.publish_many(turn(n, content="x" * 1_000_000) for n in range(9))
    assert len(sizes) == 3
    assert max(sizes) <= publish.SLICE_BYTES
    assert len(arrived(stream)) == 9


def test_closing_and_forgetting_are_events(publisher, stream) -> None:
    """Each verb's defaults, and ids the caller may choose to repeat safely."""
    before_ms = time.time() * 1000 - 1
    publisher.close_session(SCOPE, "s", "They met.")
    publisher.forget(SCOPE, "s", "t", event_id="f1")
    publisher.forget(SCOPE, "s", timestamp="2024-05-01T12:30:00Z")
    publisher.forget(SCOPE)
    closed, turn_gone, session_gone, scope_gone = arrived(stream)
    assert isinstance(closed, SessionClosed)
    assert closed.summary == "They met."
    assert closed.timestamp_ms >= before_ms
    assert isinstance(turn_gone, TurnDeleted)
    assert (turn_gone.turn_id, turn_gone.event_id) == ("t", "f1")
    assert isinstance(session_gone, SessionDeleted)
    assert session_gone.timestamp_ms == 1714566600000
    assert isinstance(scope_gone, ScopeDeleted)
    assert len({event.event_id for event in (closed, turn_gone, session_gone, scope_gone)}) == 4
    with pytest.raises(PoisonError, match="session_id"):
        publisher.forget(SCOPE, turn_id="t")


def test_a_bad_turn_is_refused_before_anything_is_sent(publisher, stream) -> None:
    """Its author hears of it, instead of an operator reading dead letters."""
    with pytest.raises(PoisonError):
        publisher.publish(turn(content="a\x00"))
    assert stream.backlog().length == 0


def test_a_backlog_that_does_not_shrink_is_back_pressure(server_url) -> None:
    """Without an ingester the server's memory would fill up unnoticed."""
    with Publisher(server_url, max_backlog_entries=100, backlog_wait_s=0.2) as publisher:
        publisher.publish_many(turn(n) for n in range(101))
        with pytest.raises(Backpressure, match="101 events wait"):
            publisher.publish_many(turn(n) for n in range(500))


def test_publishing_goes_on_once_the_backlog_shrinks(server_url, stream) -> None:
    """A publisher faster than the ingester is slowed down, not turned away."""
    stream.append_many([b"x"] * 101)
    ids = [entry.id for entry in stream.read("c", count=200, block_ms=0)]
    later = threading.Timer(0.2, stream.ack, args=[ids])
    later.start()
    with Publisher(server_url, max_backlog_entries=100, backlog_wait_s=20) as publisher:
        publisher.publish(turn())
    later.join()
    assert stream.backlog().undelivered == 1


def test_what_is_read_and_acked_is_no_backlog(server_url, stream) -> None:
    """The stream's length alone counts entries that only wait to be trimmed."""
    stream.ack([entry.id for entry in _appended(stream, 101)])
    with Publisher(server_url, max_backlog_entries=100, backlog_wait_s=0.1) as publisher:
        publisher.publish(turn())


def _appended(stream: TurnStream, n: int) -> list:
    stream.append_many([b"x"] * n)
    return stream.read("c", count=n, block_ms=0)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_short_outage_is_ridden_out(start_server, kind) -> None:
    """A server's restart costs a second, not an event, without anything being set."""
    server = start_server(kind, "--appendfsync", "always")
    with Publisher(server.url) as publisher:
        publisher.publish(turn(0))
        server.kill()
        later = threading.Timer(1.0, server.start)
        later.start()
        publisher.publish(turn(1))
        later.join()
    with connect(server.url, timeout_s=5) as client:
        stream = TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)
        assert {event.event_id for event in arrived(stream)} == {"e0", "e1"}


def test_a_server_that_stays_away_is_reported_in_bounded_time(tmp_path) -> None:
    """A bot must not hang because its memory does."""
    start = time.monotonic()
    with Publisher(f"unix://{tmp_path}/none.sock", attempts=3) as publisher, pytest.raises(PublishError) as caught:
        publisher.publish(turn())
    assert time.monotonic() - start < 5
    assert isinstance(caught.value.__cause__, ServerUnreachableError)
    assert not isinstance(caught.value, Backpressure)
    assert "after 3 attempts" in str(caught.value)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_full_server_is_back_pressure(start_server, kind) -> None:
    """The caller can tell full from unreachable."""
    server = start_server(kind)
    with connect(server.url, timeout_s=5) as client, Publisher(server.url, attempts=2) as publisher:
        client.config_set("maxmemory", "1")
        with pytest.raises(Backpressure, match="full"):
            publisher.publish(turn())


def test_without_a_url_the_settings_decide(server_url, stream, monkeypatch, tmp_path) -> None:
    """The public surface: Publisher()."""
    monkeypatch.setenv("TURNSTREAM_REDIS__URL", server_url)
    with Publisher() as publisher:
        publisher.publish(turn())
    assert stream.backlog().length == 1
    monkeypatch.delenv("TURNSTREAM_REDIS__URL")
    monkeypatch.setenv("TURNSTREAM_DATA_DIR", str(tmp_path))
    with Publisher(attempts=1) as publisher, pytest.raises(PublishError, match=r"server/valkey\.sock"):
        publisher.publish(turn())


def test_a_url_that_cannot_be_read_is_a_usage_error() -> None:
    """It must not look like an unreachable server."""
    with pytest.raises(ConfigError, match="redis://"):
        Publisher("localhost:6379")


FOREIGN = json.dumps(
    {
        "type": "turn",
        "event_id": "foreign",
        "scope": "user",
        "scope_id": "u42",
        "session_id": "s",
        "role": "user",
        "content": "Grüße",
        "timestamp": 1714566600,
    },
    ensure_ascii=False,
)


def test_redis_cli_can_publish(server_url, stream) -> None:
    """The contract is XADD with one field; no library of ours is needed."""
    cli = shutil.which("redis-cli")
    if cli is None:
        pytest.skip("there is no redis-cli on this machine")
    path = urlsplit(server_url).path
    subprocess.run([cli, "-s", path, "XADD", TURNS, "*", "event", FOREIGN], check=True, stdout=subprocess.DEVNULL)
    assert [event.event_id for event in arrived(stream)] == ["foreign"]


def test_a_bare_socket_can_publish(server_url, stream) -> None:
    """Nor is any Redis library."""
    parts = [b"XADD", TURNS.encode(), b"*", b"event", FOREIGN.encode()]
    command = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(str(Path(urlsplit(server_url).path)))
        bare.sendall(command)
        assert bare.recv(100).startswith(b"$")
    assert [getattr(event, "content", None) for event in arrived(stream)] == ["Grüße"]
