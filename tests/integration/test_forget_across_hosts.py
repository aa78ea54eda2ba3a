"""What one host forgot leaves the store of windows that hosts share, and no other host brings it back there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TransientError
from pipeline.ledger.forgetting import Tombstones, turn_digest
from pipeline.settings import ContextSettings
from pipeline.stream import connect
from retrieval import Memory, open_memory
from retrieval.context.backends.protocol import ForgottenOf, Kept, SessionKey
from retrieval.context.backends.redis import RedisWindows
from tests.eventually import eventually
from tests.window_store import SCOPE, Store

KEY = SessionKey(SCOPE, "s1")


def forgotten(*entry_ids: str) -> ForgottenOf:
    """Exchanges, forgotten one by one."""
    return lambda session_id: Tombstones(turns=tuple(turn_digest(session_id, each) for each in entry_ids))


@pytest.fixture(params=["redis", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store that hosts share."""
    server = request.getfixturevalue(f"{request.param}_server")
    if request.param == "redis":
        with connect(server.url, timeout_s=5) as client:
            client.flushall()
    else:
        server.ask("DROP TABLE IF EXISTS turnstream_windows")
    made = Store(request.param, server.url, tmp_path, server)
    with made.opened:
        yield made


def windows_of(memory: Memory) -> Any:
    return memory._session_resources.windows


def objectives(memory: Memory) -> list[str]:
    return [past.objective for past in memory.session_memory(SCOPE).load("s1").conversation_history]


def forget_by_call(_store: Store, host: Memory) -> None:
    host.session_memory(SCOPE).forget("s1")


def forget_by_purge(store: Store, host: Memory) -> None:
    """As the pipeline does: in the ledger, which does not know of windows; the workers' purge comes later."""
    alone = open_memory(settings=store.settings("one").model_copy(update={"context": ContextSettings()}))
    with closing(alone):
        alone.session_memory(SCOPE).forget("s1")
    windows_of(host).purge(SCOPE, host.session_memory(SCOPE)._forgotten_of)


@pytest.mark.parametrize("forget", [forget_by_call, forget_by_purge])
def test_what_a_host_forgot_is_not_brought_back_by_one_that_tells_it_again(store: Store, forget: Any) -> None:
    """A bot that got no answer calls again with the same id, and its own ledger has not forgotten anything."""
    one, two, three = (store.bot(host) for host in ("one", "two", "three"))
    one.remember("other", SCOPE, "Which port?", "8080.")
    two.remember("s1", SCOPE, "zqmarker", "Noted.", entry_id="e-1")
    assert objectives(three) == ["zqmarker"]
    forget(store, one)
    two.remember("s1", SCOPE, "zqmarker", "Noted.", entry_id="e-1")
    assert objectives(one) == objectives(three) == []
    assert b"zqmarker" not in store.raw()
    assert b"s1" not in store.raw()
    two.remember("s1", SCOPE, "more", "answer")
    assert objectives(three) == [], "for good, whoever forgot it"
    assert objectives(two) == ["zqmarker", "more"], "a ledger is one host's: it forgets for itself"


def test_one_exchange_is_forgotten_and_the_rest_of_its_session_goes_on(store: Store) -> None:
    """Only what was forgotten is refused: of an earlier exchange that a host tells late, nobody has asked that."""
    now_ms = [1_700_000_000_000]
    one, two, three = (store.bot(host, lambda: now_ms[0]) for host in ("one", "two", "three"))
    late = remembered_alone(store, now_ms[0] - 1_000)
    for n in range(3):
        two.remember("s1", SCOPE, f"ask {n}", "answer", entry_id=f"e-{n}")
        now_ms[0] += 1_000
    assert windows_of(one).purge(SCOPE, forgotten("e-1")) == 1
    two.remember("s1", SCOPE, "ask 1", "answer", entry_id="e-1")
    assert objectives(three) == ["ask 0", "ask 2"]
    assert windows_of(one).purge(SCOPE, forgotten("e-0", "e-2")) == 2
    for n in range(3):
        two.remember("s1", SCOPE, f"ask {n}", "answer", entry_id=f"e-{n}")
    assert objectives(three) == []
    late.remember("s1", SCOPE, "early", "answer", entry_id="early")
    two.remember("s1", SCOPE, "ask 3", "answer", entry_id="e-3")
    assert objectives(three) == ["early", "ask 3"]
    assert windows_of(one).purge(SCOPE, forgotten()) == 0
    assert objectives(three) == ["early", "ask 3"]


def remembered_alone(store: Store, at_ms: int) -> Memory:
    """A host that has an exchange the store has not: it was killed in between."""
    alone = open_memory(
        settings=store.settings("late").model_copy(update={"context": ContextSettings()}), clock=lambda: at_ms
    )
    with closing(alone):
        alone.remember("s1", SCOPE, "early", "answer", entry_id="early")
    return store.bot("late")


def test_what_was_forgotten_after_it_left_the_window_does_not_come_back(store: Store) -> None:
    """A purge makes room in a window; a host that tells the exchange again must not fill it with that."""
    one, two = (store.bot(host, max_conversations=2, max_conclusions=2) for host in ("one", "two"))
    for n in range(4):
        two.remember("s1", SCOPE, f"ask {n}", "answer", entry_id=f"e-{n}")
    assert store.kept(one, "s1") == ["e-2", "e-3"]
    assert windows_of(one).purge(SCOPE, forgotten("e-0", "e-3")) == 1
    for n in (0, 3):
        two.remember("s1", SCOPE, f"ask {n}", "answer", entry_id=f"e-{n}")
    assert store.kept(one, "s1") == ["e-2"]


