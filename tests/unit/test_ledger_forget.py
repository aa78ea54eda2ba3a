"""What a deletion leaves in a ledger: enough to know what was forgotten again, and nothing of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pipeline.ledger import Ledger, connection, events, upkeep
from pipeline.ledger.events import Outcome
from pipeline.records import Event, Scope, ScopeDeleted, SessionDeleted, Turn, TurnDeleted
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
