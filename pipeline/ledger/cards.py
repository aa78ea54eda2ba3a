"""A session's card: what a list of sessions shows and ranks by, kept up to date with every turn.

A card follows from the session's turns, told in their order, and from nothing else. So one more turn at the end is
added to it; after any other change, a late turn, an edit or a removal, the session's turns are told again. A session
without turns has no card. Cards are written in the transaction that changes the turns.

What a session says about itself stands in the metadata of its turns, under the names in `FACTS`, or under
``event.<name>`` where a publisher used the same name twice; the latest turn that says something counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import apsw

from pipeline.ledger import word_segments
from pipeline.ledger.automated import Pace, is_automated
from pipeline.records import Turn

FACTS: Final = ("title", "agent_name", "source", "automated", "lineage_id", "root_session_id", "thread_id")
TITLE_CHARS: Final = 60
_FACT_KEYS: Final = frozenset({*FACTS, *(f"event.{name}" for name in FACTS)})
_MADE_UP: Final = "time_from"
_MOST_FACT_CHARS: Final = 512
_LOOKED_AT_CHARS: Final = 4_096

Place = tuple[int, int, str]
"""Where a turn stands in its session: time, index, turn id."""


class Card(NamedTuple):
    """One session: ``opening`` is the start of its first user turn that says anything."""

    n_turns: int = 0
    first_ms: int = 0
    last: Place = (0, 0, "")
    opening: str = ""
    facts: Mapping[str, Any] = MappingProxyType({})
    pace: Pace = Pace()

    def then(self, place: Place, role: str, content: str, metadata: Mapping[str, Any]) -> Card:
        """Add the next turn, in the session's order."""
        n_turns, first_ms, _, opening, facts, pace = self
        if not opening and role == "user":
            opening = " ".join(content[:_LOOKED_AT_CHARS].split())[:TITLE_CHARS]
        if said := _facts(metadata):
            facts = {**facts, **said}
        if _MADE_UP not in metadata:
            pace = pace.then(place[0], role)
        return Card(n_turns + 1, first_ms if n_turns else place[0], place, opening, facts, pace)


class CardWriter:
    """Keeps the cards of one transaction; writes each once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self._cards: dict[str, Card] = {}
        self._numbers: dict[str, int] = {}
        self._stale: set[str] = set()
        self._n_long_chars = 0

    def added(self, turn: Turn) -> None:
        """Note a turn that was inserted."""
        self._n_long_chars += max(0, len(turn.content) - word_segments.LONG_CHARS)
        if turn.session_id in self._stale:
            return
        card = self._cards.get(turn.session_id) or self._read(turn.session_id)
        place = (turn.timestamp_ms, turn.index, turn.turn_id)
        if card.n_turns and place < card.last:
            self._stale.add(turn.session_id)
        else:
            self._cards[turn.session_id] = card.then(place, turn.role, turn.content, turn.metadata)

    def removing(self, turns: Iterable[tuple[int, str]]) -> None:
        """Note turns, by offset and session, that are about to be removed."""
        gone = list(turns)
        word_segments.note_gaps(self._db, (offset for offset, _ in gone))
        self.tell_again(session_id for _, session_id in gone)

    def tell_again(self, session_ids: Iterable[str]) -> None:
        """Have the cards of sessions follow from all of their turns."""
        self._stale.update(session_ids)

    def finish(self) -> None:
        """Write the cards, then put what was said into word segments when that is due."""
        for session_id in sorted(self._stale):
            row: Any = self._db.execute("SELECT session_no FROM cards WHERE session_id = ?", (session_id,)).fetchone()
            if row:
                self._numbers[session_id] = row[0]
            self._cards[session_id] = next((card for _, card in _told(self._db, session_id)), Card())
        if not self._cards:
            return
        changed = _latest_change(self._db)
        known, new, gone = [], [], []
        for session_id, card in sorted(self._cards.items()):
            number = self._numbers.get(session_id)
            if not card.n_turns:
                gone.append((session_id,))
            elif number is None:
                new.append((*_row(changed, card), session_id))
            else:
                known.append((*_row(changed, card), number))
        for statement, rows in ((_DELETE, gone), (_UPDATE, known), (_INSERT, new)):
            if rows:
                self._db.executemany(statement, rows)
        word_segments.seal_when_due(self._db, self._n_long_chars)

    def _read(self, session_id: str) -> Card:
        row: Any = self._db.execute(_READ, (session_id,)).fetchone()
        if row is None:
            return Card()
        self._numbers[session_id], n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace = row
        return Card(
            n_turns,
            first_ms,
            (last_ms, last_index, last_turn_id),
            opening,
            {} if facts == "{}" else json.loads(facts),
            Pace(*json.loads(pace)),
        )


def wrong(connection: apsw.Connection) -> list[str]:
    """Name the sessions whose card is not what their turns tell, that lack one, or that have one and no turns."""
    latest = _latest_change(connection)
    stored: Any = connection.execute(f"SELECT session_id, {_COLUMNS} FROM cards").fetchall()
    cards = {session_id: (changed, told) for session_id, changed, *told in stored}
    found = []
    for session_id, card in _told(connection):
        changed, told = cards.pop(session_id, (0, []))
        if told != [*_row(changed, card)[1:]] or changed > latest:
            found.append(session_id)
    return [*found, *map(str, cards)]


def make_right(connection: apsw.Connection, session_ids: Iterable[str]) -> None:
    """Write the cards of sessions anew; inside the caller's transaction."""
    connection.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'turns'")  # so that readers are told
    writer = CardWriter(connection)
    writer.tell_again(session_ids)
    writer.finish()


