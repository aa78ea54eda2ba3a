"""Forgetting, end to end: after the commit no reader finds it, after the purge no file or key holds a byte of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from pipeline.embed import load_embedder
from pipeline.ledger import Ledger, forgetting, word_segments
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.records import Event, Mood, Scope, SessionClosed, SessionDeleted, Turn, TurnDeleted
from pipeline.shards import LEDGER_FILE, Shards
from pipeline.stream import connect
from tests.commands import CommandLine
from tests.ledgers import publish_snapshot, remember
from tests.running import RunningPipeline
from workers.checkup import verify_data

T0 = 1_700_000_000
NOTHING = {"turns": 0, "sessions": 0, "summaries": 0, "chunks": 0, "dead_letters": 0}
READER = """
import json, sys
from pipeline.records import Scope
from retrieval import open_memory
memory = open_memory()
for line in sys.stdin:
    query, scope = json.loads(line)
    found = memory.retrieve(query, scope, recall_top_k=99, chunks_per_session=99)
    said = [[hit.text, *(n.text for n in (*hit.preceding, *hit.following))] for hit in found.hits]
    summaries = [row.text for row in memory.summary_store.list_sessions(Scope.parse(scope))]
    print(json.dumps([said, summaries]), flush=True)
"""


@dataclass
class Reader:
    """A bot's process with its memory open, asked over and over."""

    process: subprocess.Popen[str]

    def ask(self, query: str, scope: Scope) -> str:
        """Give all that it found, as one text."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([query, scope.key]) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


@dataclass
class Place:
    """A scope of one test's own, whose every word carries a marker that stands nowhere else."""

    name: str
    scope: Scope = field(init=False)
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.scope = Scope("user", self.name)

    def turn(self, marker: str, *, session: str = "s1", **fields: Any) -> Turn:
        """A turn whose every field holds the marker."""
        number = next(self._numbers)
        values = {
            "role": "user", "content": f"{marker} said {number} things about the harbour", "timestamp": T0 + number,
            "event_id": f"{self.name}-{marker}-e{number}", "turn_id": f"{marker}-t{number}", "speaker": f"{marker}er",
            "tags": (f"{marker}tag",), "mood": Mood(0.5), "metadata": {f"{marker}key": f"{marker}value"},
        }  # fmt: skip
        return Turn(scope=self.scope, session_id=session, **{**values, **fields})

    def broken(self, marker: str, session: str = "s1", **fields: Any) -> list[bytes]:
        """Entries that are refused, some of them hardly readable, each about the session."""
        about = {
            "type": "turn", "event_id": f"{self.name}-{marker}-{next(self._numbers)}", "scope": "user",
            "scope_id": self.name, "session_id": session, "role": "two words", "content": f"{marker} @",
            "timestamp": T0,
        }  # fmt: skip
        raw = json.dumps(about | fields).encode()
        return [
            raw,
            raw.replace(b"@", b"\xff\xfe"),
            raw[:-20],
            raw[:-1] + b', "x": ' + b"[" * 5_000,
        ]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """One pipeline for all tests of this module; each has scopes of its own."""
    data_dir = tmp_path_factory.mktemp("forget") / "data"
    quick = {"TURNSTREAM_INDEX__MIN_TAIL": "2", "TURNSTREAM_WORKERS__SWEEP_EVERY_S": "0.2"}
    with RunningPipeline(data_dir, settings=quick, log=data_dir.parent / "log") as pipeline:
        with connect(pipeline.url, timeout_s=5) as client:
            client.config_set("rdbcompression", "no")  # it would hide words from `where`
        yield pipeline


