"""`doctor --verify` against a real server: what was accepted is in a ledger, on its way, or named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from pipeline import contract
from pipeline.records import Scope, Turn, TurnDeleted
from pipeline.stream import TurnStream
from tests.commands import CommandLine
from tests.conftest import RunningServer
from tests.small_pipeline import SCOPE, SmallPipeline
from workers.checkup import repair, verify_data


@pytest.fixture
def pipeline(data_dir: Path, valkey_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> SmallPipeline:
    monkeypatch.setattr("workers.checkup.stream._TAKEN_UP_WITHIN_S", 0.01)
    monkeypatch.setattr("workers.checkup.registry._SETTLES_WITHIN_S", 0.01)
    with redis.Redis(unix_socket_path=str(valkey_server.socket)) as client:
        client.flushall()
    return SmallPipeline(data_dir, url=valkey_server.url)


@pytest.fixture
def stream(pipeline: SmallPipeline) -> TurnStream:
    names = pipeline.settings.stream
    url = pipeline.settings.redis.plain_url
    assert url is not None
    made = TurnStream(redis.Redis.from_url(url), name=names.turns, dead_name=names.dead, group=names.group)
    made.ensure_group()
    return made


def turn(number: int, scope: Scope = SCOPE) -> Turn:
    return Turn(scope=scope, session_id="s", role="user", content=f"number{number}", timestamp=1.6e9 + number,
                event_id=f"e{number}", turn_id=f"t{number}", index=number)  # fmt: skip


def problems(pipeline: SmallPipeline, *, idle: bool = False) -> str:
    return "\n".join(f"{finding.what}: {finding.detail}" for finding in verify_data(pipeline.settings, idle=idle))


def test_an_accepted_event_that_is_in_no_ledger_is_named_and_published_again(
    pipeline: SmallPipeline, stream: TurnStream
) -> None:
    """Acknowledged before it was written: the loss that nobody else would notice."""
    pipeline.publish([turn(0)])
    stream.append(contract.encode(turn(0)))
    lost = stream.append(contract.encode(turn(1)))
    for entry in stream.read("c", count=9, block_ms=0):
        stream.client.xack(stream.name, stream.group, entry.id)
    assert f"{SCOPE.key} events: the event of entry {lost}" in problems(pipeline)
    (done,) = repair(pipeline.settings)
    assert lost in done.detail
    (again,) = stream.read("c", count=9, block_ms=0)
    assert contract.decode(again.raw or b"").event_id == "e1"


def test_entries_on_their_way_are_wrong_only_when_all_is_said_to_be_done(
    pipeline: SmallPipeline, stream: TurnStream
) -> None:
    """One is pending, one was not even read; a bad one is for the dead letters."""
    pipeline.publish([turn(0)])
    pipeline.work()
    stream.append(contract.encode(turn(1)))
    stream.read("c", count=9, block_ms=0)
    stream.append(contract.encode(turn(2)))
    stream.append(b"no event")
    assert problems(pipeline) == ""
    assert "3 entries are not acknowledged" in problems(pipeline, idle=True)


def test_a_gap_is_named_unless_its_turn_is_on_its_way(pipeline: SmallPipeline, stream: TurnStream) -> None:
    """The publisher numbers its turns so that a missing one shows."""
    pipeline.publish([turn(number) for number in (0, 1, 2, 5, 6)])
    assert "session 's' has no turn with index 3, 4" in problems(pipeline)
    stream.append(contract.encode(turn(3)))
    assert "no turn with index 4" in problems(pipeline)
    stream.append(contract.encode(turn(4)))
    assert problems(pipeline) == ""


def test_a_turn_deleted_on_request_and_sparse_numbers_leave_no_gap(pipeline: SmallPipeline) -> None:
    """Neither is a loss."""
    pipeline.publish([turn(number) for number in range(5)])
    gone = TurnDeleted(scope=SCOPE, session_id="s", turn_id="t2", timestamp_ms=1_700_000_000_000, event_id="d")
    pipeline.publish([gone, *(turn(number, Scope("user", "sparse")) for number in (0, 10, 20, 30))])
    assert problems(pipeline) == ""


@pytest.fixture
def worked(pipeline: SmallPipeline) -> SmallPipeline:
    """Asked for before `turnstream`: a worker writes its stack to a real stderr."""
    pipeline.publish([turn(number) for number in range(3)])
    pipeline.work()
    return pipeline


def test_the_command_names_the_place_mends_it_and_says_so(worked: SmallPipeline, turnstream: CommandLine) -> None:
    """Exit 4 when something is wrong, 0 once it is mended; an unknown scope is a typing mistake."""
    pipeline = worked
    turnstream.settings |= {
        "TURNSTREAM_DATA_DIR": str(pipeline.settings.data_dir),
        "TURNSTREAM_REDIS__URL": str(pipeline.settings.redis.plain_url),
    }
    assert turnstream("doctor", "--verify").code == 0
    pipeline.sql("DELETE FROM vectors WHERE trace_id = 2")
    ended = turnstream("doctor", "--verify", "--scope", SCOPE.key, "--json")
    assert ended.code == 4
    (wrong,) = [found for found in json.loads(ended.out) if found["verdict"] == "damaged"]
    assert wrong["what"] == "user/u1 turns"
    assert "session 's' turn 't1'" in wrong["detail"]
    mended = turnstream("doctor", "--repair")
    assert mended.code == 0
    assert "repaired  user/u1 ledger: 1 turns to be made searchable again" in mended.out
    assert turnstream("doctor", "--verify", "--scope", "user/nobody").code == 2
    assert turnstream("doctor", "--scope", SCOPE.key).code == 2


def test_the_rest_is_looked_at_while_the_server_is_away(
    worked: SmallPipeline, data_dir: Path, turnstream: CommandLine
) -> None:
    """A damaged ledger does not wait for the server."""
    worked.sql("DELETE FROM vectors WHERE trace_id = 2")
    ended = turnstream("doctor", "--verify", "--data-dir", str(data_dir))
    assert ended.code == 4
    assert "unreachable  server" in ended.out
    assert "damaged  user/u1 turns" in ended.out
