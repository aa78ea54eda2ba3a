"""The stream's promises, on a real Redis 7.0 and a real Valkey 9."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from pipeline.errors import Backpressure, ConfigError, ServerUnreachableError, TransientError
from pipeline.stream import DeadLetter, TurnStream, check_server, connect

TURNS, DEAD, GROUP = "t:turns", "t:dead", "ingest"


@pytest.fixture
def stream(client: redis.Redis) -> TurnStream:
    return TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)


def read_all(stream: TurnStream, consumer: str = "c1") -> list[bytes | None]:
    return [entry.raw for entry in stream.read(consumer, count=1000, block_ms=0)]


def test_entries_are_read_in_the_order_they_were_appended(stream) -> None:
    """A batch's order is what makes a re-read comparable."""
    ids = [stream.append(b"0"), *stream.append_many([b"%d" % n for n in range(1, 50)])]
    entries = stream.read("c1", count=100, block_ms=0)
    assert [entry.id for entry in entries] == ids
    assert [entry.raw for entry in entries] == [b"%d" % n for n in range(50)]
    assert {entry.n_fields for entry in entries} == {1}


def test_a_group_made_late_still_reads_what_came_before_it(stream) -> None:
    """Created at "$", the group would skip whatever was published before the first ingester ran."""
    stream.append(b"early")
    stream.ensure_group()
    stream.ensure_group()
    assert read_all(stream) == [b"early"]


def test_every_upkeep_verb_survives_a_missing_stream(stream) -> None:
    """After a FLUSHALL the ingester must not end."""
    assert stream.remove_idle_consumers(0) == []
    stream.client.delete(TURNS)
    assert stream.take_up_strays("c1", count=1) == []
    stream.client.delete(TURNS)
    assert stream.claim("c1", min_idle_ms=0, count=1).deleted == []
    stream.client.delete(TURNS)
    assert (stream.ack(["1-1"]), stream.trim(), stream.unread()) == (0, 0, 0)


@pytest.mark.parametrize("loss", ["group", "stream"])
def test_a_lost_group_is_made_again_from_the_start(stream, client, loss) -> None:
    """An operator's XGROUP DESTROY or DEL must cost repeated work, not entries."""
    stream.append(b"one")
    assert read_all(stream) == [b"one"]
    if loss == "group":
        client.xgroup_destroy(TURNS, GROUP)
    else:
        client.delete(TURNS)
    stream.append(b"two")
    assert read_all(stream) == ([b"one", b"two"] if loss == "group" else [b"two"])


def test_every_reading_verb_survives_a_missing_group(stream) -> None:
    """Any of them may be the first to be called after the loss."""
    assert stream.read_own_pending("c1", count=1) == []
    stream.client.xgroup_destroy(TURNS, GROUP)
    assert stream.claim("c1", min_idle_ms=0, count=1).entries == []
    stream.client.xgroup_destroy(TURNS, GROUP)
    assert stream.remove_idle_consumers(0) == []
    stream.client.xgroup_destroy(TURNS, GROUP)
    assert stream.take_up_strays("c1", count=1) == []
    stream.client.xgroup_destroy(TURNS, GROUP)
    assert stream.dead_letter_and_ack([DeadLetter("1-1", b"x", "why")]) == 0


def test_unacked_entries_stay_with_their_consumer_until_acked(stream) -> None:
    """A restarted ingester finds its own unfinished batch, page by page."""
    stream.append_many([b"a", b"b", b"c"])
    taken = stream.read("c1", count=2, block_ms=0)
    first = stream.read_own_pending("c1", count=1)
    assert [entry.raw for entry in first] == [b"a"]
    assert [entry.raw for entry in stream.read_own_pending("c1", count=9, after=first[0].id)] == [b"b"]
    assert stream.read_own_pending("c2", count=9) == []
    assert stream.ack([entry.id for entry in taken]) == 2
    assert stream.ack([]) == 0
    assert stream.read_own_pending("c1", count=9) == []