@pytest.fixture(scope="module")
def reader(running: RunningPipeline) -> Iterator[Reader]:
    """A process that was there before anything was said."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER], env=running.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    yield Reader(process)
    assert process.stdin
    process.stdin.close()
    assert process.stdout
    process.stdout.close()
    assert process.wait(10) == 0


@pytest.fixture
def forget(running: RunningPipeline, turnstream: CommandLine) -> Callable[..., dict[str, Any]]:
    """The verb; gives what it printed."""

    def run(*arguments: str) -> dict[str, Any]:
        ended = turnstream("forget", *arguments, "--json", **verb_settings(running))
        assert ended.code == 0, ended.err
        printed: dict[str, Any] = json.loads(ended.out)
        return printed

    return run


def verb_settings(running: RunningPipeline) -> dict[str, str]:
    return {name: value for name, value in running.environment.items() if name.startswith("TURNSTREAM_")}


def publish(running: RunningPipeline, *events: Event | bytes) -> None:
    with connect(running.url, timeout_s=5) as client, running.publisher() as publisher:
        for event in events:
            if isinstance(event, bytes):
                client.xadd("turnstream:turns", {"event": event})
            else:
                publisher.publish_event(event)
    running.wait()


def closed(place: Place, session: str = "s1") -> SessionClosed:
    event_id = f"close-{place.name}-{session}"
    return SessionClosed(scope=place.scope, session_id=session, timestamp_ms=T0 * 1000, event_id=event_id)


def where(running: RunningPipeline, marker: str) -> list[str]:
    """List the files and the keys that hold a marker, in whatever case."""
    files = [path for path in sorted(running.data_dir.parent.rglob("*")) if path.is_file()]
    found = [str(path) for path in files if marker.encode() in path.read_bytes().lower()]
    found += [f"{path}: words" for path in files if path.name == LEDGER_FILE and marker in vocabulary(path)]
    with connect(running.url, timeout_s=5) as client:
        found += [key.decode() for key in client.scan_iter() if marker.encode() in (client.dump(key) or b"").lower()]
    return found


def vocabulary(path: Path) -> str:
    """All words of a ledger's segments: a file may hold one in two pages, which lie apart."""
    with closing(connect_ledger(path, query_only=True)) as connection:
        rows = connection.execute("SELECT vocabulary FROM word_segments").fetchall()
        return "".join(bytes(row[0]).decode() for row in rows)


def logical_content(running: RunningPipeline, scope: Scope) -> list[object]:
    """Every row of a ledger, notes of when something happened included."""
    with closing(connect_ledger(Shards(running.data_dir).ledger_path(scope), query_only=True)) as connection:
        tables = ("events", "tombstones", "vacated", "turns", "traces", "vectors", "sessions", "summaries", "meta",
                  "cards", "word_segments", "word_gaps")  # fmt: skip
        words = connection.execute("SELECT rowid FROM fulltext WHERE fulltext MATCH 'harbour'").fetchall()
        return [words, *(connection.execute(f"SELECT * FROM {t} ORDER BY 1, 2").fetchall() for t in tables)]


def letters_of(running: RunningPipeline) -> list[bytes]:
    with connect(running.url, timeout_s=5) as client:
        return [fields[b"event"] for _, fields in client.xrange("turnstream:dead")]


def test_a_session_is_forgotten_everywhere(
    running: RunningPipeline, reader: Reader, forget: Callable[..., dict[str, Any]]
) -> None:
    """The one promise that a user asks for by name."""
    ann, bob, marker = Place("ann"), Place("ann2"), "zqanngone"
    gone = [ann.turn(marker, session=f"{marker}-s") for _ in range(4)]
    kept = [place.turn("keptword") for place in (ann, bob) for _ in range(3)]
    bobs = bob.broken("keptword", f"{marker[:-1]}-s")
    broken = ann.broken(marker, f"{marker}-s")
    beside = [letter for pair in zip(broken, bobs, strict=True) for letter in pair]  # the server keeps them together
    publish(running, *gone, *kept, *beside, closed(ann, f"{marker}-s"), closed(ann), closed(bob))
    assert marker in reader.ask("harbour", ann.scope)
    assert len(where(running, marker)) >= 3
    before, n_letters = logical_content(running, bob.scope), len(letters_of(running))
    told = forget("--scope", ann.scope.key, "--session", f"{marker}-s")
    assert (told["known"], told["purged"], told["server_file_rewritten"]) == (True, True, True)
    n_chunks = told["removed"].pop("chunks")
    assert told["removed"] == {"turns": 4, "sessions": 1, "summaries": 1, "dead_letters": len(broken)}
    assert n_chunks >= 4
    assert where(running, marker) == []
    answer = reader.ask("harbour", ann.scope)
    assert marker not in answer
    assert "keptword" in answer
    assert logical_content(running, bob.scope) == before
    assert len(letters_of(running)) == n_letters - len(broken)


def test_a_turn_is_forgotten_and_its_session_told_anew(
    running: RunningPipeline, reader: Reader, forget: Callable[..., dict[str, Any]]
) -> None:
    """Its summary told what it said, and so did the snapshot, the full text and its former revision."""
    cid, marker = Place("cid"), "zqcidgone"
    old, *others = cid.turn(marker), cid.turn("keptword", index=1), cid.turn("keptword", index=2)
    new = cid.turn(marker, turn_id=old.turn_id, revision=1, index=old.index)
    publish(running, old, new, *others, closed(cid))
    told = forget("--scope", cid.scope.key, "--session", "s1", "--turn", old.turn_id)
    n_chunks = told["removed"].pop("chunks")
    assert told["removed"] == {"turns": 1, "sessions": 0, "summaries": 1, "dead_letters": 0}
    assert n_chunks >= 1
    assert where(running, marker) == []
    running.wait()
    answer = reader.ask("harbour", cid.scope)
    assert marker not in answer
    assert "keptword" in answer
    with closing(connect_ledger(Shards(running.data_dir).ledger_path(cid.scope), query_only=True)) as connection:
        assert "keptword" in str(connection.execute("SELECT text FROM summaries").fetchall())


