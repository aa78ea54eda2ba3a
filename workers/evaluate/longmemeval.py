"""LongMemEval: each question with a haystack of sessions of its own.

A haystack is a scope, ``user/<question_id>``. A turn's id is ``<session id>_<its number from 1>``, as in the data
set's own retrieval scripts. Sessions without turns, and turns without text, are left out; a session id that a
haystack has twice gets a number the second time. Turns stand a minute apart from the session's date on, in UTC; a
session without a date is of the first of January 2023.

The official protocol leaves out questions whose id ends in ``_abs`` (the answer is that nothing was said) and those
without evidence.

Source: Wu et al. 2024, "LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator

from pipeline.errors import PoisonError
from pipeline.importers import source
from pipeline.records import Event, SessionClosed, Turn, to_epoch_ms
from workers.evaluate import entries
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.entries import Entry, EntryFields, Fields, Filled

FORMAT: Final = "longmemeval"
_STEP: Final = timedelta(minutes=1)
_ABSTENTION: Final = "_abs"
_UNDATED: Final = datetime(2023, 1, 1, tzinfo=UTC)


def _dated(text: str) -> str:
    """Pass what `_date` reads as a time that can be kept.

    Raises:
        ValueError: it is none.
    """
    try:
        to_epoch_ms(_date(text))
    except PoisonError as error:
        raise ValueError(f"{text[:64]!r} lies outside the years 1900-2199") from error
    return text


_Date = Annotated[str, AfterValidator(_dated)]


class _TurnFields(Fields):
    content: str | None
    role: str | None = None
    has_answer: bool | None = None


class _EntryFields(EntryFields):
    form: ClassVar[str] = FORMAT
    id_field: ClassVar[str] = "question_id"
    mark: ClassVar[str] = "question_id"

    question_id: Filled
    haystack_sessions: list[list[_TurnFields]]
    question: Filled
    question_type: str | None = None
    question_date: _Date | None = None
    haystack_session_ids: list[Filled] | None = None
    haystack_dates: list[_Date] | None = None
    answer_session_ids: list[str] | None = None

    @property
    def id(self) -> str:
        """The question's."""
        return self.question_id


@dataclass(frozen=True, slots=True)
class _Said:
    """A turn of a haystack, and where it stands in its entry."""

    place: str
    turn: Turn
    has_answer: bool


def events(path: Path) -> Iterator[Event]:
    """Yield the turns and closings of all haystacks whose question is asked."""
    for entry in _entries(path):
        last: Turn | None = None
        for said in _turns(entry):
            if last is not None and last.session_id != said.turn.session_id:
                yield _closing(last)
            yield (last := said.turn)
        if last is not None:
            yield _closing(last)


def questions(path: Path) -> Iterator[AskedQuestion]:
    """Yield the questions that the official protocol counts.

    Raises:
        ConfigError: a turn could not be put in; names it.
    """
    for entry in _entries(path):
        evidence: list[Turn] = []
        sessions: set[str] = set()
        for said in _turns(entry):
            checked = source.checked(path, 0, said.place, said.turn)
            if isinstance(checked, source.Malformed):
                raise entry.wrong(said.place, checked.reason)
            sessions.add(said.turn.session_id)
            if said.has_answer:
                evidence.append(said.turn)
        if evidence:
            yield _question(entry, evidence, sessions)


def _question(entry: Entry[_EntryFields], evidence: list[Turn], sessions: set[str]) -> AskedQuestion:
    fields = entry.fields
    return AskedQuestion(
        id=fields.question_id,
        scope=entry.scope,
        text=fields.question,
        category=fields.question_type or "",
        turns=frozenset(turn.turn_id for turn in evidence),
        sessions=frozenset(sessions.intersection(fields.answer_session_ids or ())).union(
            turn.session_id for turn in evidence
        ),
        asked_at=_date(fields.question_date or "").isoformat(),
    )


def _entries(path: Path) -> Iterator[Entry[_EntryFields]]:
    """Yield the entries whose question is asked.

    Raises:
        ConfigError: a field is not what the format says.
    """
    for entry in entries.read(path, _EntryFields):
        for name in ("haystack_session_ids", "haystack_dates"):
            listed, n_sessions = getattr(entry.fields, name), len(entry.fields.haystack_sessions)
            if listed is not None and len(listed) != n_sessions:
                raise entry.wrong(name, f"has {len(listed)} for {n_sessions} haystack_sessions")
        if not entry.fields.question_id.endswith(_ABSTENTION):
            yield entry


def _turns(entry: Entry[_EntryFields]) -> Iterator[_Said]:
    sessions = entry.fields.haystack_sessions
    names = _unlike(entry.fields.haystack_session_ids or [f"session_{n}" for n in range(len(sessions))])
    dates = entry.fields.haystack_dates or [""] * len(sessions)
    for place, (name, date, turns) in enumerate(zip(names, dates, sessions, strict=True)):
        for number, fields in enumerate(turns, start=1):
            if fields.content and fields.content.strip():
                where = f"haystack_sessions.{place}.{number - 1}"
                yield _Said(where, _turn(entry, where, name, number, date, fields), bool(fields.has_answer))


def _unlike(ids: list[str]) -> list[str]:
    """Give an id that occurs again its number, one that no other session has."""
    seen: dict[str, int] = {}
    taken = set(ids)
    names = []
    for session_id in ids:
        name = session_id
        while session_id in seen and name in taken:
            seen[session_id] += 1
            name = f"{session_id}#{seen[session_id]}"
        seen.setdefault(session_id, 1)
        taken.add(name)
        names.append(name)
    return names


def _turn(
    entry: Entry[_EntryFields], place: str, session_id: str, number: int, date: str, fields: _TurnFields
) -> Turn:
    turn_id, content = f"{session_id}_{number}", fields.content or ""
    try:
        return Turn(
            scope=entry.scope,
            session_id=session_id,
            role=fields.role or "user",
            content=content,
            timestamp=_date(date) + number * _STEP,
            event_id=source.event_id(FORMAT, entry.scope, session_id, turn_id, content),
            turn_id=turn_id,
            index=number,
            metadata={"source": FORMAT},
        )
    except PoisonError as error:
        raise entry.wrong(place, str(error)) from error


def _closing(last: Turn) -> SessionClosed:
    return SessionClosed(
        scope=last.scope,
        session_id=last.session_id,
        timestamp_ms=last.timestamp_ms,
        event_id=source.event_id(FORMAT, last.scope, last.session_id, "closed", last.event_id),
    )


def _date(text: str) -> datetime:
    """Read ``2023/05/20 (Sat) 02:21`` or ``2023/05/20`` as UTC.

    Raises:
        ValueError: it is no such date.
    """
    if not text.strip():
        return _UNDATED
    day, _, rest = text.partition(" ")
    clock = rest.rpartition(" ")[2]
    for written, pattern in ((f"{day} {clock}", "%Y/%m/%d %H:%M"), (day, "%Y/%m/%d")):
        try:
            return datetime.strptime(written, pattern).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ValueError(f"{text[:64]!r} is no date such as '2023/05/20 (Sat) 02:21'")
