"""PraisonAI's sessions: a folder of ``*.json``, or one of its files, each one session.

A session has ``session_id, messages[{role, content, timestamp}], created_at, updated_at, agent_name, metadata``. Its
messages become turns, archived ones before the others. What a session says about itself (title, agent, source, the
conversation it continues) is put into the metadata of each of its turns, so that it lasts as long as any of them.

A file that cannot be used is named and left out, and so is a message; a file of which only a part is odd (a byte
order mark, `metadata` that is no object, a time as a number) goes in without that part, and is named as well.

Time: a message's own; else one second after the one before it; else the session's `created_at` or `updated_at`; else
the file's modification time. Times that are not a message's own carry ``time_from`` in the turn's metadata.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipeline import records
from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import source
from pipeline.importers.source import Imported, Malformed
from pipeline.records import Scope, Turn

FORMAT: Final = "praisonai"
MAX_FILE_BYTES: Final = 256 << 20
_STEP_MS: Final = 1_000
_SAID_OF_SESSION: Final = (
    *(
        "title",
        "agent_name",
        "source",
        "automated",
        "lineage_id",
        "root_session_id",
        "thread_id",
        "parent_session_id",
    ),
)


@dataclass(slots=True)
class _Session:
    path: Path
    position: int
    scope: Scope
    session_id: str
    messages: list[tuple[str, Any]]
    start_ms: int
    time_from: str
    facts: dict[str, Any]
    oddities: list[str] = field(default_factory=list)

    def event_id(self, *parts: str) -> str:
        return source.event_id(FORMAT, self.scope, self.session_id, *parts)


def read(path: Path, scope: Scope | None = None, *, start: int = 0) -> Iterator[Imported | Malformed]:
    """Yield the turns of every session of a folder in the order of names, from file ``start`` on.

    Raises:
        ConfigError: there is no scope, or the folder cannot be listed.
    """
    if scope is None:
        raise ConfigError(f"the {FORMAT} format names no scope; give one, for example --scope user/u42")
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a folder that can be read") from error
    for position, file in enumerate(files[start:], start=start):
        try:
            session = _session(file, position, scope)
        except PoisonError as error:
            yield Malformed(file, position, "session", str(error))
        else:
            yield from (Malformed(file, position, "session", reason) for reason in session.oddities)
            yield from _turns(session)


def _session(file: Path, position: int, scope: Scope) -> _Session:
    """Read one file.

    Raises:
        PoisonError: it is no session.
    """
    fields, oddities = _fields(file)
    own = fields.get("metadata")
    if not isinstance(own, dict | None):
        oddities.append("metadata: is no object; it was left out")
    metadata = own if isinstance(own, dict) else {}
    facts = {name: fields.get(name) or metadata.get(name) for name in _SAID_OF_SESSION}
    start_ms, time_from = _start(fields, oddities), "session"
    if start_ms is None:
        start_ms, time_from = round(file.stat().st_mtime) * 1000, "file"
    return _Session(
        file,
        position,
        scope,
        _session_id(fields, file),
        [*_messages(fields, "archived_messages"), *_messages(fields, "messages")],
        start_ms,
        time_from,
        {
            "source": FORMAT,
            **{name: value for name, value in facts.items() if isinstance(value, str | bool) and value},
        },
        oddities,
    )


def _fields(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a file's JSON object, and what is odd about it.

    Raises:
        PoisonError: there is none.
    """
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise PoisonError(f"is larger than {MAX_FILE_BYTES} bytes")
        raw = file.read_bytes()
        fields = json.loads(raw.removeprefix(codecs.BOM_UTF8).decode())
    except OSError as error:
        raise PoisonError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PoisonError(f"is no valid UTF-8: byte {error.start}") from error
    except ValueError as error:
        raise PoisonError(f"is no valid JSON: {str(error)[:200]}" if raw.strip() else "is empty") from error
    except RecursionError as error:
        raise PoisonError("is nested too deeply") from error
    if not isinstance(fields, dict):
        raise PoisonError(f"is no JSON object but {'null' if fields is None else type(fields).__name__}")
    has_mark = raw.startswith(codecs.BOM_UTF8)
    return fields, ["begins with a byte order mark; it was read without"] if has_mark else []


def _session_id(fields: dict[str, Any], file: Path) -> str:
    session_id = fields.get("session_id") or file.stem
    if isinstance(session_id, bool) or not isinstance(session_id, str | int):
        raise PoisonError("is neither text nor a whole number", field="session_id")
    return str(session_id)


def _messages(fields: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    messages = fields.get(name, [] if name == "archived_messages" else None)
    if not isinstance(messages, list):
        raise PoisonError("is no list", field=name)
    return [(f"{name} {number + 1}", message) for number, message in enumerate(messages)]


def _start(fields: dict[str, Any], oddities: list[str]) -> int | None:
    """Give the first usable time of a session, in epoch milliseconds."""
    found = None
    for name in ("created_at", "updated_at"):
        value = fields.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            oddities.append(f"{name}: is no text; a number is taken as epoch seconds")
        try:
            found = records.to_epoch_ms(value) if found is None and isinstance(value, str | int | float) else found
        except PoisonError as error:
            oddities.append(f"{name}: {error.reason}")
    return found


def _turns(session: _Session) -> Iterator[Imported | Malformed]:
    next_ms, time_from = session.start_ms, session.time_from
    last: Turn | None = None
    for number, (place, message) in enumerate(session.messages):
        try:
            turn = _turn(session, number, message, next_ms, time_from)
        except PoisonError as error:
            yield Malformed(session.path, session.position, place, str(error))
            continue
        item = source.checked(session.path, session.position, place, turn)
        last = turn if isinstance(item, Imported) else last
        next_ms, time_from = turn.timestamp_ms + _STEP_MS, session.time_from
        yield item
    if last is not None:
        closed_id = session.event_id("closed", last.event_id)
        closed = source.session_closed(session.scope, session.session_id, last, closed_id)
        yield source.checked(session.path, session.position, "session", closed)


def _turn(session: _Session, number: int, message: Any, time_ms: int, time_from: str) -> Turn:
    if not isinstance(message, dict):
        raise PoisonError("is not a JSON object")
    role, content, time = message.get("role"), message.get("content"), message.get("timestamp")
    if not isinstance(role, str) or not role:
        raise PoisonError("is missing or no text", field="role")
    if not isinstance(content, str | None):
        content = source.canonical(content)  # parts and tool results, kept as they are
    if not isinstance(time, str | int | float | None) or isinstance(time, bool):
        raise PoisonError("is neither ISO 8601 text nor epoch seconds", field="timestamp")
    made_up = {"time_from": time_from} if time is None or time == "" else {}
    return Turn(
        scope=session.scope,
        session_id=session.session_id,
        role=role,
        content=content or "",
        timestamp=records.from_epoch_ms(time_ms) if made_up or time is None else time,
        event_id=session.event_id(str(number), role, content or ""),
        index=number,
        metadata={**session.facts, **made_up},
    )
