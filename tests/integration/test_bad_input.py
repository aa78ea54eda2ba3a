"""Bad input gets a clear error, and nothing around it is lost."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from pipeline.contract import MAX_CONTENT_BYTES
from pipeline.embed import load_embedder
from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from pipeline.stream import connect
from retrieval import Memory, open_memory
from tests.commands import CommandLine
from tests.conftest import StartServer
from tests.eventually import eventually
from tests.raw_turns import SAID, T0, raw
from tests.running import RunningPipeline
from workers.cli import common

STRANGE_IDS = (
    "../../x", "..", "/etc/passwd", "a/b", "a:b", "a b", "a", "A", "{x}", "%2e%2e", "*", "-rf", "line\nbreak", "🦜",
    "é", "e\u0301", "n" * 300, "'; DROP TABLE turns; --",
)  # fmt: skip
STRANGE_ROLES = ("user", "oracle-of-delphi", "角色", "x" * 64)
LARGEST = f"needle {SAID} "
PLAIN = Scope("user", "plain")


def turn(content: str, event_id: str, scope: Scope = PLAIN, **fields: Any) -> Turn:
    values = {"role": "user", "timestamp": T0, "session_id": "s1", **fields}
    return Turn(scope=scope, content=f"{content} {SAID}" if content.strip() else content, event_id=event_id, **values)


BAD: dict[str, tuple[bytes, str, str]] = {
    "no json": (f"{SAID} {{".encode(), "", "JSON"),
    "an array": (json.dumps([SAID]).encode(), "", "object"),
    "nested too deeply": (b"[" * 100_000, "", ""),
    "one byte too long": (raw("big", content=SAID + "y" * (MAX_CONTENT_BYTES + 1 - len(SAID))), "content", "at most"),
    "larger than an event may be": (raw("huge", metadata={"m": SAID + "z" * (2 << 20)}), "", "too large"),
    "a lone surrogate": (raw("sur", content=f"{SAID} \ud800"), "content", ""),
    "no UTF-8": (raw("utf", content=f"{SAID} @").replace(b"@", b"\xff\xfe"), "content", "UTF-8"),
    "a NUL": (raw("nul", content=f"{SAID} \x00"), "content", "NUL"),
    "a NUL in the scope": (raw("nul2", scope_id="a\x00b"), "scope_id", "NUL"),
    "a role of two words": (raw("role", role="two words"), "role", "word"),
    "a scope kind that is a path": (raw("kind", scope="../user"), "scope", "word"),
    "a scope id too long": (raw("long", scope_id="n" * 513), "scope_id", "512"),
    "year 1": (raw("y1", timestamp="0001-01-01T00:00:00Z"), "timestamp", "1900-2199"),
    "year 9999": (raw("y9999", timestamp="9999-12-31T23:59:59Z"), "timestamp", "1900-2199"),
    "milliseconds": (raw("ms", timestamp=T0 * 1000), "timestamp", "divide by 1000"),
    "no time": (raw("when", timestamp="yesterday"), "timestamp", "ISO 8601"),
    "text for a number": (raw("num", index="3"), "index", ""),
    "an unknown type": (raw("type", type="tern"), "type", "none of"),
}


@dataclass
class World:
    """A data folder into which good and bad was published; its pipeline has ended."""

    data_dir: Path
    memory: Memory
    dead_letters: list[dict[str, Any]]
    events: dict[str, int]
    counts: dict[str, int]
    modes: dict[str, int]
    log: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    outer = tmp_path_factory.mktemp("outer")
    data_dir, log = outer / "d", tmp_path_factory.mktemp("log") / "up.log"
    pipeline = RunningPipeline(data_dir, log=log, settings={"TURNSTREAM_INDEX__MIN_TAIL": "2"})
    pipeline.start()
    with pipeline.publisher() as publisher:
        publisher.publish_many(
            turn(f"who am I number {n}", f"who-{n}", Scope("user", scope_id))
            for n, scope_id in enumerate(STRANGE_IDS)
        )
        publisher.publish_many([turn("", "empty"), turn(" \n\t ", "blank")])
        publisher.publish_many(turn(f"role number {n}", f"role-{n}", role=r) for n, r in enumerate(STRANGE_ROLES))
        publisher.publish(turn("zoneless moment", "zoneless", timestamp="2024-05-01T12:00:00"))
        publisher.close_session(PLAIN, "s1", timestamp=T0 + 9)
        publisher.forget(PLAIN, "no such session")
    with connect(pipeline.url, timeout_s=5) as client:
        stream = common.stream_of(pipeline.effective())
        stream.append_many([bad for bad, _, _ in BAD.values()])
        stream.append(raw("largest", content=LARGEST + "x" * (MAX_CONTENT_BYTES - len(LARGEST))))
        client.xadd("turnstream:turns", {"evnt": SAID})
    pipeline.wait()
    letters = json.loads(pipeline.run("dead-letters", "list", "--json").stdout)["dead_letters"]
    stats = pipeline.stats()
    modes = {str(path.relative_to(outer)): path.lstat().st_mode for path in outer.rglob("*")}
    assert pipeline.stop() == 0
    embedder = load_embedder(
        model="", backend="hashing", models_dir=data_dir, n_threads=1, batch_tokens=4096
    )  # fmt: skip
    memory = open_memory(data_dir, embedder=embedder)
    yield World(data_dir, memory, letters, stats["events"], stats["memory"], modes, log.read_text())
    memory.close()


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: mode, time of change and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (facts.st_mode, facts.st_mtime_ns, content)
    return found


def test_each_scope_sees_its_own_turn_whatever_its_id_looks_like(world: World) -> None:
    """A scope id is a user's name on some platform: it may look like a path, a pattern or a statement."""
    for number, scope_id in enumerate(STRANGE_IDS):
        hits = world.memory.retrieve("who am I", Scope("user", scope_id)).hits
        assert [hit.text for hit in hits] == [f"who am I number {number} {SAID}"], scope_id
    assert world.counts["scopes"] == len(STRANGE_IDS) + 1


