"""What a deletion leaves in a ledger: enough to know what was forgotten again, and nothing of it."""

from __future__ import annotations

import dataclasses
import random
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pipeline.contract import attribution
from pipeline.errors import TransientError
from pipeline.ledger import Ledger, connection, events, forgetting, upkeep
from pipeline.ledger.events import Outcome
from pipeline.records import Event, Scope, ScopeDeleted, SessionDeleted, Turn, TurnDeleted
from pipeline.summarise import SummaryCache
from tests.ledgers import turn as make_turn

SCOPE = Scope("user", "u1")
NOW = 1_700_000_000_000


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    path = tmp_path / "ledger.sqlite"
    connection.create(path)
    return Ledger.open(path, SCOPE)


def turn(event_id: str, index: int = 0, *, session: str = "s1", at: float = 100, **fields: object) -> Turn:
    return make_turn(SCOPE, event_id, f"text of {event_id}", session=session, at=at, index=index, **fields)


def turn_deleted(turn_id: str, session: str = "s1") -> TurnDeleted:
    event_id = f"delete {session} {turn_id}"
    return TurnDeleted(scope=SCOPE, session_id=session, turn_id=turn_id, timestamp_ms=NOW, event_id=event_id)


def scope_deleted(until_s: int) -> ScopeDeleted:
    return ScopeDeleted(scope=SCOPE, timestamp_ms=until_s * 1000, event_id=f"delete until {until_s}")


SESSION_DELETED = SessionDeleted(scope=SCOPE, session_id="s1", timestamp_ms=NOW, event_id="delete s1")


def apply(ledger: Ledger, *several: Event) -> list[Outcome]:
    return events.apply(ledger, several, now_ms=NOW)


def status(ledger: Ledger) -> upkeep.Status:
    return upkeep.status(ledger, idle_ms=0, settle_ms=0)


def vacated(ledger: Ledger) -> set[tuple[object, ...]]:
    return set(ledger.connection.execute("SELECT session_id, turn_index FROM vacated"))


def test_an_event_is_known_again_by_a_digest_alone(ledger: Ledger) -> None:
    """The id of a forgotten event may itself tell who said what; a replay must be recognised all the same."""
    said = turn("telegram-ada-lovelace-4211")
    apply(ledger, said, turn_deleted(said.turn_id))
    upkeep.purge_ledger(ledger)
    assert events.is_applied(ledger.connection, said.event_id)
    assert not events.is_applied(ledger.connection, "telegram-ada-lovelace-4212")
    assert apply(ledger, said) == [Outcome.DUPLICATE]
    ledger.close()
    for path in ledger.path.parent.iterdir():
        assert b"lovelace" not in path.read_bytes(), path.name


def test_one_id_twice_in_a_batch_is_applied_once(ledger: Ledger) -> None:
    """A batch looks its ids up before it begins, and must still see what it wrote itself."""
    first, second = turn("e1"), turn("e1", 1, turn_id="another")
    assert apply(ledger, first, second) == [Outcome.APPLIED, Outcome.DUPLICATE]


@pytest.mark.parametrize("deleted_first", [False, True])
def test_a_turn_deleted_on_request_leaves_a_hole_on_record(ledger: Ledger, *, deleted_first: bool) -> None:
    """Otherwise the checker would report a turn as lost that somebody asked to be gone."""
    gone = [turn("e2", 2), turn_deleted("e2")]
    apply(ledger, turn("e1", 1), *(reversed(gone) if deleted_first else gone), turn("e3", 3))
    assert vacated(ledger) == {("s1", 2)}


def test_holes_go_with_their_session(ledger: Ledger) -> None:
    """A hole names its session; nothing may name a forgotten one, whatever comes for it later."""
    apply(ledger, turn("e1", 1), turn_deleted("e1"), turn_deleted("late"), turn("e2", 2, session="s2"))
    apply(ledger, turn_deleted("e2", "s2"), SESSION_DELETED, turn("late", 3), turn_deleted("later"), turn("later", 4))
    assert vacated(ledger) == {("s2", 2)}