def test_an_entry_without_the_field_is_handed_out_as_such(stream, client) -> None:
    """Foreign XADDs must reach the dead letters, not crash the reader."""
    client.xadd(TURNS, {"other": "x", "more": "y"})
    entry = stream.read("c1", count=1, block_ms=0)[0]
    assert (entry.raw, entry.n_fields) == (None, 2)


def test_a_deleted_pending_entry_is_seen_as_deleted(stream, client) -> None:
    """It would otherwise be pending for ever, and hold back the trim."""
    entry_id = stream.append(b"gone")
    stream.read("c1", count=1, block_ms=0)
    client.xdel(TURNS, entry_id)
    own = stream.read_own_pending("c1", count=9)
    assert [(entry.id, entry.raw, entry.n_fields) for entry in own] == [(entry_id, None, 0)]
    claim = stream.claim("c2", min_idle_ms=0, count=9)
    assert (claim.entries, claim.deleted) == ([], [entry_id])
    assert stream.backlog().pending == 0


def test_claim_walks_past_the_first_page(stream) -> None:
    """One XAUTOCLAIM looks at ten times count; what lies behind would starve."""
    stream.append_many([b"%d" % n for n in range(300)])
    stream.read("dead", count=300, block_ms=0)
    stream.client.xclaim(TURNS, GROUP, "busy", 0, [e.id for e in stream.read_own_pending("dead", count=250)], idle=0)
    stream.client.execute_command(
        "XCLAIM", TURNS, GROUP, "dead", 0, *[e.id for e in stream.read_own_pending("dead", count=50)], "IDLE", 60_000
    )
    claim = stream.claim("c2", min_idle_ms=30_000, count=5)
    assert [entry.raw for entry in claim.entries] == [b"250", b"251", b"252", b"253", b"254"]
    rest = stream.claim("c2", min_idle_ms=30_000, count=100)
    assert len(rest.entries) == 45


def test_a_dead_letter_keeps_the_bytes_and_is_acked(stream) -> None:
    """Nothing is lost by being refused."""
    raw = b"\xff\x00 not json"
    entry_id = stream.append(raw)
    stream.read("c1", count=1, block_ms=0)
    letter = DeadLetter(entry_id, raw, "not JSON", "content")
    assert stream.dead_letter_and_ack([letter]) == 1
    kept = stream.dead_letters()
    assert [(d.entry_id, d.raw, d.reason, d.field) for d in kept] == [(entry_id, raw, "not JSON", "content")]
    assert stream.backlog().pending == 0
    assert stream.backlog().dead == 1


def test_the_same_letter_twice_is_set_aside_once(stream) -> None:
    """A reply lost with the connection, or two consumers on one entry, must not double it."""
    entry_id = stream.append(b"bad")
    stream.read("c1", count=1, block_ms=0)
    letter = DeadLetter(entry_id, b"bad", "why")
    assert stream.dead_letter_and_ack([letter, letter]) == 1
    assert stream.dead_letter_and_ack([letter]) == 0
    assert len(stream.dead_letters()) == 1


def test_a_letter_that_cannot_be_kept_leaves_its_entry_pending(stream, client) -> None:
    """Acked without being kept, the entry would be gone."""
    entry_id = stream.append(b"bad")
    stream.read("c1", count=1, block_ms=0)
    client.set(DEAD, "another program's key")
    with pytest.raises(ConfigError, match="unused key names"):
        stream.dead_letter_and_ack([DeadLetter(entry_id, b"bad", "why")])
    assert client.xpending(TURNS, GROUP)["pending"] == 1


def test_a_letter_without_an_event_is_kept_and_never_replayed(stream, client) -> None:
    """There are no bytes to publish again, only a reason to show."""
    entry_id = client.xadd(TURNS, {"other": "x"}).decode()
    stream.read("c1", count=1, block_ms=0)
    stream.dead_letter_and_ack([DeadLetter(entry_id, None, "no field 'event'")])
    letter = stream.dead_letters()[0]
    assert letter.raw is None
    assert stream.replay([letter.id]) == []
    assert len(stream.dead_letters()) == 1
    assert stream.drop([letter.id]) == 1
    assert stream.drop([letter.id]) == 0


