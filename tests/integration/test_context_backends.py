"""Every store of windows keeps what `SessionMemory` promises: one suite for all four, on real servers."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from pydantic import SecretStr

from pipeline.errors import ConfigError, NotFoundError, TransientError
from pipeline.ledger.forgetting import FOR_GOOD, PURGE_DUE, Tombstones
from pipeline.records import Scope
from pipeline.settings import ContextSettings, Settings
from pipeline.stream import connect
from retrieval import open_memory
from retrieval.context.backends import opening
from retrieval.context.backends.protocol import Kept, SessionKey
from retrieval.context.entries.entry import Entry
from tests.conftest import RunningServer, StartServer
from tests.postgres import RunningPostgres
from tests.small_pipeline import SmallPipeline
from tests.window_store import SCOPE, Store

BACKENDS = ("memory", "sqlite", "redis", "postgres")
SHARED = ("redis", "postgres")
LOOK_ALIKE = (
    *("a/b", "a:b", "a\\b", "a b", " a/b", "A/b", "__proto__", "constructor", "../../etc", "%s%d%00", "'; DROP--"),
    *('"quoted"', "{a}", "a*", "🦜", "🦜\u200d", "é", "e\u0301", "x" * 300, "x" * 299 + "y", "user/u1", "0", "None"),
)


@pytest.fixture(scope="module")
def window_redis(start_server: StartServer) -> RunningServer:
    """One for this module: some tests end it."""
    return start_server("redis")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of the kind that the test asks for."""
    made = Store(request.param, None, tmp_path)
    if made.name == "redis":
        made.server = request.getfixturevalue("window_redis")
        made.url = made.server.url
        with connect(made.url, timeout_s=5) as client:
            client.flushall()
    elif made.name == "postgres":
        made.server = request.getfixturevalue("postgres_server")
        made.url = made.server.url
        made.server.ask("DROP TABLE IF EXISTS turnstream_windows")
    with made.opened:
        yield made


every = pytest.mark.parametrize("store", BACKENDS, indirect=True)
every_shared = pytest.mark.parametrize("store", SHARED, indirect=True)


@every
def test_the_window_is_what_was_remembered_last(store: Store) -> None:
    """Ten exchanges and five conclusions, oldest first; an unanswered one concludes nothing."""
    memory = store.bot()
    sessions = memory.session_memory("user/u1")
    assert sessions.load("s1") == sessions.load("s1")
    assert sessions.load("s1").last_updated is None
    for n in range(12):
        memory.remember("s1", "user/u1", f"ask {n}", f"answer {n}" if n != 10 else "", [f"key {n}"])
    loaded = sessions.load("s1")
    assert [past.objective for past in loaded.conversation_history] == [f"ask {n}" for n in range(2, 12)]
    assert loaded.previous_conclusions == tuple(f"answer {n}" for n in (6, 7, 8, 9, 11))
    assert loaded.conversation_history[-1].key_results == ("key 11",)
    assert loaded.last_updated == loaded.conversation_history[-1].timestamp
    assert len(memory.session_memory(SCOPE).entries("s1").entries) == 12


