"""A stream of events as bad as they come, and what must be there in the end, worked out without the pipeline."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.records import Event, Scope, SessionClosed, SessionDeleted, Turn, TurnDeleted

N_SCOPES = 12
WINDOW = 1_000
SHARE_TWICE = 0.2
CLOCK_OFF_S = 3_600
_TURNS_PER_SESSION = 60
_EPOCH_S = 1_700_000_000
_WORDS = ["harbour", "lantern", "violin", "meadow", "copper", "thunder", "orchid", "glacier", "saddle", "walnut"]


class Author:
    """Writes numbered events over a dozen scopes, with edits and deletions, a fifth of them twice, shuffled."""

    def __init__(self, chance: random.Random, *, share_deleted: float = 0.02) -> None:
        self._chance = chance
        self._share_deleted = share_deleted
        self._said = deque([self._turn(0)], maxlen=WINDOW)

    def events(self) -> Iterator[Event]:
        """Write without end, out of order; a repeated event comes within the window too."""
        in_order = self._in_order()
        window = [next(in_order) for _ in range(WINDOW)]
        while True:
            place = self._chance.randrange(WINDOW)
            event = window[place]
            if self._chance.random() >= SHARE_TWICE:
                window[place] = next(in_order)
            yield event

    def _in_order(self) -> Iterator[Event]:
        number = 0
        while True:
            number += 1
            kind = self._chance.random()
            old = self._chance.choice(self._said)
            if kind < self._share_deleted:
                yield TurnDeleted(
                    scope=old.scope, session_id=old.session_id, turn_id=old.turn_id,
                    timestamp_ms=old.timestamp_ms, event_id=f"e{number}",
                )  # fmt: skip
            elif kind < self._share_deleted * 1.02:
                yield SessionDeleted(
                    scope=old.scope, session_id=old.session_id, timestamp_ms=old.timestamp_ms, event_id=f"e{number}"
                )
            elif kind < self._share_deleted * 1.02 + 0.01:
                yield SessionClosed(
                    scope=old.scope, session_id=old.session_id, timestamp_ms=old.timestamp_ms, event_id=f"e{number}"
                )
            elif kind < self._share_deleted + 0.15:
                yield self._edit(old, number)
            else:
                self._said.append(self._turn(number))
                yield self._said[-1]

    def _turn(self, number: int) -> Turn:
        return Turn(
            scope=Scope("user", f"u{number % N_SCOPES}"),
            session_id=f"s{number // N_SCOPES // _TURNS_PER_SESSION}",
            role=self._chance.choice(["user", "assistant"]),
            content=self._content(number),
            timestamp=self._clock(number),
            event_id=f"e{number}",
            turn_id=f"t{number}",
        )

    def _edit(self, old: Turn, number: int) -> Turn:
        return Turn(
            scope=old.scope,
            session_id=old.session_id,
            role=old.role,
            content=self._content(number),
            timestamp=self._clock(number),
            event_id=f"e{number}",
            turn_id=old.turn_id,
            revision=self._chance.randrange(1, 4),
        )

    def _clock(self, number: int) -> float:
        return _EPOCH_S + number + self._chance.uniform(-CLOCK_OFF_S, CLOCK_OFF_S)

    def _content(self, number: int) -> str:
        return f"{number}: " + " ".join(self._chance.choices(_WORDS, k=self._chance.randrange(3, 12)))


Kept = tuple[str, str, int, str, str]
"""Scope key, session id, revision, event id, content."""


@dataclass
class Expected:
    """What a set of events comes to in any order: the greatest revision of each turn, unless it is deleted."""

    events: dict[str, Event] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Note an event that was accepted, once or again."""
        self.events[event.event_id] = event

    def turns(self) -> dict[str, Kept]:
        """Give what is to be kept by turn id."""
        gone: set[tuple[str, ...]] = set()
        best: dict[tuple[str, str, str], Turn] = {}
        for event in self.events.values():
            if isinstance(event, TurnDeleted):
                gone.add((event.scope.key, event.session_id, event.turn_id))
            elif isinstance(event, SessionDeleted):
                gone.add((event.scope.key, event.session_id))
            elif isinstance(event, Turn):
                key = (event.scope.key, event.session_id, event.turn_id)
                if key not in best or _rank(event) > _rank(best[key]):
                    best[key] = event
        return {
            key[2]: (key[0], key[1], turn.revision, turn.event_id, turn.content)
            for key, turn in best.items()
            if key not in gone and key[:2] not in gone
        }


def _rank(turn: Turn) -> tuple[int, int, str]:
    return turn.revision, turn.timestamp_ms, turn.event_id
