"""The end of a purge, on real servers that are slow, refuse, fail, or are read by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from pipeline import contract
from pipeline.errors import TransientError
from pipeline.ledger import Ledger, events, forgetting, upkeep
from pipeline.records import Scope, SessionDeleted, Turn
from pipeline.shards import Shards
from pipeline.stream import DeadLetter, TurnStream, append_only, connect
from tests.conftest import RunningServer, StartServer
from tests.ledgers import open_ledger
from workers import forgetting as purging
from workers.forgetting import Forgetting

SCOPE = Scope("user", "u1")
NOW = 1_700_000_000_000
ASKED = SessionDeleted(scope=SCOPE, session_id="s1", timestamp_ms=NOW, event_id="ask")


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> RunningServer:
    """One for this module: some tests move its files."""
    return start_server("redis")


@pytest.fixture
def stream(server: RunningServer) -> Iterator[TurnStream]:
    with connect(server.url, timeout_s=5) as client:
        client.flushall()
        made = TurnStream(client, name="turns", dead_name="dead", group="g")
        made.ensure_group()
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger that has something to purge."""
    with closing(open_ledger(Shards(tmp_path), SCOPE)) as opened:
        events.apply(opened, [ASKED], now_ms=NOW)
        yield opened


@pytest.fixture
def end(stream: TurnStream, ledger: Ledger) -> Callable[[], bool | None]:
    """Try to end the purge; gives whether the server's file was rewritten for it, None while it is due."""
    return lambda: ended(stream, ledger)


def ended(stream: TurnStream, ledger: Ledger) -> bool | None:
    token = upkeep.status(ledger, idle_ms=0, settle_ms=0).purge_due
    assert token is not None
    Forgetting(stream, lambda: NOW).end_purges([(ledger, token)])
    found = forgetting.outcome(ledger.connection, ASKED.event_id)
    assert found is not None
    return None if found.purged_ms is None else found.rewritten


def said(session: str, number: int = 0) -> bytes:
    return contract.encode(
        Turn(
            scope=SCOPE, session_id=session, role="user", content="words", timestamp=1, event_id=f"{session}{number}"
        )
    )


def n_rewrites(client: redis.Redis) -> int:
    facts: Any = client.info("persistence")
    return int(facts["aof_rewrites"])


def user_without(server: RunningServer, command: str) -> redis.Redis:
    """Connect as somebody whom a managed server refuses a command."""
    with connect(server.url, timeout_s=5) as client:
        client.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "&*", "+@all", f"-{command}")
    return connect(f"unix://guest:word@{server.socket}", timeout_s=5)


def test_a_rewrite_that_takes_too_long_is_waited_for_by_the_next_try(
    stream: TurnStream, end: Callable[[], bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try would begin another, and none would ever be in time."""
    monkeypatch.setattr(purging, "_REWRITE_WITHIN_S", -1)
    before = n_rewrites(stream.client)
    with pytest.raises(TransientError, match="still rewriting"):
        end()
    append_only.rewrite_since(stream.client, append_only.mark(stream.client) or "", timeout_s=10)
    n_after = n_rewrites(stream.client)
    assert end() is True
    assert n_rewrites(stream.client) == n_after > before


def test_a_server_started_anew_is_asked_again(
    stream: TurnStream, server: RunningServer, end: Callable[[], bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed over the rewrite, and its count starts at nothing."""
    monkeypatch.setattr(purging, "_REWRITE_WITHIN_S", -1)
    with pytest.raises(TransientError, match="still rewriting"):
        end()
    server.kill()
    server.start()
    monkeypatch.setattr(purging, "_REWRITE_WITHIN_S", 10)
    assert end() is True
    assert n_rewrites(stream.client) == 1


def test_a_server_that_cannot_rewrite_now_is_asked_again(
    server: RunningServer, end: Callable[[], bool | None]
) -> None:
    """It says so when it is out of memory for a fork, too; ended then, a purge leaves every byte where it was."""
    folder = server.folder / "appendonlydir"
    aside = folder.rename(server.folder / "aside")
    folder.write_bytes(b"")  # in the way
    with pytest.raises(TransientError, match="cannot rewrite"):
        end()
    folder.unlink()
    aside.rename(folder)
    assert end() is True


@pytest.mark.parametrize(("command", "rewritten"), [("config", True), ("bgrewriteaof", False), ("info", False)])
def test_a_refused_command_does_not_keep_the_others_from_being_tried(
    server: RunningServer, stream: TurnStream, ledger: Ledger, command: str, *, rewritten: bool
) -> None:
    """Managed servers refuse CONFIG and rewrite all the same; what will never be allowed is not waited for."""
    stream.ensure_group()
    with user_without(server, command) as client:
        assert ended(TurnStream(client, name="turns", dead_name="dead", group="g"), ledger) is rewritten


def test_another_group_s_backlog_is_looked_through_step_by_step(
    stream: TurnStream, end: Callable[[], bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has not read stays in the stream; past a thousand entries, no purge would ever have ended."""
    other = TurnStream(stream.client, name="turns", dead_name="dead", group="other")
    other.ensure_group()
    ids = stream.append_many([said("s2", number) for number in range(40)] + [said("s1")])
    stream.read("c", count=99, block_ms=0)
    stream.ack(ids)
    monkeypatch.setattr(purging, "_LOOK_WITHIN_S", -1)
    assert [end() for _ in range(45)] == [None] * 45
    other.read("o", count=99, block_ms=0)
    other.ack(ids[-1:])  # of what was forgotten; the other entries it may keep
    assert stream.trim() == 0
    stream.client.xdel("turns", ids[-1])
    assert end() is True


def test_letters_are_gone_before_the_rewrite_that_is_waited_for(
    stream: TurnStream, end: Callable[[], bool | None]
) -> None:
    """A rewrite that began before would write them anew."""
    (entry_id,) = stream.append_many([said("s1")])
    stream.read("c", count=1, block_ms=0)
    stream.dead_letter_and_ack([DeadLetter(entry_id, said("s1"), "why")])
    assert end() is True
    assert stream.dead_letters() == []