def _latest_change(connection: apsw.Connection) -> int:
    """Number the state of the cards: grows with every turn added and every one removed, and costs no page."""
    row: Any = connection.execute(
        "SELECT ifnull(sum(seq), 0) FROM sqlite_sequence WHERE name IN ('turns', 'word_gaps')"
    ).fetchone()
    return int(row[0])


def _facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if _FACT_KEYS.isdisjoint(metadata):
        return {}
    found = {name: metadata.get(f"event.{name}") or metadata.get(name) for name in FACTS}
    return {
        name: value if value is True else str(value)[:_MOST_FACT_CHARS]
        for name, value in found.items()
        if value and isinstance(value, str | int | float)
    }


def _told(connection: apsw.Connection, session_id: str | None = None) -> Iterator[tuple[str, Card]]:
    """Tell the turns of one session, or of each, in their order."""
    condition = "" if session_id is None else "WHERE session_id = ?2"
    rows: Any = connection.execute(_TURNS.format(condition), (_LOOKED_AT_CHARS, session_id)[: 1 + bool(condition)])
    for name, turns in groupby(rows, key=itemgetter(0)):
        card = Card()
        for _, time_ms, index, turn_id, role, content, metadata in turns:
            card = card.then((time_ms, index, turn_id), role, content, json.loads(metadata))
        yield name, card


def _row(changed: int, card: Card) -> tuple[str | int | bool, ...]:
    facts = _as_json(dict(card.facts)) if card.facts else "{}"
    return (
        *(changed, card.n_turns, card.first_ms, *card.last),
        *(card.opening, facts, _as_json(card.pace), is_automated(card.facts, card.pace)),
    )


_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
_TURNS: Final = (  # a metadata that is none says nothing; the checker names it
    "SELECT session_id, timestamp_ms, turn_index, turn_id, role, substr(CAST(content AS TEXT), 1, ?1),"
    " iif(json_valid(metadata), metadata, '{{}}') FROM turns {}"
    " ORDER BY session_id, timestamp_ms, turn_index, turn_id"
)
_READ: Final = (
    "SELECT session_no, n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace FROM cards"
    " WHERE session_id = ?"
)
_COLUMNS: Final = "changed, n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace, is_automated"
_DELETE: Final = "DELETE FROM cards WHERE session_id = ?"
_UPDATE: Final = f"UPDATE cards SET ({_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE session_no = ?"
_INSERT: Final = f"INSERT INTO cards ({_COLUMNS}, session_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
