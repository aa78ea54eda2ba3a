"""What a stranger may send, and what an onlooker may see: files, logs, secrets, and the broker's messages."""

from __future__ import annotations

import base64
import json
import os
import pickle
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract import MAX_EVENT_BYTES
from pipeline.records import Scope, Turn
from pipeline.settings import load_settings
from pipeline.shards import Shards
from pipeline.stream import MAX_LETTER_BYTES, address, connect
from retrieval import open_memory
from tests import openai_server
from tests.commands import CommandLine
from tests.conftest import StartServer
from tests.eventually import eventually
from tests.ledgers import remember, summarise
from tests.running import RunningPipeline
from workers.app import EMBED_TURNS, QUEUES, make_app, ring

WORD = "zqsecretword"
KEY = "zqsecretkey"
T0 = 1_700_000_000
ANN, ANNA = Scope("user", "ann"), Scope("user", "anna")
MEMORY_LIMIT_BYTES = 600 << 20


@dataclass
class Used:
    """A pipeline that has been used in every way, under a umask that hides nothing."""

    running: RunningPipeline
    log: Path
    forged: Path
    worker: int
    bombs: dict[str, bytes]


def turn(content: str, number: int, scope: Scope = ANN, **fields: Any) -> Turn:
    values = {"role": "user", "timestamp": T0 + number, "event_id": f"{scope.id}-{WORD}-{number}", **fields}
    return Turn(scope=scope, session_id=f"{WORD}-s", content=content, **values)


def raw(**fields: Any) -> bytes:
    event = {
        "type": "turn", "event_id": uuid.uuid4().hex, "scope": "user", "scope_id": "ann", "session_id": f"{WORD}-s",
        "role": "user", "content": f"{WORD} said", "timestamp": T0,
    }  # fmt: skip
    return json.dumps(event | fields).encode()


BAD = [
    raw(role=f"{WORD} two"), raw(**{f"{WORD}key": "a\x00b"}), raw(mood={f"{WORD}mood": 1}), raw(type=WORD),
    raw(timestamp=WORD), raw(scope=f"{WORD}/x"), raw(index=WORD), raw(content=f"{WORD} \ud800"), WORD.encode(),
    raw()[:-9], raw(metadata={WORD: float("inf")}), raw(tags=[{WORD: 1}]),
]  # fmt: skip
BOMBS = {
    "60 MiB": b'{"content": "' + b"x" * (60 << 20) + b'"}',
    "100 000 levels": raw()[:-1] + b', "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of a million digits": raw()[:-1] + b', "index": ' + b"9" * 1_000_000 + b"}",
    "a million keys": b"{" + b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}",
    "as many keys as fit": b"{" + b",".join(b'"%d":1' % n for n in range(160_000)) + b"}",
}