def test_replay_moves_the_original_bytes_once(stream) -> None:
    """Asked twice, the second finds nothing: a replay is a move."""
    raws = [b"\xff%d" % n for n in range(100)]
    ids = stream.append_many(raws)
    stream.read("c1", count=100, block_ms=0)
    stream.dead_letter_and_ack([DeadLetter(i, r, "why") for i, r in zip(ids, raws, strict=True)])
    letters = stream.dead_letters()
    assert len(stream.dead_letters(start="(" + letters[9].id, count=50)) == 50
    assert len(stream.replay([letter.id for letter in letters])) == 100
    assert stream.replay([letter.id for letter in letters]) == []
    assert stream.dead_letters() == []
    assert read_all(stream) == raws


@pytest.mark.parametrize("wrong", ["foo", "", "-", "1-2-3", "+"])
def test_a_mistyped_letter_id_is_a_usage_error(stream, wrong) -> None:
    """It comes from a command line, and the server's own words would not help."""
    for verb in (stream.replay, stream.drop):
        with pytest.raises(ConfigError, match="no entry id"):
            verb([wrong])


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


def test_what_the_only_group_acks_is_gone_at_once(stream) -> None:
    """What was forgotten must not linger in the stream; lag must stay right; a stuck entry must not hold the rest."""
    ids = stream.append_many([b"stuck", b"a", b"b"])
    stream.read("c1", count=3, block_ms=0)
    assert stream.ack(ids[1:]) == 2
    assert (stream.backlog().length, stream.backlog().stray, stream.unread()) == (1, 0, 1)
    stream.append(b"c")
    assert stream.backlog().undelivered == 1
    assert stream.trim() == 0
    assert read_all(stream) == [b"c"]


def test_many_thousand_entries_are_acked_at_once(stream) -> None:
    """A backlog spread over many scopes is one batch; a script takes fewer arguments than that."""
    ids = stream.append_many([b"x"] * 12_001)
    assert len(stream.read("c1", count=20_000, block_ms=0)) == 12_001
    assert stream.ack(ids) == 12_001
    assert stream.ack(ids) == 0
    assert stream.backlog().length == 0


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


def test_backlog_counts_what_is_left_to_do(stream) -> None:
    """Stats and back-pressure rest on these numbers."""
    assert stream.backlog().unread == stream.unread() == 0
    ids = stream.append_many([b"a", b"b", b"c"])
    assert (stream.backlog().undelivered, stream.unread()) == (3, 3)
    stream.read("c1", count=2, block_ms=0)
    stream.ack(ids[:1])
    backlog = stream.backlog()
    assert (backlog.length, backlog.undelivered, backlog.pending, backlog.dead) == (2, 1, 1, 0)
    assert backlog.unread == stream.unread() == 2
    assert 0 <= backlog.oldest_pending_ms < 60_000


def test_backlog_is_counted_when_the_server_lost_count(stream, client) -> None:
    """After an XDEL the server reports no lag at all."""
    ids = stream.append_many([b"%d" % n for n in range(2500)])
    stream.read("c1", count=10, block_ms=0)
    client.xdel(TURNS, ids[1000])
    assert client.xinfo_groups(TURNS)[0]["lag"] is None
    assert stream.backlog().undelivered == 2489


def test_a_silent_consumer_is_removed_only_without_pending_entries(stream) -> None:
    """DELCONSUMER throws its pending entries away."""
    stream.append_many([b"a", b"b"])
    stream.read("holds", count=1, block_ms=0)
    stream.ack([entry.id for entry in stream.read("free", count=1, block_ms=0)])
    assert stream.remove_idle_consumers(60_000) == []
    assert stream.remove_idle_consumers(0) == ["free"]
    assert [entry.raw for entry in stream.read_own_pending("holds", count=9)] == [b"a"]


