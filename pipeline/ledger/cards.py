"""A session's card: what a list of sessions shows and ranks by, kept up to date with every turn.

A card follows from the session's turns, told in their order, and from nothing else. So one more turn at the end is
added to it; after any other change, a late turn, an edit or a removal, the session's turns are told again. A session
without turns has no card. Cards are written in the transaction that changes the turns.

What a session says about itself stands in the metadata of its turns, under the names in `FACTS`, or under
``event.<name>`` where a publisher used the same name twice; the latest turn that says something counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

import apsw

from pipeline.ledger import words
from pipeline.ledger.automated import Pace, is_automated
from pipeline.records import Turn

FACTS: Final = ("title", "agent_name", "source", "automated", "lineage_id", "root_session_id", "thread_id")
TITLE_CHARS: Final = 60
_MADE_UP: Final = "time_from"
_MOST_FACT_CHARS: Final = 512
_LOOKED_AT_CHARS: Final = 4_096
_CHANGES: Final = "card_changes"

Place = tuple[int, int, str]
"""Where a turn stands in its session: time, index, turn id."""


@dataclass(frozen=True, slots=True)
class Card:
    """One session: ``opening`` is the start of its first user turn that says anything."""

    n_turns: int = 0
    first_ms: int = 0
    last: Place = (0, 0, "")
    opening: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    def then(self, place: Place, role: str, content: str, metadata: Mapping[str, Any]) -> Card:
        """Add the next turn, in the session's order."""
        opening = self.opening
        if not opening and role == "user":
            opening = " ".join(content[:_LOOKED_AT_CHARS].split())[:TITLE_CHARS]
        facts = _facts(metadata)
        return replace(
            self,
            n_turns=self.n_turns + 1,
            first_ms=self.first_ms if self.n_turns else place[0],
            last=place,
            opening=opening,
            facts={**self.facts, **facts} if facts else self.facts,
            pace=self.pace if _MADE_UP in metadata else self.pace.then(place[0], role),
        )


class CardWriter:
    """Keeps the cards of one transaction; writes each once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self._cards: dict[str, Card] = {}
        self._stale: set[str] = set()
        self._n_new_chars = 0

    def added(self, turn: Turn) -> None:
        """Note a turn that was inserted."""
        self._n_new_chars += len(turn.content)
        if turn.session_id in self._stale:
            return
        card = self._cards.get(turn.session_id) or _read(self._db, turn.session_id)
        place = (turn.timestamp_ms, turn.index, turn.turn_id)
        if card.n_turns and place < card.last:
            self._stale.add(turn.session_id)
        else:
            self._cards[turn.session_id] = card.then(place, turn.role, turn.content, turn.metadata)

    def removing(self, turns: Iterable[tuple[int, str]]) -> None:
        """Note turns, by offset and session, that are about to be removed."""
        gone = list(turns)
        words.note_gaps(self._db, (offset for offset, _ in gone))
        self._stale.update(session_id for _, session_id in gone)

    def finish(self) -> None:
        """Write the cards, then put what was said into word segments when that is due."""
        for session_id in sorted(self._stale):
            self._cards[session_id] = _told_again(self._db, session_id)
        if not self._cards:
            return
        row: Any = self._db.execute("SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?", (_CHANGES,)).fetchone()
        changed = row[0] + 1 if row else 1
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_CHANGES, str(changed)))
        kept = {session_id: card for session_id, card in self._cards.items() if card.n_turns}
        self._db.executemany(_WRITE, [_row(session_id, changed, card) for session_id, card in sorted(kept.items())])
        gone = sorted(self._cards.keys() - kept.keys())
        self._db.executemany("DELETE FROM cards WHERE session_id = ?", [(session_id,) for session_id in gone])
        words.seal_when_due(self._db, self._n_new_chars)


def _facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: metadata.get(f"event.{name}") or metadata.get(name) for name in FACTS} if metadata else {}
    return {
        name: value if value is True else str(value)[:_MOST_FACT_CHARS]
        for name, value in found.items()
        if value and isinstance(value, str | int | float)
    }


def _read(connection: apsw.Connection, session_id: str) -> Card:
    row: Any = connection.execute(
        "SELECT n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace FROM cards"
        " WHERE session_id = ?",
        (session_id,),
    ).fetchone()
    if row is None:
        return Card()
    n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace = row
    return Card(
        n_turns, first_ms, (last_ms, last_index, last_turn_id), opening, json.loads(facts), Pace(*json.loads(pace))
    )


def _told_again(connection: apsw.Connection, session_id: str) -> Card:
    card = Card()
    for time_ms, index, turn_id, role, content, metadata in connection.execute(
        "SELECT timestamp_ms, turn_index, turn_id, role, substr(content, 1, ?), metadata FROM turns"
        " WHERE session_id = ? ORDER BY timestamp_ms, turn_index, turn_id",
        (_LOOKED_AT_CHARS, session_id),
    ):
        card = card.then((time_ms, index, turn_id), role, content, json.loads(metadata))
    return card


def _row(session_id: str, changed: int, card: Card) -> tuple[str | int | bool, ...]:
    facts = json.dumps(card.facts, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    pace = json.dumps(astuple(card.pace), separators=(",", ":"))
    return (
        *(session_id, changed, card.n_turns, card.first_ms, *card.last),
        *(card.opening, facts, pace, is_automated(card.facts, card.pace)),
    )


_WRITE: Final = (
    "INSERT INTO cards (session_id, changed, n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts,"
    " pace, is_automated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET"
    " changed = excluded.changed, n_turns = excluded.n_turns, first_ms = excluded.first_ms,"
    " last_ms = excluded.last_ms, last_index = excluded.last_index, last_turn_id = excluded.last_turn_id,"
    " opening = excluded.opening, facts = excluded.facts, pace = excluded.pace,"
    " is_automated = excluded.is_automated"
)