@every
def test_fifty_at_once_from_four_processes_are_all_kept_once(store: Store) -> None:
    """A bot runs in many processes. The window `memory` is one process's own: there four threads do it."""
    context = multiprocessing.get_context("fork")
    memory = store.bot()
    memory.remember("other", SCOPE, "before the fork", "connections are open")
    fork = store.name != "memory"
    kind: Any = context.Process if fork else threading.Thread

    def work(number: int) -> None:
        mine = store.bot() if fork and number % 2 else memory  # a fresh one, or one that was open before the fork
        for n in range(number, 50, 4):
            mine.remember("s1", SCOPE, f"ask {n}", f"answer {n}", entry_id=f"id {n:02}")
            if n % 5 == 0:
                mine.remember("s1", SCOPE, f"ask {n}", "again", entry_id=f"id {n:02}")
        if fork:
            mine.close()

    workers = [kind(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
        assert not fork or each.exitcode == 0
    entries = memory.session_memory(SCOPE).entries("s1").entries
    assert sorted((e.objective, e.conclusion) for e in entries) == sorted(
        (f"ask {n}", f"answer {n}") for n in range(50)
    )
    latest = [e.entry_id for e in sorted(entries, key=lambda e: (e.time_ms, e.entry_id))[-10:]]
    assert sorted(store.kept(memory, "s1")) == sorted(latest)
    loaded = memory.session_memory(SCOPE).load("s1").conversation_history
    assert len({past.objective for past in loaded}) == len(loaded) == 10


@every_shared
def test_a_store_loses_nothing_that_processes_add_at_once(store: Store) -> None:
    """No ledger takes turns for them here. They come first of all, too: the table is made by who is fastest."""
    settings = store.settings(max_conversations=1_000).context
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)

    def work(number: int) -> None:
        windows = opening.open_shared(settings)
        assert windows is not None
        start.wait(30)
        for n in range(25):
            entry_id = f"{number}-{n}"
            entry = Entry(entry_id=entry_id, session_id="s1", time_ms=n, objective="ask", conclusion="answer")
            windows.append(SessionKey(SCOPE, "s1"), Kept(entry, (entry_id,)))
        windows.close()

    workers = [context.Process(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
        assert each.exitcode == 0
    assert store.kept(store.bot(max_conversations=1_000), "s1") == [
        f"{number}-{n}" for n in range(25) for number in range(4)
    ]


@every
def test_ids_that_look_alike_share_nothing(store: Store) -> None:
    """Ids are the platform's; whatever they hold is an id, not a path, a pattern or a property."""
    memory = store.bot()
    for number, session_id in enumerate(LOOK_ALIKE):
        memory.remember(session_id, SCOPE, f"ask {number}", f"answer {number}")
    scopes = [Scope("user", "u1/s"), Scope("thread", "u1"), Scope("user", "u1\x01"), Scope("u", "ser/u1")]
    for number, scope in enumerate(scopes):
        memory.remember("a/b", scope, f"scope {number}", "x")
    for number, session_id in enumerate(LOOK_ALIKE):
        history = memory.session_memory(SCOPE).load(session_id).conversation_history
        assert [past.objective for past in history] == [f"ask {number}"], session_id
        assert store.kept(memory, session_id) != [] or store.name == "sqlite"
    for number, scope in enumerate(scopes):
        history = memory.session_memory(scope).load("a/b").conversation_history
        assert [past.objective for past in history] == [f"scope {number}"]


@every
def test_after_a_long_silence_a_session_starts_anew(store: Store) -> None:
    """What is older than `ttl` counts as none; the ledger keeps it."""
    now_ms = [1_700_000_000_000]
    memory = store.bot(clock=lambda: now_ms[0], ttl_s=60)
    sessions = memory.session_memory(SCOPE)
    for text in ("one", "two"):
        memory.remember("s1", SCOPE, text, "done")
        now_ms[0] += 50_000
    assert [past.objective for past in sessions.load("s1").conversation_history] == ["one", "two"]
    now_ms[0] += 20_000
    assert sessions.load("s1").conversation_history == ()
    memory.remember("s1", SCOPE, "three", "done")
    assert [past.objective for past in sessions.load("s1").conversation_history] == ["three"]
    assert len(memory._session_resources.cache.entries(SCOPE, "s1").entries) == 3


@every
def test_a_forgotten_session_is_gone_and_stays_gone(store: Store) -> None:
    """The other sessions of the scope go on."""
    memory = store.bot()
    sessions = memory.session_memory(SCOPE)
    for session_id in ("s1", "s2"):
        memory.remember(session_id, SCOPE, "ask", "answer", entry_id="one")
    sessions.forget("s1")
    assert sessions.load("s1").conversation_history == ()
    assert store.kept(memory, "s1") == []
    for entry_id in ("one", "two"):
        with pytest.raises(NotFoundError, match="forgotten"):
            memory.remember("s1", SCOPE, "ask", "answer", entry_id=entry_id)
    assert store.kept(memory, "s1") == []
    assert len(sessions.load("s2").conversation_history) == 1
    memory.session_memory("user/nobody").forget("s1")


@every_shared
def test_hosts_share_what_either_remembers(store: Store) -> None:
    """Each has a ledger of its own; nothing comes twice, and order is by time."""
    now_ms = [1_700_000_000_000]

    def clock() -> int:
        now_ms[0] += 1_000
        return now_ms[0]

    one, two = store.bot("one", clock), store.bot("two", clock)
    for n in range(6):
        (one, two)[n % 2].remember("s1", SCOPE, f"ask {n}", f"answer {n}", ["k"], tools=["t"], entry_id=f"id {n}")
    two.remember("s1", SCOPE, "ask 0, again", "answer 0", entry_id="id 0")
    for memory in (one, two):
        found = memory.session_memory(SCOPE).entries("s1")
        seen = {entry.objective for entry in found.entries}
        assert {f"ask {n}" for n in range(1, 6)} < seen
        assert len(found.entries) == len({entry.entry_id for entry in found.entries}) == len(found.vectors) == 6
        assert [entry.time_ms for entry in found.entries] == sorted(entry.time_ms for entry in found.entries)
    other = store.bot("three").session_memory(SCOPE).load("s1")
    assert [past.objective for past in other.conversation_history] == [f"ask {n}" for n in range(6)]


@every_shared
def test_what_the_ledger_forgot_does_not_come_out_of_a_window(store: Store) -> None:
    """A purge may take a while; readers look at what was forgotten first."""
    memory = store.bot()
    memory.remember("s1", SCOPE, "ask", "answer")
    alone = open_memory(settings=store.settings().model_copy(update={"context": ContextSettings()}))
    with closing(alone):
        alone.session_memory(SCOPE).forget("s1")  # as the pipeline does: it does not know of the window
    assert len(store.kept(memory, "s1")) == 1
    assert memory.session_memory(SCOPE).load("s1").conversation_history == ()


@every_shared
def test_a_call_that_ended_between_ledger_and_window_is_made_up_for(store: Store) -> None:
    """A bot that was killed in between calls again with the same id."""
    alone = open_memory(settings=store.settings().model_copy(update={"context": ContextSettings()}))
    with closing(alone):
        alone.remember("s1", SCOPE, "ask", "answer", entry_id="one")
    memory = store.bot()
    assert store.kept(memory, "s1") == []
    memory.remember("s1", SCOPE, "ask", "answer", entry_id="one")
    assert store.kept(memory, "s1") == ["one"]
    assert len(memory.session_memory(SCOPE).entries("s1").entries) == 1


@every_shared
@pytest.mark.parametrize(
    "raw",
    [
        b"\xff{",
        b'{"format": 1, "session_id": "s2", "exchanges": []}',
        b'{"format": 1, "session_id": "s1", "exchanges": [{"entry": {}, "turn_ids": [1]}]}',
        b'{"format": 9, "session_id": "s1", "exchanges": []}',
    ],
)
def test_a_damaged_record_is_set_aside_and_told_of(store: Store, raw: bytes) -> None:
    """One session's record must not stop a bot, nor vanish unseen."""
    memory = store.bot()
    for session_id in ("s1", "s2"):
        memory.remember(session_id, SCOPE, "ask", "answer")
    store.damage("s1", raw)
    with structlog.testing.capture_logs() as logs:
        assert len(memory.session_memory(SCOPE).load("s1").conversation_history) == 1
        memory.remember("s1", SCOPE, "more", "answer")
        assert len(memory.session_memory(SCOPE).load("s2").conversation_history) == 1
    assert [(line["event"], line["backend"]) for line in logs if line["log_level"] == "error"] == [
        ("window.set_aside", store.name)
    ]
    assert len(store.kept(memory, "s1")) == 1
    assert raw in store.raw()


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_the_set_of_sessions_shrinks_with_their_windows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each purge walks it; and a purge deletes nothing that came after it looked."""
    memory, key = store.bot(ttl_s=3600), SessionKey(SCOPE, "s1")
    index = f"turnstream:windows:{{{key.scope_digest.hex()}}}"
    windows: Any = memory._session_resources.windows
    for session_id in ("s1", "forgotten", "expired", "damaged"):
        memory.remember(session_id, SCOPE, "ask", "answer")
    store.damage("damaged", b"{")
    with connect(store.url or "", timeout_s=5) as client:
        assert client.pttl(index) > 3_590_000
        client.delete(f"turnstream:window:{{{key.scope_digest.hex()}}}:{SessionKey(SCOPE, 'expired').digest.hex()}")
        assert windows.purge(SCOPE, lambda name: Tombstones(FOR_GOOD if name == "forgotten" else None)) == 2
        assert client.smembers(index) == {key.digest.hex().encode()}
        read, damaged = windows._get, iter([b"{"])
        monkeypatch.setattr(windows, "_get", lambda place: next(damaged, None) or read(place))
        assert windows.purge(SCOPE, lambda _: Tombstones()) == 0
        assert len(store.kept(memory, "s1")) == 1
        memory.session_memory(SCOPE).forget("s1")
        assert not client.exists(index)


def test_a_key_of_another_type_is_set_aside_too(window_redis: RunningServer, tmp_path: Path) -> None:
    """Somebody else may use the same names."""
    store = Store("redis", window_redis.url, tmp_path, window_redis)
    key = SessionKey(SCOPE, "taken")
    with store.opened, connect(window_redis.url, timeout_s=5) as client:
        client.lpush(f"turnstream:window:{{{key.scope_digest.hex()}}}:{key.digest.hex()}", "x")
        memory = store.bot()
        memory.remember("taken", SCOPE, "ask", "answer")
        assert len(store.kept(memory, "taken")) == 1


@every_shared
def test_a_server_that_is_away_is_told_of_and_nothing_is_written(store: Store) -> None:
    """A bot must know that it was not remembered, and a log must not know the password."""
    memory = store.bot()
    memory.remember("s1", SCOPE, "ask", "answer")
    assert store.server is not None
    store.server.kill()
    try:
        calls: list[Callable[[], object]] = [
            lambda: memory.remember("s1", SCOPE, "lost", "answer"),
            lambda: memory.session_memory(SCOPE).load("s1"),
        ]
        for call in calls:
            with pytest.raises(TransientError, match="does not answer") as raised:
                call()
            assert "secret" not in str(raised.value)
    finally:
        store.server.start()
    assert [e.objective for e in memory.session_memory(SCOPE).entries("s1").entries] == ["ask"]
    memory.remember("s1", SCOPE, "more", "answer")
    assert len(memory.session_memory(SCOPE).entries("s1").entries) == 2


@every_shared
def test_the_workers_purge_removes_what_was_forgotten(
    store: Store, window_redis: RunningServer, tmp_path: Path
) -> None:
    """Deleted is gone, wherever a byte of it was kept; while the server is away the purge stays due."""
    pipeline = SmallPipeline(tmp_path / "host", url=window_redis.url)
    pipeline.settings = pipeline.settings.model_copy(update={"context": store.settings().context})
    memory = store.bot()
    for session_id in ("s1", "s2", "s3"):
        memory.remember(session_id, SCOPE, f"zqmarker in {session_id}", f"zqmarker of {session_id}", ["zqmarker"])
    store.damage("s3", b"zqmarker that is no record")
    pipeline.work()
    assert b"zqmarker of s1" in store.raw()
    alone = open_memory(settings=store.settings().model_copy(update={"context": ContextSettings()}))
    with closing(alone):
        alone.session_memory(SCOPE).forget("s1")
    if isinstance(store.server, RunningPostgres):
        store.server.kill()
        pipeline.work()
        assert PURGE_DUE in store.meta()
        store.server.start()
    pipeline.work()
    assert PURGE_DUE not in store.meta()
    left = store.raw()
    assert b"zqmarker of s2" in left
    assert b"zqmarker of s1" not in left
    assert b"no record" not in left, "nothing can be forgotten within it"
    assert len(memory.session_memory(SCOPE).load("s2").conversation_history) == 1


@pytest.mark.parametrize(
    ("backend", "url", "says"),
    [
        ("redis", None, "CONTEXT__URL is missing"),
        ("postgres", "  ", "CONTEXT__URL is missing"),
        ("redis", "nonsense", "cannot be read"),
        ("postgres", "host=localhost password=secretword", "is no URL"),
        ("postgres", "postgresql://%zz", "cannot be read"),
    ],
)
def test_a_store_that_cannot_work_is_an_error_when_it_is_opened(
    tmp_path: Path, backend: str, url: str | None, says: str
) -> None:
    """Memory silently off is found out by users."""
    chosen = ContextSettings.model_construct(
        **(ContextSettings().model_dump() | {"backend": backend, "url": SecretStr(url) if url else None})
    )
    settings = Settings(data_dir=tmp_path).model_copy(update={"context": chosen})
    with pytest.raises(ConfigError, match=says) as raised:
        open_memory(settings=settings)
    assert "secretword" not in str(raised.value)


def test_a_user_without_rights_is_told_so(postgres_server: RunningPostgres, tmp_path: Path) -> None:
    """An operator must grant something: trying again does not help."""
    postgres_server.ask("DROP TABLE IF EXISTS turnstream_windows")
    postgres_server.ask("DROP ROLE IF EXISTS guest")
    postgres_server.ask("CREATE ROLE guest LOGIN")
    url = postgres_server.url.replace("turnstream:secretword", "guest")
    store = Store("postgres", url, tmp_path, postgres_server)
    with store.opened, pytest.raises(ConfigError, match="InsufficientPrivilege"):
        store.bot().remember("s1", SCOPE, "ask", "answer")
    with pytest.raises(psycopg.errors.UndefinedTable):
        postgres_server.ask("SELECT 1 FROM turnstream_windows")