def test_holes_go_with_their_scope_up_to_its_deletion(ledger: Ledger) -> None:
    """Whoever asked to be forgotten and came back has holes of the new time only."""
    apply(ledger, turn("old", 1, at=100), turn("new", 2, at=300), turn_deleted("old"), turn_deleted("new"))
    apply(ledger, turn_deleted("late"), scope_deleted(200), turn("late", 3, at=150))
    assert vacated(ledger) == {("s1", 2)}


def test_a_ledger_of_the_former_format_says_so(tmp_path: Path) -> None:
    """Its events are known by their ids, which this release would not find."""
    path = tmp_path / "ledger.sqlite"
    connection.create(path)
    with closing(Ledger.open(path, SCOPE)) as made:
        made.connection.execute("UPDATE meta SET value = '1' WHERE key = 'format'")
    with pytest.raises(connection.ShardError, match="format 1"):
        Ledger.open(path, SCOPE)


def test_no_copy_of_a_moved_row_outlives_its_purge(ledger: Ledger) -> None:
    """SQLite overwrites a deleted row, but not what was left of it in a page that it had moved away from before."""
    chance = random.Random(8)  # a history that leaves two such copies without the rewrite
    said = [
        make_turn(SCOPE, f"{'zqgone' if n % 5 == 0 else 'kept'}{n}", "x" * chance.choice([10, 200, 900]),
                  session=f"s{chance.randrange(10)}", at=1e9 + chance.randrange(10**6))
        for n in range(400)
    ]  # fmt: skip
    chance.shuffle(said)
    apply(ledger, *said)
    apply(ledger, *(turn_deleted(t.turn_id, t.session_id) for t in said if t.turn_id.startswith("zqgone")))
    upkeep.purge_ledger(ledger)
    content = b"".join(path.read_bytes() for path in ledger.path.parent.iterdir())
    assert b"zqgone" not in content
    assert b"kept1" in content


def test_a_rewrite_leaves_the_scope_s_folder_at_no_time(ledger: Ledger) -> None:
    """By default SQLite copies every word into /tmp, which may be small, and somebody else's to read."""
    apply(ledger, *(make_turn(SCOPE, f"e{n}", "x" * 1_000_000) for n in range(16)))
    over, before, seen = threading.Event(), open_files(), set[str]()

    def watch() -> None:
        while not over.is_set():
            seen.update(open_files() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        ledger.rewrite()
    finally:
        over.set()
        watching.join()
    assert seen
    assert [path for path in seen if not path.startswith(str(ledger.path.parent))] == []


def open_files() -> set[str]:
    found = set[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {path for path in found if path.endswith("(deleted)")}


def test_a_request_whose_event_was_lost_is_taken_again(ledger: Ledger) -> None:
    """A salvage may keep the one row without the other; refusing it would end the ingester at each start."""
    apply(ledger, turn("e1"), SESSION_DELETED)
    upkeep.end_purge(ledger, str(status(ledger).purge_due), now_ms=NOW, rewritten=True)
    ledger.connection.execute("DELETE FROM events")
    assert apply(ledger, turn("e1"), SESSION_DELETED) == [Outcome.FORGOTTEN, Outcome.APPLIED]
    again = forgetting.outcome(ledger.connection, SESSION_DELETED.event_id)
    assert again is not None
    assert (again.was_known, again.turns, again.purged_ms) == (True, 1, None)


def test_each_request_keeps_the_numbers_of_what_it_removed(ledger: Ledger) -> None:
    """Two in one batch must not claim each other's; a third finds nothing, and says so."""
    apply(ledger, turn("e1"), turn("e2"), turn("e3", session="s2"))
    first, second = turn_deleted("e1"), SESSION_DELETED
    requests = [first, second, scope_deleted(200)]
    apply(ledger, *requests, turn_deleted("e1"))
    outcomes = [forgetting.outcome(ledger.connection, event.event_id) for event in requests]
    assert [(o.was_known, o.turns, o.sessions) for o in outcomes if o] == [(True, 1, 0), (True, 1, 1), (True, 1, 1)]
    again = turn_deleted("e1")
    apply(ledger, dataclasses.replace(again, event_id="again"))
    repeated = forgetting.outcome(ledger.connection, "again")
    assert repeated
    assert (repeated.was_known, repeated.was_forgotten, repeated.turns) == (False, True, 0)
    assert forgetting.outcome(ledger.connection, "never asked") is None


def test_a_purge_ends_only_what_it_began_with(ledger: Ledger) -> None:
    """What is forgotten meanwhile, even within the same millisecond, stays due."""
    apply(ledger, turn("e1"), turn("e2"), turn_deleted("e1"))
    token = status(ledger).purge_due
    assert token
    upkeep.note_files_purged(ledger, token)
    apply(ledger, turn_deleted("e2"))
    assert not upkeep.end_purge(ledger, token, now_ms=NOW, rewritten=True)
    assert status(ledger).purge_due
    assert not status(ledger).files_purged
    assert upkeep.end_purge(ledger, status(ledger).purge_due or "", now_ms=NOW, rewritten=True)
    assert status(ledger).purge_due is None
    late = turn("late", turn_id="e2")
    assert apply(ledger, late) == [Outcome.FORGOTTEN]
    assert status(ledger).files_purged, "the file never held it: only the stream did"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"scope": "user", "scope_id": "a", "session_id": "s", "turn_id": "t"}', {("user/a", "s", "t")}),
        (b'{"scope": "user", "scope_id": "a", "session_id": 7, "event_id": "e"}', {("user/a", "7", "e")}),
        (b'{"scope":"user","scope_id":"a\\u00e9","session_id":"s", "content": "\xff', {("user/a\u00e9", "s", None)}),
        (b'{"scope": "user", "scope_id": "a", "x": ' + b"[" * 9_999, {("user/a", None, None)}),
        (b'{"scope": "user", "scope_id": "a", "scope_id": "b", ', {("user/a", None, None), ("user/b", None, None)}),
        (b'{"content": "say \\"scope\\": \\"user\\"", "scope_id": "a"', set()),
        (b"[1]", set()), (b'"scope"', set()), (b"", set()), (b"\x00\xff", set()),
    ],
)  # fmt: skip
def test_a_broken_event_is_read_as_far_as_it_names_its_place(raw: bytes, expected: set[tuple[object, ...]]) -> None:
    """A dead letter must be found by what it is about, however broken it is."""
    assert {(p.scope_key, p.session_id, p.turn_id) for p in attribution.subjects(raw)} == expected


