"""LongMemEval: each question with a haystack of sessions of its own.

A haystack is a scope, ``user/<question_id>``. A turn's id is ``<session id>_<its number from 1>``, as in the data
set's own retrieval scripts. Sessions without turns, and turns without text, are left out; a session id that a
haystack has twice gets a number the second time. Turns stand a minute apart from the session's date on, in UTC.

The official protocol leaves out questions whose id ends in ``_abs`` (the answer is that nothing was said) and those
without evidence.

Source: Wu et al. 2024, "LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ConfigError
from pipeline.importers import source
from pipeline.records import Event, Scope, SessionClosed, Turn
from workers.evaluate.asked import AskedQuestion

FORMAT: Final = "longmemeval"
_STEP: Final = timedelta(minutes=1)
_ABSTENTION: Final = "_abs"


@dataclass(frozen=True, slots=True)
class _Said:
    """A turn of a haystack: its session's place in it, its own, and its fields."""

    session_id: str
    number: int
    start: datetime
    role: str
    content: str
    has_answer: bool

    @property
    def turn_id(self) -> str:
        return f"{self.session_id}_{self.number}"


def events(path: Path) -> Iterator[Event]:
    """Yield the turns and closings of all haystacks whose question is asked."""
    for fields in _entries(path):
        scope = Scope("user", str(fields["question_id"]))
        last: Turn | None = None
        for said in _turns(fields):
            if last is not None and last.session_id != said.session_id:
                yield _closing(last)
            yield (last := _turn(scope, said))
        if last is not None:
            yield _closing(last)


def questions(path: Path) -> Iterator[AskedQuestion]:
    """Yield the questions that the official protocol counts."""
    for fields in _entries(path):
        said = list(_turns(fields))
        evidence = [turn for turn in said if turn.has_answer]
        named = set(map(str, fields.get("answer_session_ids") or ()))
        sessions = {turn.session_id for turn in said if turn.session_id in named}
        sessions |= {turn.session_id for turn in evidence}
        if not evidence or not sessions:
            continue
        yield AskedQuestion(
            id=str(fields["question_id"]),
            scope=Scope("user", str(fields["question_id"])),
            text=str(fields["question"]),
            category=str(fields.get("question_type", "")),
            turns=frozenset(turn.turn_id for turn in evidence),
            sessions=frozenset(sessions),
            asked_at=_date(str(fields.get("question_date") or "")).isoformat(),
        )


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    for value in source.values(path, "question_id"):
        fields = value.value
        if not isinstance(fields, dict) or "question_id" not in fields or "haystack_sessions" not in fields:
            raise ConfigError(f"{path}, {value.place}: {value.reason or 'is no question with its haystack_sessions'}")
        if not str(fields["question_id"]).endswith(_ABSTENTION):
            yield fields


def _turns(fields: dict[str, Any]) -> Iterator[_Said]:
    sessions = fields["haystack_sessions"]
    ids = fields.get("haystack_session_ids") or [f"session_{number}" for number in range(len(sessions))]
    dates = fields.get("haystack_dates") or [""] * len(sessions)
    seen: dict[str, int] = {}
    for session_id, date, turns in zip(map(str, ids), map(str, dates), sessions, strict=False):
        seen[session_id] = seen.get(session_id, 0) + 1
        name = session_id if seen[session_id] == 1 else f"{session_id}#{seen[session_id]}"
        for number, turn in enumerate(turns or (), start=1):
            content = str(turn.get("content") or "")
            if content.strip():
                yield _Said(
                    name, number, _date(date), str(turn.get("role") or "user"), content, bool(turn.get("has_answer"))
                )


def _turn(scope: Scope, said: _Said) -> Turn:
    return Turn(
        scope=scope,
        session_id=said.session_id,
        role=said.role,
        content=said.content,
        timestamp=said.start + said.number * _STEP,
        event_id=source.event_id(FORMAT, scope, said.session_id, said.turn_id, said.content),
        turn_id=said.turn_id,
        index=said.number,
        metadata={"source": FORMAT},
    )


def _closing(last: Turn) -> SessionClosed:
    return SessionClosed(
        scope=last.scope,
        session_id=last.session_id,
        timestamp_ms=last.timestamp_ms,
        event_id=source.event_id(FORMAT, last.scope, last.session_id, "closed", last.event_id),
    )


def _date(text: str) -> datetime:
    """Read ``2023/05/20 (Sat) 02:21`` as UTC; what is no such date is the first of January 2023."""
    day, _, rest = text.partition(" ")
    clock = rest.rpartition(" ")[2]
    for written, pattern in ((f"{day} {clock}", "%Y/%m/%d %H:%M"), (day, "%Y/%m/%d")):
        try:
            return datetime.strptime(written, pattern).replace(tzinfo=UTC)
        except ValueError:
            continue
    return datetime(2023, 1, 1, tzinfo=UTC)