def test_words_go_from_the_segments_that_hold_them(
    running: RunningPipeline, forget: Callable[..., dict[str, Any]]
) -> None:
    """A segment has each word once, whoever said it: it is built anew without the one who asked."""
    lea, marker = Place("lea"), "zqleagone"
    path = Shards(running.data_dir).ledger_path(lea.scope)
    publish(running, lea.turn("keptword"), *(lea.turn(f"{marker}{n}", session=f"{marker}-s") for n in range(60)))
    with closing(Ledger.open(path, lea.scope)) as ledger, ledger.write() as connection:
        word_segments.seal_when_due(connection, 0, seal_turns=1)  # as ingest does when there are many
    assert marker in vocabulary(path)
    forget("--scope", lea.scope.key, "--session", f"{marker}-s")
    assert where(running, marker) == []
    assert "keptword" in vocabulary(path)
    with closing(connect_ledger(path, query_only=True)) as connection:
        assert connection.execute("SELECT * FROM word_gaps").fetchall() == []
    assert verify_data(running.effective(), scopes=[lea.scope]) == []


def test_a_scope_is_forgotten_and_may_come_back(
    running: RunningPipeline, reader: Reader, forget: Callable[..., dict[str, Any]]
) -> None:
    """Everything said until now goes; what the same user says tomorrow is remembered."""
    dan, marker = Place("dan"), "zqdangone"
    said = [dan.turn(marker, session=f"{marker}-{n % 2}") for n in range(4)]
    publish(running, *said, *dan.broken(marker, session=f"{marker}-9"), closed(dan, f"{marker}-0"))
    told = forget("--scope", dan.scope.key)
    n_chunks = told["removed"].pop("chunks")
    assert told["removed"] == {"turns": 4, "sessions": 2, "summaries": 1, "dead_letters": 4}
    assert n_chunks >= 4
    assert where(running, marker) == []
    publish(running, dan.turn("keptword", timestamp=time.time() + 1))
    assert "keptword" in reader.ask("harbour", dan.scope)


@pytest.mark.parametrize("arguments", [[], ["--session", "s9"], ["--session", "s1", "--turn", "t9"]])
def test_what_was_never_there_is_said_to_be_unknown(
    running: RunningPipeline, reader: Reader, turnstream: CommandLine, arguments: list[str]
) -> None:
    """A misspelt id must not pass for done; what comes of it later is refused all the same."""
    eve = Place(f"eve{len(arguments)}")
    if arguments:
        publish(running, eve.turn("keptword", turn_id="t1"))
    ended = turnstream("forget", "--scope", eve.scope.key, *arguments, **verb_settings(running))
    assert ended.code == 0
    assert f"there was no {['scope', 'session', 'turn'][len(arguments) // 2]}" in ended.out
    assert repr(arguments[-1] if arguments else eve.scope.key) in ended.out
    late = eve.turn("zqevegone", session="s9" if len(arguments) == 2 else "s1", turn_id="t9")
    publish(running, late)
    assert "zqevegone" not in reader.ask("harbour", eve.scope)
    again = turnstream("forget", "--scope", eve.scope.key, *arguments, "--json", **verb_settings(running))
    told = json.loads(again.out)
    assert (told["known"], told["asked_for_before"]) == (False, True)


def test_a_replay_revives_nothing(
    running: RunningPipeline, reader: Reader, forget: Callable[..., dict[str, Any]]
) -> None:
    """A platform that sends its history again must neither undo what was asked for nor fill the server's file."""
    fay, marker = Place("fay"), "zqfaygone"
    said = fay.turn(marker, session=f"{marker}-s")
    single = fay.turn(marker)
    publish(running, said, single, fay.turn("keptword"))
    forget("--scope", fay.scope.key, "--session", f"{marker}-s")
    forget("--scope", fay.scope.key, "--session", "s1", "--turn", single.turn_id)
    revised = [
        fay.turn(marker, session=turn.session_id, turn_id=turn.turn_id, revision=9, timestamp=T0 + 10_000)
        for turn in (said, single)
    ]
    publish(running, said, single, *revised, closed(fay, f"{marker}-s"))
    assert marker not in reader.ask("harbour", fay.scope)
    assert where(running, marker) == []