def test_nothing_is_written_outside_the_data_folder_nor_readable_by_others(world: World) -> None:
    """What was said belongs to one user of the machine."""
    assert {Path(name).parts[0] for name in world.modes} == {"d"}
    wide = {name: oct(mode) for name, mode in world.modes.items() if stat.S_IMODE(mode) & 0o077}
    assert wide == {}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_event_is_set_aside_with_its_field_and_reason(world: World, what: str) -> None:
    """Whoever wrote the publisher must see from the reason what to change."""
    _, field, reason = BAD[what]
    letter = world.dead_letters[list(BAD).index(what)]
    assert (letter["field"], letter["n_bytes"]) == (field, len(BAD[what][0]))
    assert reason in letter["reason"]
    assert SAID not in letter["reason"]


def test_every_event_is_accounted_for(world: World) -> None:
    """Bad neighbours in a batch cost the good ones nothing."""
    n_good = len(STRANGE_IDS) + 2 + len(STRANGE_ROLES) + 1 + 1 + 2
    assert world.events == {"applied": n_good, "dead_lettered": len(BAD) + 1}
    assert "no field 'event'" in world.dead_letters[-1]["reason"]
    assert (world.counts["turns"], world.counts["skipped"]) == (n_good - 2, 2)
    assert (world.counts["quarantined"], world.counts["pending"]) == (0, 0)


def test_content_of_exactly_the_limit_is_searchable(world: World) -> None:
    """The limit is inclusive."""
    (hit,) = world.memory.retrieve("needle", PLAIN, recall_top_k=1).hits
    assert hit.turn_id == "largest"


def test_a_role_nobody_heard_of_is_kept(world: World) -> None:
    """Platforms have their own words."""
    hits = world.memory.retrieve("role number", PLAIN, chunks_per_session=20, recall_top_k=20).hits
    assert {hit.role for hit in hits if hit.turn_id.startswith("role-")} == set(STRANGE_ROLES)


def test_a_time_without_a_zone_is_utc(world: World) -> None:
    """The contract says so; the machine's own zone must not matter."""
    (hit,) = world.memory.retrieve("zoneless moment", PLAIN, recall_top_k=1).hits
    assert hit.timestamp.isoformat() == "2024-05-01T12:00:00+00:00"


def test_no_log_holds_what_was_said(world: World) -> None:
    """Logs are shipped to places that hold no user data."""
    assert world.log.count("batch.committed") >= 1
    assert SAID not in world.log
    for file in (world.data_dir / "server").glob("*.log"):
        assert SAID not in file.read_text()


def test_a_query_of_ten_thousand_words_is_answered(world: World) -> None:
    """It is cut at the model's limit."""
    hits = world.memory.retrieve("needle " * 10_000, PLAIN).hits
    assert "largest" in {hit.turn_id for hit in hits}


def test_reading_a_scope_that_does_not_exist_leaves_the_folder_as_it_is(
    world: World, turnstream: CommandLine
) -> None:
    """Asking must not make ledgers, whoever asks."""
    before = tree(world.data_dir)
    assert world.memory.retrieve("anything", Scope("user", "nobody")).hits == ()
    asked = turnstream("retrieve", "anything", "--scope", "user/nobody", "--json", "--data-dir", str(world.data_dir))
    assert (asked.code, json.loads(asked.out)["hits"]) == (0, [])
    assert tree(world.data_dir) == before


def test_another_model_than_the_ledgers_is_refused(world: World, turnstream: CommandLine, models_dir: Path) -> None:
    """Vectors of two models in one search answer nonsense; both are named, and what to do."""
    asked = turnstream(
        "retrieve", "who", "--scope", "user/a", "--data-dir", str(world.data_dir),
        TURNSTREAM_EMBEDDING__BACKEND="onnx-int8", TURNSTREAM_EMBEDDING__CACHE_DIR=str(models_dir),
    )  # fmt: skip
    assert asked.code == 2
    assert "hashing@1/hashing/384" in asked.err
    assert "all-MiniLM-L6-v2" in asked.err
    assert "TURNSTREAM_EMBEDDING__MODEL" in asked.err