def forged_doorbells(proof: Path) -> list[bytes]:
    """Messages that make a file appear when they are unpickled, or read as YAML; and some that are none."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (proof,)

    yaml = f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{proof}']]"
    arguments: Any = ([[ANN.key]], {}, {})
    bodies = [
        ("application/x-python-serialize", "binary", pickle.dumps(Evil())),
        ("application/x-yaml", "utf-8", yaml.encode()),
        ("application/json", "utf-8", b"{"),
        ("application/json", "utf-8", json.dumps([[[WORD, 7, None]], {}, {}]).encode()),
        ("application/json", "utf-8", json.dumps([[WORD], {WORD: 1}, {}]).encode()),
        ("application/json", "utf-8", json.dumps(arguments).encode()),
    ]
    return [_doorbell(*body) for body in bodies]


def _doorbell(content_type: str, encoding: str, body: bytes, task: str = EMBED_TURNS) -> bytes:
    name = uuid.uuid4().hex
    delivery = {"exchange": "", "routing_key": EMBED_TURNS}
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(), "content-type": content_type, "content-encoding": encoding,
            "headers": {"lang": "py", "task": task, "id": name, "root_id": name, "argsrepr": "", "kwargsrepr": ""},
            "properties": {
                "correlation_id": name, "reply_to": name, "delivery_mode": 2, "delivery_info": delivery,
                "priority": 0, "body_encoding": "base64", "delivery_tag": uuid.uuid4().hex,
            },
        }
    ).encode()  # fmt: skip


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    """Run everything once; the tests then look at what it left."""
    folder = tmp_path_factory.mktemp("security")
    with openai_server.running() as model:
        refusal = json.dumps({"error": {"message": f"you said {WORD}", "code": WORD}}).encode()
        model.will(
            openai_server.Reply(500, refusal), openai_server.Reply(400, refusal), openai_server.ok(f"{WORD} plans")
        )
        running = RunningPipeline(
            folder / "data",
            log=folder / "log",
            settings={
                "TURNSTREAM_LOG_LEVEL": "debug", "TURNSTREAM_INDEX__MIN_TAIL": "2",
                "TURNSTREAM_SUMMARY__INVOKER": "openai", "TURNSTREAM_SUMMARY__BASE_URL": model.base_url,
                "TURNSTREAM_SUMMARY__API_KEY": KEY, "TURNSTREAM_SUMMARY__ATTEMPTS": "1",
                "TURNSTREAM_SUMMARY__RETRY_AFTER_S": "0.2",
            },
        )  # fmt: skip
        before = os.umask(0)
        try:
            with running:
                yield _use(running, folder)
        finally:
            os.umask(before)


def _use(running: RunningPipeline, folder: Path) -> Used:
    worker = eventually(lambda: running.children().get("worker"))
    with running.publisher() as publisher, connect(running.url, timeout_s=30) as client:
        publisher.publish_many([turn(f"{WORD} said {n}", n, scope) for n in range(4) for scope in (ANN, ANNA)])
        publisher.close_session(ANN, f"{WORD}-s")
        for entry in (*BAD, *BOMBS.values()):
            client.xadd("turnstream:turns", {"event": entry})
        client.xadd("turnstream:turns", {WORD: WORD, "event": raw()})
        running.wait()
        for message in forged_doorbells(folder / "forged"):
            client.lpush(EMBED_TURNS, message)
        eventually(lambda: all(client.llen(queue) == 0 for queue in QUEUES))
        publisher.publish(turn(f"{WORD} said last", 9))
        publisher.forget(ANN, f"{WORD}-other")
    running.wait()
    eventually(lambda: "session.summarised" in (folder / "log").read_text())
    return Used(running, folder / "log", folder / "forged", worker, BOMBS)


def test_everything_on_disk_is_private(used: Used, turnstream: CommandLine) -> None:
    """Chat is readable by whoever can read the files; a umask of 000 is what some containers start with."""
    transcript = used.log.with_name("chats.jsonl")
    transcript.write_text(json.dumps({"messages": [{"role": "user", "content": f"{WORD} once"}]}) + "\n")
    turnstream.settings = verb_settings(used.running)
    assert turnstream("backfill", str(transcript), "--format", "openai", "--scope", "user/ann").code == 0
    assert turnstream("retrieve", WORD, "--scope", "user/ann").code == 0
    wide = {}
    kinds = set()
    for path in [used.running.data_dir, *used.running.data_dir.rglob("*")]:
        mode = path.lstat().st_mode
        kinds.add("socket" if stat.S_ISSOCK(mode) else path.suffix)
        if stat.S_IMODE(mode) != (0o600 if stat.S_ISREG(mode) else 0o700):
            wide[str(path.relative_to(used.running.data_dir))] = oct(mode)
    assert wide == {}
    assert {"socket", ".sqlite", ".sqlite-wal", ".sqlite-shm", ".faiss", ".json", ".aof", ".rdb", ".lock"} <= kinds


def verb_settings(running: RunningPipeline) -> dict[str, str]:
    return {name: value for name, value in running.environment.items() if name.startswith("TURNSTREAM_")}


def test_logs_hold_no_word_that_was_said(used: Used) -> None:
    """They are shipped, kept and read by others than the chat is meant for; debug is no excuse."""
    lines = used.log.read_text().splitlines()
    assert len([line for line in lines if "entry.dead_lettered" in line]) == len(BAD) + len(BOMBS)
    for event in ("session.postponed", "library.reported"):
        assert [line for line in lines if event in line]
    assert [line for line in lines if WORD in line or KEY in line] == []


def test_a_forged_doorbell_is_refused_and_the_worker_goes_on(used: Used) -> None:
    """Whoever reaches the server could otherwise run code in every worker."""
    assert not used.forged.exists()
    assert used.worker in used.running.pids()["worker"]


def test_what_is_too_large_is_set_aside_within_bounds(used: Used) -> None:
    """Its size is seen before it is parsed; what is kept of it is bounded too."""
    with connect(used.running.url, timeout_s=30) as client:
        letters = [fields for _, fields in client.xrange("turnstream:dead")]
    kept = [letter.get(b"event") for letter in letters]
    for name, bomb in used.bombs.items():
        assert (bomb in kept) == (len(bomb) <= MAX_LETTER_BYTES), name
    reasons = [letter[b"reason"].decode() for letter in letters]
    assert sum(f"at most {MAX_EVENT_BYTES}" in reason for reason in reasons) == 2
    assert max(len(b"".join(letter.values())) for letter in letters) < MAX_LETTER_BYTES + 1_000
    for name in ("worker", "ingester"):
        peak = Path(f"/proc/{used.running.children()[name]}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(peak) << 10 < MEMORY_LIMIT_BYTES, f"{name}: {peak} kB"


@pytest.mark.parametrize("login", [f":{KEY}@", f"nobody:{KEY}wrong@"])
def test_secrets_are_shown_nowhere(
    start_server: StartServer, turnstream: CommandLine, data_dir: Path, login: str
) -> None:
    """A terminal is shared, and an error is sent to whoever may help."""
    server = start_server("valkey")
    with connect(server.url, timeout_s=5) as client:
        client.config_set("requirepass", KEY)
    url = f"unix://{login}{server.socket}?db=3"
    turnstream.settings |= {
        "TURNSTREAM_DATA_DIR": str(data_dir), "TURNSTREAM_REDIS__URL": url, "TURNSTREAM_SUMMARY__API_KEY": KEY,
        "TURNSTREAM_LOG_LEVEL": "debug",
    }  # fmt: skip
    verbs = (
        ["settings"],
        ["settings", "--json"],
        ["doctor"],
        ["stats"],
        ["forget", "--scope", "user/a", "--no-wait"],
    )
    ended = [turnstream(*verb) for verb in verbs]
    refused = "wrong" in login
    degraded = 1  # no ingester runs
    assert [e.code for e in ended] == ([0, 0, 2, 2, 2] if refused else [0, 0, degraded, 0, 0])
    shown = "".join(e.out + e.err for e in ended)
    settings = load_settings(data_dir=data_dir, redis={"url": url}, summary={"api_key": KEY})
    with connect(url, timeout_s=5) as client, make_app(url, timeout_s=5) as app:
        objects = [settings, settings.redis, settings.summary, client, app, address(client)]
        if not refused:
            ring(app, EMBED_TURNS, ["user/a"], scopes_per_task=1)
            assert client.llen(EMBED_TURNS) == 1, "the doorbells wait in another database"
    shown += "".join(f"{thing!r} {thing}" for thing in objects)
    assert KEY not in shown


def test_two_scopes_with_the_same_ids_never_meet(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is a prefix of the other, and every id within them is the same; the nearest texts are the other's."""
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__BACKEND", "hashing")
    shards, memory = Shards(data_dir), open_memory(data_dir)
    scopes = [ANN, ANNA, Scope("thread", "ann"), Scope("user", "ann/s1")]
    for number, scope in enumerate(scopes):
        said = [
            Turn(scope=scope, session_id="s1", role="user", content=f"owner{number} likes the harbour {n}",
                 timestamp=T0 + n, event_id=f"e{n}")
            for n in range(1 + 20 * number)
        ]  # fmt: skip
        remember(shards, scope, said, memory.embedder)
        summarise(shards, scope, "s1", f"owner{number} on the harbour", memory.embedder)
    for number, scope in enumerate(scopes):
        for query in ("the harbour", *(f"owner{n} likes the harbour 0" for n in range(4))):
            found = memory.retrieve(query, scope, recall_top_k=50, chunks_per_session=50)
            texts = [
                text for hit in found.hits for text in (hit.text, *(n.text for n in (*hit.preceding, *hit.following)))
            ]
            texts += [row.text for row in memory.summary_store.list_sessions(scope)]
            assert len(found.hits) == min(50, 1 + 20 * number)
            assert {text.split()[0] for text in texts} == {f"owner{number}"}