def test_a_summary_in_the_making_puts_the_purge_off(tmp_path: Path) -> None:
    """It may be made of what was forgotten meanwhile; killed before it is stored, nobody would look for it again."""
    cache = SummaryCache(tmp_path / "summaries")
    with cache.alone("k" * 64), pytest.raises(TransientError, match="is being made"):
        cache.keep_only(set())
    (tmp_path / "summaries" / "left.lock").touch()
    cache.keep_only(set())
    assert list((tmp_path / "summaries").iterdir()) == []


def test_a_ledger_tells_what_it_has_forgotten_of_a_session(ledger: Ledger) -> None:
    """Stores that hosts share refuse the same: turns one by one, a session for good, a scope up to a time."""
    events.apply(ledger, [turn("e1"), turn_deleted("t9"), turn_deleted("t9", session="s2")], now_ms=NOW)

    def told(session_id: str) -> forgetting.Tombstones:
        with ledger.read() as db:
            return forgetting.tombstones(db, session_id)

    assert told("s1") == forgetting.Tombstones(None, (forgetting.turn_digest("s1", "t9"),))
    assert told("s1").cover("s1", ["t9"], NOW)
    assert not told("s1").cover("s1", ["t8"], 0)
    assert not told("s2").cover("s1", ["t9"], NOW)
    scope_deleted = ScopeDeleted(scope=SCOPE, timestamp_ms=NOW, event_id="d1")
    session_deleted = SessionDeleted(scope=SCOPE, session_id="s2", timestamp_ms=NOW, event_id="d2")
    events.apply(ledger, [scope_deleted, session_deleted], now_ms=NOW)
    assert told("s2") == forgetting.Tombstones(forgetting.FOR_GOOD)
    assert told("s1").up_to_ms == told("another").up_to_ms == NOW
    assert told("another").cover("another", ["t1"], NOW)
    assert not told("another").cover("another", ["t1"], NOW + 1)