def rename_model(data_dir: Path, scope: Scope, model_key: str) -> str:
    """Have a ledger claim another model; gives the former one."""
    connection = apsw.Connection(str(Shards(data_dir).ledger_path(scope)))
    ((former,),) = connection.execute("SELECT value FROM meta WHERE key = 'model_key'").fetchall()
    connection.execute("UPDATE meta SET value = ? WHERE key = 'model_key'", (model_key,))
    connection.close()
    return str(former)


def test_scopes_that_cannot_be_worked_on_cost_their_turns_nothing_and_others_neither(
    data_dir: Path, tmp_path: Path, turnstream: CommandLine
) -> None:
    """One ledger of another model and one damaged, in one doorbell with a healthy one."""
    log = tmp_path / "up.log"
    pipeline = RunningPipeline(data_dir, log=log)
    foreign, damaged, healthy = (Scope("user", name) for name in ("foreign", "damaged", "healthy"))
    pipeline.start()
    with pipeline.publisher() as publisher:
        publisher.publish_many(turn("first", f"{s.id}-1", s) for s in (foreign, damaged, healthy))
        pipeline.wait()
        pipeline.stop()
        former = rename_model(data_dir, foreign, "other@1/onnx-int8/384")
        whole = Shards(data_dir).ledger_path(damaged).read_bytes()
        for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
            (Shards(data_dir).folder(damaged) / name).unlink(missing_ok=True)
        Shards(data_dir).ledger_path(damaged).write_bytes(b"no database" * 1000)
        pipeline.start()
        publisher.publish_many(turn("second", f"{s.id}-2", s) for s in (foreign, damaged, healthy))
        refused = {"scope.refused", "shard.refused"}
        eventually(lambda: refused <= set(re.findall(r"[a-z]+\.refused", log.read_text())), "both are refused")
        eventually(lambda: len(pipeline.retrieve("second", "user/healthy")) == 2, "the healthy one goes on")
    text = log.read_text()
    assert "was written with other@1/onnx-int8/384, the settings name hashing@1/hashing/384" in text
    assert "user/damaged" not in text
    assert str(Shards(data_dir).ledger_path(damaged)) in text
    assert "Traceback" not in text
    with apsw.Connection(str(Shards(data_dir).ledger_path(foreign))) as connection:
        states = connection.execute("SELECT state, attempts FROM turns ORDER BY turn_offset").fetchall()
    assert states == [(2, 1), (0, 0)]
    assert turnstream("doctor", "--verify", "--data-dir", str(data_dir)).code == 4
    assert turnstream("retrieve", "q", "--scope", "user/damaged", "--data-dir", str(data_dir)).code == 4
    listed = turnstream("dead-letters", "list", "--data-dir", str(data_dir))
    assert listed.code == 0
    assert f"left out: {Shards(data_dir).ledger_path(damaged)} is damaged" in listed.err
    pipeline.stop()
    rename_model(data_dir, foreign, former)
    Shards(data_dir).ledger_path(damaged).write_bytes(whole)
    pipeline.start()
    pipeline.wait()
    assert pipeline.stats()["memory"]["searchable"] in {5, 6}  # the copy of the damaged one lacks what its WAL held
    assert pipeline.stop() == 0


def test_a_bad_line_among_good_ones_is_reported_with_its_number(
    turnstream: CommandLine, data_dir: Path, server_url: str
) -> None:
    """The good ones go in; the exit code says that something did not."""
    lines = [raw("l1"), b"no json", b"", raw("l2"), raw("l3", role="two words"), b"\xff\xfe", raw("l4")]
    ended = turnstream(
        "publish", "-", "--json", "--data-dir", str(data_dir), "--redis-url", server_url, stdin=b"\n".join(lines)
    )
    told = json.loads(ended.out)
    assert (ended.code, told["published"]) == (1, 3)
    assert [reason.split(":")[0] for reason in told["refused"]] == ["line 2", "line 5", "line 6"]
    assert "Traceback" not in ended.err


@pytest.mark.timeout(240)
def test_a_full_server_refuses_and_loses_nothing(
    start_server: StartServer, turnstream: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    """What was accepted is worked off, which makes room for the rest; publishing again doubles nothing."""
    server = start_server("valkey", "--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    events = [raw(f"full-{n}", content=f"{SAID} number {n} " + "p" * 20_000) for n in range(300)]
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join(events))
    publish = ["publish", str(file), "--data-dir", str(data_dir), "--redis-url", server.url]
    refused = turnstream(*publish)
    assert refused.code == 1
    assert "full" in refused.err
    assert SAID not in refused.err
    with RunningPipeline(data_dir, server.url, log=tmp_path / "up.log") as pipeline:

        def is_accepted() -> bool:
            code = turnstream(*publish).code
            pipeline.wait()  # as one would at the keyboard: until there is room again
            return code == 0

        eventually(is_accepted, "there is room for all", within_s=150)
        memory, happened = pipeline.stats()["memory"], pipeline.stats()["events"]
        assert (memory["turns"], memory["searchable"], memory["quarantined"]) == (300, 300, 0)
        assert happened["applied"] == 300
        assert set(happened) == {"applied", "duplicate"}
        assert pipeline.stop() == 0
    assert SAID not in (tmp_path / "up.log").read_text()
