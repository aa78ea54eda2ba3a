"""What one group may take for done while others read the same stream, and what a lost group or consumer leaves."""

from __future__ import annotations

import pytest
import redis

from pipeline.stream import DeadLetter, TurnStream, turn_stream

TURNS, DEAD, GROUP = "t:turns", "t:dead", "ingest"


@pytest.fixture
def stream(client: redis.Redis) -> TurnStream:
    return TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)


@pytest.fixture
def other(client: redis.Redis) -> TurnStream:
    reader = TurnStream(client, name=TURNS, dead_name=DEAD, group="other")
    reader.ensure_group()
    return reader


def read_all(stream: TurnStream, consumer: str = "c1") -> list[bytes | None]:
    return [entry.raw for entry in stream.read(consumer, count=1000, block_ms=0)]


def test_trim_keeps_everything_some_group_has_not_acked(stream, client) -> None:
    """The reason for MINID of our own: MAXLEN drops unread entries without a trace."""
    slow = TurnStream(client, name=TURNS, dead_name=DEAD, group="slow")
    slow.ensure_group()
    ids = stream.append_many([b"%d" % n for n in range(10)])
    stream.read("c1", count=10, block_ms=0)
    stream.ack(ids)
    assert stream.trim() == 0
    slow.read("s", count=6, block_ms=0)
    slow.ack([ids[0], ids[1], ids[3]])
    assert stream.trim() == 2
    slow.ack([ids[2], ids[4], ids[5]])
    assert stream.trim() == 4
    assert read_all(slow, "s") == [b"6", b"7", b"8", b"9"]


def test_trim_without_a_reader_drops_nothing(stream, client) -> None:
    """No group means that nobody has read it, not that nobody will."""
    assert stream.trim() == 0
    stream.append(b"x")
    assert stream.trim() == 0
    client.xgroup_create(TURNS, GROUP, id="0")
    assert stream.trim() == 0
    assert read_all(stream) == [b"x"]


def test_entries_of_a_deleted_consumer_are_taken_up_again(stream, client) -> None:
    """DELCONSUMER forgets that they were pending; nobody would be given them again, and nobody would miss them."""
    ids = stream.append_many([b"%d" % n for n in range(200)])
    stream.read("lives", count=40, block_ms=0)
    stream.read("goes", count=60, block_ms=0)
    stream.read("lives", count=40, block_ms=0)
    stream.ack(ids[5:10] + ids[50:60])
    assert stream.take_up_strays("lives", count=500) == []
    assert client.xgroup_delconsumer(TURNS, GROUP, "goes") == 50
    backlog = stream.backlog()
    assert (backlog.stray, backlog.pending, backlog.undelivered, stream.unread()) == (50, 75, 60, 185)
    taken = [entry for _ in range(3) for entry in stream.take_up_strays("other", count=20)]
    assert [entry.id for entry in taken] == ids[40:50] + ids[60:100]
    assert [entry.raw for entry in taken[:2]] == [b"40", b"41"]
    assert (stream.backlog().stray, stream.backlog().pending) == (0, 125)
    assert stream.ack([entry.id for entry in taken]) == 50


def test_strays_are_found_when_the_server_lost_count(stream, client) -> None:
    """After an XDEL it reports no lag; then every entry is looked at."""
    ids = stream.append_many([b"%d" % n for n in range(100)])
    stream.read("goes", count=50, block_ms=0)
    client.xdel(TURNS, ids[3], ids[80])
    client.xgroup_delconsumer(TURNS, GROUP, "goes")
    assert [entry.id for entry in stream.take_up_strays("c1", count=500)] == ids[:3] + ids[4:50]


def test_with_another_group_nothing_is_taken_for_stray(stream, client) -> None:
    """What is acked stays for the other group, and looks the same."""
    TurnStream(client, name=TURNS, dead_name=DEAD, group="other").ensure_group()
    ids = stream.append_many([b"a", b"b"])
    stream.read("c1", count=2, block_ms=0)
    stream.ack(ids)
    assert (stream.take_up_strays("c1", count=9), stream.backlog().stray, stream.unread()) == ([], 0, 0)
    assert stream.backlog().length == 2


def test_trim_compares_ids_as_numbers(stream, client) -> None:
    """As text 9-1 comes after 10-1, and a sequence may pass what a double can hold."""
    for entry_id in ("9-1", "10-1", "10-18446744073709551614"):
        client.xadd(TURNS, {"event": entry_id}, id=entry_id)
    other = TurnStream(client, name=TURNS, dead_name=DEAD, group="other")
    other.ensure_group()
    assert len(other.read("o", count=1, block_ms=0)) == 1
    stream.ensure_group()
    stream.ack([entry.id for entry in stream.read("c1", count=9, block_ms=0)])
    assert stream.trim() == 0
    other.ack(["9-1"])
    assert stream.trim() == 1


def test_what_a_destroyed_group_had_read_is_kept_for_the_one_that_is_left(stream, other, client) -> None:
    """Its acknowledgement comes late; whoever counts the groups only takes the other's entries for its own."""
    ids = stream.append_many([b"a", b"b"])
    stream.read("c1", count=2, block_ms=0)
    client.xgroup_destroy(TURNS, GROUP)
    assert stream.ack(ids) == 0
    assert stream.trim() == 0
    assert read_all(other, "o") == [b"a", b"b"]


def test_nothing_is_trimmed_that_a_destroyed_group_has_not_read(stream, other, client) -> None:
    """Made again, it starts at the first entry; two others have read it, and are no measure."""
    third = TurnStream(client, name=TURNS, dead_name=DEAD, group="third")
    third.ensure_group()
    ids = stream.append_many([b"a", b"b"])
    for reader in (other, third):
        reader.read("r", count=2, block_ms=0)
        reader.ack(ids)
    assert stream.trim() == 0
    assert read_all(stream) == [b"a", b"b"]


def test_a_dead_letter_stays_for_another_group(stream, other) -> None:
    """Ours refused it; the other reads it by its own rules."""
    (entry_id,) = stream.append_many([b"bad"])
    stream.read("c1", count=1, block_ms=0)
    assert stream.dead_letter_and_ack([DeadLetter(entry_id, b"bad", "why")]) == 1
    assert read_all(other, "o") == [b"bad"]


def test_a_walk_for_strays_is_cut_into_short_calls(stream, client, monkeypatch) -> None:
    """The server does nothing else meanwhile, and each of several ingesters asks every two seconds."""
    monkeypatch.setattr(turn_stream, "_PASSED_AT_ONCE", 20)
    monkeypatch.setattr(turn_stream, "_STRAY_CALLS", 2)
    ids = stream.append_many([b"%d" % n for n in range(100)])
    stream.read("refused", count=50, block_ms=0)
    stream.read("goes", count=30, block_ms=0)
    client.xdel(TURNS, ids[90])  # from now on the server reports no lag
    client.xgroup_delconsumer(TURNS, GROUP, "goes")
    calls = [[entry.id for entry in stream.take_up_strays("c1", count=25)] for _ in range(5)]
    assert calls == [[], ids[50:75], ids[75:80], [], []]
