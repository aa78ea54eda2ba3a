"""LoCoMo: ten long conversations between two people each, in sessions with a date, and questions about them.

Each conversation is a scope of its own, ``user/<sample_id>``. A turn's ``turn_id`` is its ``dia_id``, which is what
the data set's evidence points to. Both speakers have the role ``user``: they are people; who speaks is the speaker.
Turns stand a minute apart, from the session's date on, in UTC. A photo's caption is part of the text, since the
photo is. Sessions with a date but no turns are left out; questions and the data set's own summaries are not read.

Source: Maharana et al. 2024, "Evaluating Very Long-Term Conversational Memory of LLM Agents".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import source
from pipeline.importers.source import Imported, Malformed, Value
from pipeline.records import Scope, Turn

FORMAT: Final = "locomo"
_STEP: Final = timedelta(minutes=1)
_SESSION: Final = re.compile(r"session_(\d+)")
_DATE: Final = re.compile(
    r"(0?[1-9]|1[0-2]):(\d{2})\s*([ap])\.?m\.?\s+on\s+(\d{1,2})\s+([a-z]+),?\s+(\d{4})", re.IGNORECASE
)
_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)


@dataclass(frozen=True, slots=True)
class _Session:
    path: Path
    position: int
    scope: Scope
    name: str
    start: datetime
    turns: list[Any]

    def place(self, turn: Any, number: int) -> str:
        name = turn.get("dia_id") if isinstance(turn, dict) else None
        return f"{self.scope.id}, {self.name}, {name if isinstance(name, str) else f'turn {number + 1}'}"


def read(path: Path, scope: Scope | None = None, *, start: int = 0) -> Iterator[Imported | Malformed]:
    """Yield every session's turns in order, its closing after them, from conversation ``start`` on.

    Raises:
        ConfigError: a scope is given, or the file cannot be opened.
    """
    if scope is not None:
        raise ConfigError(f"the {FORMAT} format makes a scope of each conversation; leave --scope out")
    for value in source.values(path, "conversation", start=start):
        yield from _read_conversation(path, value)


def parse_date(text: str) -> datetime:
    """Read ``1:56 pm on 8 May, 2023`` as UTC, whatever the locale.

    Raises:
        PoisonError: it is no such date.
    """
    found = _DATE.fullmatch(text.strip())
    if found is None or found[5].lower() not in _MONTHS:
        raise PoisonError(f"{text[:64]!r} is no date such as '1:56 pm on 8 May, 2023'")
    hour, minute, day, year = (int(found[group]) for group in (1, 2, 4, 6))
    half_day = 12 if found[3].lower() == "p" else 0
    try:
        return datetime(year, _MONTHS.index(found[5].lower()) + 1, day, hour % 12 + half_day, minute, tzinfo=UTC)
    except ValueError as error:
        raise PoisonError(f"{text[:64]!r} is a date that does not exist") from error


def _read_conversation(path: Path, value: Value) -> Iterator[Imported | Malformed]:
    try:
        scope, fields = _conversation(value)
    except PoisonError as error:
        yield Malformed(path, value.position, value.place, str(error))
        return
    names = sorted((name for name in fields if _SESSION.fullmatch(name)), key=lambda name: int(name[8:]))
    for name in names:
        place = f"{scope.id}, {name}"
        try:
            session = _session(path, value.position, scope, name, fields)
        except PoisonError as error:
            yield Malformed(path, value.position, place, str(error))
        else:
            yield from _read_session(session)


def _conversation(value: Value) -> tuple[Scope, dict[str, Any]]:
    if value.reason:
        raise PoisonError(value.reason)
    if not isinstance(value.value, dict):
        raise PoisonError("is not a JSON object")
    fields = value.value.get("conversation")
    if not isinstance(fields, dict):
        raise PoisonError("is missing or no object", field="conversation")
    return Scope("user", value.value.get("sample_id", "")), fields


def _session(path: Path, position: int, scope: Scope, name: str, fields: dict[str, Any]) -> _Session:
    turns, date = fields[name], fields.get(f"{name}_date_time")
    if not isinstance(turns, list):
        raise PoisonError("is no list of turns")
    if not turns:
        return _Session(path, position, scope, name, datetime.min.replace(tzinfo=UTC), [])
    if not isinstance(date, str):
        raise PoisonError("is missing or no text", field=f"{name}_date_time")
    return _Session(path, position, scope, name, parse_date(date), turns)


def _read_session(session: _Session) -> Iterator[Imported | Malformed]:
    last: Turn | None = None
    for number, fields in enumerate(session.turns):
        place = session.place(fields, number)
        try:
            turn = _turn(session, number, fields)
        except PoisonError as error:
            yield Malformed(session.path, session.position, place, str(error))
            continue
        item = source.checked(session.path, session.position, place, turn)
        last = turn if isinstance(item, Imported) else last
        yield item
    if last is not None:
        closed_id = source.event_id(FORMAT, session.scope, session.name, "closed", last.event_id)
        closed = source.session_closed(session.scope, session.name, last, closed_id)
        yield Imported(session.position, closed)


def _turn(session: _Session, number: int, fields: Any) -> Turn:
    if not isinstance(fields, dict):
        raise PoisonError("is not a JSON object")
    dia_id, speaker = _text(fields, "dia_id"), _text(fields, "speaker")
    content = _with_photo(_text(fields, "text"), fields.get("blip_caption"))
    return Turn(
        scope=session.scope,
        session_id=session.name,
        role="user",
        content=content,
        timestamp=session.start + number * _STEP,
        # Not the conversation's place in the file: a subset of the data set gives the ids of the whole.
        event_id=source.event_id(FORMAT, session.scope, session.name, dia_id, speaker, content),
        turn_id=dia_id,
        index=number,
        speaker=speaker,
        metadata={"source": FORMAT, "time_from": "session"},
    )


def _with_photo(text: str, caption: Any) -> str:
    return f"{text} [shares a photo: {caption}]" if isinstance(caption, str) and caption else text


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise PoisonError("is missing or no text", field=name)
    return value