def test_a_long_block_never_outlasts_the_reply_timeout(server_url) -> None:
    """It would look like a server that does not answer."""
    with connect(server_url, timeout_s=0.4) as client:
        stream = TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)
        start = time.monotonic()
        assert stream.read("c1", count=1, block_ms=60_000) == []
        assert 0.1 < time.monotonic() - start < 0.39


def test_a_fit_server_has_no_problems(client) -> None:
    """The tests' servers are configured the way we ask for."""
    assert check_server(client) == []


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_an_unfit_server_is_told_apart(start_server, kind) -> None:
    """Each of these loses events silently."""
    server = start_server(kind, "--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
    with connect(server.url, timeout_s=5) as client:
        problems = "\n".join(check_server(client))
    assert "allkeys-lru" in problems
    assert "appendonly" in problems


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_full_server_is_back_pressure_and_loses_no_letter(start_server, kind) -> None:
    """A full server refuses events, and still sets bad ones aside: otherwise it would stay full of them for ever."""
    server = start_server(kind)
    with connect(server.url, timeout_s=5) as client:
        stream = TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)
        entry_id = stream.append(b"bad")
        stream.read("c1", count=1, block_ms=0)
        client.config_set("maxmemory", "1")
        with pytest.raises(Backpressure, match="raise its maxmemory"):
            stream.append(b"secret words")
        with pytest.raises(Backpressure) as caught:
            stream.append_many([b"secret words"] * 3)
        assert "secret" not in str(caught.value)
        assert stream.dead_letter_and_ack([DeadLetter(entry_id, b"bad", "why")]) == 1
        assert (stream.backlog().length, stream.backlog().dead) == (0, 1)
        client.config_set("maxmemory", "0")


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_entries_survive_the_server_being_killed(start_server, kind) -> None:
    """With appendfsync always, what was answered is on disk."""
    server = start_server(kind, "--appendfsync", "always")
    with connect(server.url, timeout_s=5) as client:
        stream = TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)
        stream.append_many([b"a", b"b"])
        taken = stream.read("c1", count=1, block_ms=0)
        stream.dead_letter_and_ack([DeadLetter(taken[0].id, b"a", "why")])
        server.kill()
        with pytest.raises(ServerUnreachableError, match=r"unix://.*turnstream up"):
            stream.append(b"c")
        server.start()
        assert len(stream.dead_letters()) == 1
        assert read_all(stream) == [b"b"]


def test_a_password_is_never_shown(start_server) -> None:
    """Messages end in logs and bug reports."""
    server = start_server("redis")
    with connect(server.url, timeout_s=1) as client:
        client.config_set("requirepass", "right")
    with connect(f"unix://:wr0ng@{server.socket}", timeout_s=1) as client, pytest.raises(ConfigError) as caught:
        check_server(client)
    assert "wr0ng" not in str(caught.value)
    with (
        connect("redis://u:wr0ng@127.0.0.1:1/0", timeout_s=1) as client,
        pytest.raises(TransientError) as unreachable,
    ):
        check_server(client)
    assert "wr0ng" not in str(unreachable.value)
    assert "127.0.0.1:1" in str(unreachable.value)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_kill_while_setting_aside_neither_loses_nor_doubles(start_server, kind) -> None:
    """Each entry is afterwards either still pending or one dead letter."""
    server = start_server(kind, "--appendfsync", "always")
    with connect(server.url, timeout_s=5) as client:
        stream = TurnStream(client, name=TURNS, dead_name=DEAD, group=GROUP)
        ids = stream.append_many([b"bad"] * 3000)
        stream.read("c1", count=3000, block_ms=0)
        killer = threading.Timer(0.05, server.process.kill)
        killer.start()
        with pytest.raises(ServerUnreachableError):
            stream.dead_letter_and_ack(DeadLetter(entry_id, b"bad", "why") for entry_id in ids)
        killer.join()
        server.process.wait()
        server.start()
        pending = [entry.id for entry in stream.read_own_pending("c1", count=9999)]
        dead = [letter.entry_id for letter in stream.dead_letters(count=9999)]
        assert sorted(pending + dead) == sorted(ids)
        assert dead
        assert pending