def test_a_long_reader_only_delays_the_purge(running: RunningPipeline, turnstream: CommandLine) -> None:
    """Its transaction sees the old state, and SQLite keeps it in the WAL; new readers see nothing."""
    gil, marker = Place("gil"), "zqgilgone"
    publish(running, gil.turn(marker), gil.turn(marker))
    path = Shards(running.data_dir).ledger_path(gil.scope)
    with closing(connect_ledger(path, query_only=True)) as holding:
        holding.execute("BEGIN")
        assert holding.execute("SELECT count(*) FROM turns").fetchall() == [(2,)]
        ended = turnstream("forget", "--scope", gil.scope.key, "--timeout", "1.5", **verb_settings(running))
        assert ended.code == 1
        assert "its last bytes remain" in ended.err
        with closing(connect_ledger(path, query_only=True)) as other:
            assert other.execute("SELECT count(*) FROM turns").fetchall() == [(0,)]
            assert forgetting.PURGE_DUE in dict(other.execute("SELECT key, value FROM meta").fetchall())
    running.wait()
    assert where(running, marker) == []


def test_what_a_repair_put_aside_goes_too(running: RunningPipeline, forget: Callable[..., dict[str, Any]]) -> None:
    """A copy that the program made is reached, whatever it is for."""
    hal, marker = Place("hal"), "zqhalgone"
    publish(running, hal.turn(marker))
    path = Shards(running.data_dir).ledger_path(hal.scope)
    workshop = path.with_name(f".{path.name}.0.salvage")
    workshop.mkdir()
    for copy in (
        path.with_name(f"{path.name}.damaged-1"),
        path.with_name(f"{path.name}.damaged-1-wal"),
        workshop / "x",
    ):
        copy.write_text(marker)
    forget("--scope", hal.scope.key, "--session", "s1")
    assert where(running, marker) == []


@pytest.mark.parametrize("arguments", [["--session", "s1"], ["--session", "s1", "--turn", "t0"]])
def test_a_backup_is_cleaned_by_the_same_command(
    data_dir: Path, turnstream: CommandLine, arguments: list[str]
) -> None:
    """It lies outside the data folder, and nothing runs on it."""
    ida, shards = Place("ida"), Shards(data_dir)
    embedder = load_embedder(model="", backend="hashing", models_dir=data_dir, n_threads=1, batch_tokens=4_096)
    said = [ida.turn("zqidagone", turn_id=f"t{n}") for n in range(1 if "--turn" in arguments else 3)]
    remember(shards, ida.scope, [*said, ida.turn("keptword", session="s2")], embedder)
    publish_snapshot(shards, ida.scope, embedder)
    ended = turnstream(
        "forget", "--offline", "--json", "--scope", ida.scope.key, *arguments, TURNSTREAM_DATA_DIR=str(data_dir)
    )
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert (told["known"], told["removed"]["turns"]) == (True, len(said))
    files = [path for path in data_dir.rglob("*") if path.is_file()]
    assert not [path.name for path in files if b"zqidagone" in path.read_bytes() or path.suffix == ".faiss"]
    assert any(b"keptword" in path.read_bytes() for path in files)
    with closing(apsw.Connection(str(shards.ledger_path(ida.scope)))) as connection:
        assert forgetting.PURGE_DUE in dict(connection.execute("SELECT key, value FROM meta").fetchall())


def test_offline_leaves_a_folder_in_use_alone(running: RunningPipeline, turnstream: CommandLine) -> None:
    """The workers would write back what they hold."""
    ended = turnstream("forget", "--offline", "--scope", "user/jon", **verb_settings(running))
    assert ended.code == 2
    assert "already in use" in ended.err


@pytest.mark.parametrize("event", [SessionDeleted, TurnDeleted])
def test_any_publisher_may_ask(running: RunningPipeline, reader: Reader, event: type[Any]) -> None:
    """The verb is a convenience: the events are the contract."""
    kim = Place(f"kim{event.__name__.lower()}")
    said = kim.turn("zqkimgone")
    about = {"turn_id": said.turn_id} if event is TurnDeleted else {}
    publish(running, said)
    publish(running, event(scope=kim.scope, session_id="s1", timestamp_ms=T0 * 1000, event_id="ask", **about))
    assert "zqkimgone" not in reader.ask("harbour", kim.scope)
    assert where(running, "zqkimgone") == []
