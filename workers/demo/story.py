"""The sample events and questions, read from the files beside this module.

`transcripts/<user>.jsonl` hold events as the contract has them, `surprises.jsonl` what happens to them afterwards
(each with what it should become), `malformed.txt` lines that are no events, `questions.jsonl` what is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, Final

from pipeline import contract
from pipeline.records import Event, Scope, Turn, TurnDeleted

_USERS: Final = ("maya", "jonas")


@dataclass(frozen=True, slots=True)
class Surprise:
    """An event that meets what it is about, the outcome it should have, and why it is sent."""

    event: Event
    becomes: str
    note: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked in which scope, and what the answer shows.

    ``with_neighbours`` shows the turns around it; ``coverage`` has each of the best sessions give its best turn.
    """

    scope: Scope
    query: str
    point: str
    with_neighbours: bool = False
    coverage: bool = False


@dataclass(frozen=True)
class Story:
    """Everything the demo publishes and asks: ``transcripts`` in the order of time, then the rest."""

    transcripts: tuple[Event, ...]
    surprises: tuple[Surprise, ...]
    malformed: tuple[bytes, ...]
    questions: tuple[Question, ...]

    @property
    def n_events(self) -> int:
        """Everything that is published, the malformed included."""
        return len(self.transcripts) + len(self.surprises) + len(self.malformed)

    @cached_property
    def forgotten(self) -> tuple[Turn, ...]:
        """The turns that a surprise has forgotten, as they were said."""
        gone = {_place(s.event) for s in self.surprises if isinstance(s.event, TurnDeleted)}
        return tuple(e for e in self.transcripts if isinstance(e, Turn) and _place(e) in gone)

    @cached_property
    def n_turns_kept(self) -> int:
        """How many turns are searchable in the end."""
        said = [*self.transcripts, *(s.event for s in self.surprises)]
        return len({_place(e) for e in said if isinstance(e, Turn)} - {_place(t) for t in self.forgotten})

    @cached_property
    def n_sessions(self) -> int:
        """How many sessions there are."""
        return len({(e.scope, e.session_id) for e in self.transcripts if isinstance(e, Turn)})


def load_story() -> Story:
    """Read the files."""
    transcripts = [contract.decode(line) for user in _USERS for line in _lines(f"{user}.jsonl")]
    return Story(
        transcripts=tuple(sorted(transcripts, key=lambda event: event.timestamp_ms)),
        surprises=tuple(
            Surprise(contract.decode(json.dumps(row["event"]).encode()), row["becomes"], row["note"])
            for row in _rows("surprises.jsonl")
        ),
        malformed=tuple(_lines("malformed.txt")),
        questions=tuple(
            Question(
                Scope.parse(row["scope"]),
                row["query"],
                row["point"],
                with_neighbours=row.get("with_neighbours", False),
                coverage=row.get("coverage", False),
            )
            for row in _rows("questions.jsonl")
        ),
    )


def _place(event: Turn | TurnDeleted) -> tuple[Scope, str, str]:
    return event.scope, event.session_id, event.turn_id


def _rows(name: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, _lines(name))


def _lines(name: str) -> Iterator[bytes]:
    yield from resources.files(__package__).joinpath("transcripts", name).read_bytes().splitlines()