def test_a_scope_that_was_forgotten_up_to_a_time_may_go_on_after_it(store: Store) -> None:
    """Each session of it takes what is said later, and nothing that was said before."""
    now_ms = [1_700_000_000_000]
    one, two = (store.bot(host, lambda: now_ms[0]) for host in ("one", "two"))
    two.remember("s1", SCOPE, "before", "answer", entry_id="e-0")
    assert windows_of(one).purge(SCOPE, lambda _: Tombstones(up_to_ms=now_ms[0])) == 1
    two.remember("s1", SCOPE, "before", "answer", entry_id="e-0")
    assert store.kept(one, "s1") == []
    now_ms[0] += 1
    two.remember("s1", SCOPE, "after", "answer", entry_id="e-1")
    assert store.kept(one, "s1") == ["e-1"]


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_host_that_looked_before_a_forgetting_writes_nothing_of_it_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking and writing there is time for everything. In PostgreSQL it is one transaction with a lock."""
    one, two, three = (store.bot(host) for host in ("one", "two", "three"))
    one.remember("other", SCOPE, "Which port?", "8080.")
    two.remember("s1", SCOPE, "zqmarker", "Noted.")
    read = RedisWindows._read
    looked: list[bytes | None] = []

    def look_then_forget(windows: RedisWindows, key: SessionKey) -> Any:
        found = read(windows, key)
        if not looked:
            looked.append(found[0])
            one.session_memory(SCOPE).forget("s1")
        return found

    monkeypatch.setattr(RedisWindows, "_read", look_then_forget)
    kept: Kept = read(windows_of(two), KEY)[1].exchanges[0]
    windows_of(two).append(KEY, Kept(kept.entry, ("t-9",)))
    two.remember("s1", SCOPE, "more", "answer")
    assert looked
    assert objectives(three) == []
    assert b"zqmarker" not in store.raw()


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_full_server_forgets_all_the_same(store: Store) -> None:
    """It takes no more writes: a whole session, all of another, and one exchange of a third go, and stay gone."""
    one, two = store.bot("one"), store.bot("two")
    for session_id in ("s1", "s2", "s3"):
        two.remember(session_id, SCOPE, "zqmarker", "Noted.", entry_id="e-1")
    two.remember("s3", SCOPE, "ask", "answer", entry_id="e-2")
    with connect(store.url or "", timeout_s=5) as client:
        client.config_set("maxmemory", 1)
        try:
            one.session_memory(SCOPE).forget("s1")
            assert windows_of(one).purge(SCOPE, forgotten("e-1")) == 2
            with pytest.raises(TransientError, match="cannot serve now"):
                two.remember("s3", SCOPE, "more", "answer")
        finally:
            client.config_set("maxmemory", 0)
    for session_id in ("s1", "s2", "s3"):
        two.remember(session_id, SCOPE, "zqmarker", "Noted.", entry_id="e-1")
    assert b"zqmarker" not in store.raw()
    assert store.kept(two, "s3") == ["e-2"]


def test_what_tells_of_the_forgotten_ends_some_day(store: Store) -> None:
    """A digest for each session that ever was would fill a server."""
    one = store.bot("one")
    one.remember("s1", SCOPE, "ask", "answer")
    one.session_memory(SCOPE).forget("s1")
    if store.name == "redis":
        with connect(store.url or "", timeout_s=5) as client:
            (key,) = client.keys()
            assert 0 < client.pttl(key) <= 90 * 86_400_000
        return
    server: Any = store.server
    assert len(server.ask("SELECT 1 FROM turnstream_windows")) == 1
    server.ask("UPDATE turnstream_windows SET written = now() - interval '91 days'")
    one.remember("s2", SCOPE, "ask", "answer")
    one.session_memory(SCOPE).forget("s2")
    assert len(server.ask("SELECT 1 FROM turnstream_windows")) == 1


def test_what_tells_of_the_forgotten_outlives_the_windows(store: Store) -> None:
    """They end after a silence of a second here; who tells again what was forgotten may come a month later."""
    one, two, three = (store.bot(host, ttl_s=1) for host in ("one", "two", "three"))
    for session_id in ("s1", "s3"):
        two.remember(session_id, SCOPE, "zqmarker", "Noted.", entry_id="e-1")
    two.remember("s3", SCOPE, "ask", "zqshort", entry_id="e-2")
    one.session_memory(SCOPE).forget("s1")
    windows_of(one).purge(SCOPE, forgotten("e-1"))
    if store.name == "redis":
        with connect(store.url or "", timeout_s=5) as client:
            eventually(lambda: len(list(client.scan_iter())) == 2, "the windows have ended")
            assert all(client.pttl(key) > 60_000 for key in client.scan_iter())
    else:
        server: Any = store.server
        server.ask("UPDATE turnstream_windows SET written = now() - interval '1 minute'")
    three.remember("s2", SCOPE, "ask", "answer")
    three.remember("s2", SCOPE, "ask", "answer")
    for session_id in ("s1", "s3"):
        two.remember(session_id, SCOPE, "zqmarker", "Noted.", entry_id="e-1")
    assert b"zqmarker" not in store.raw()
    assert b"zqshort" not in store.raw(), "notes keep no window alive"
