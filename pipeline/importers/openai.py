"""Sessions as OpenAI writes them: ``{"session_id"?, "messages": [{"role", "content", "name"?}], "created_at"?}``.

A file is a JSON array of them, JSON lines, or a single one. Each message becomes a turn whose ``index`` is its place;
after the last one the session is closed.

Time: a message's own ``created_at`` or ``timestamp``; else one second after the message before it; else the session's
``created_at``; else the file's modification time, which at least is no earlier than the chat. Turns without any time
of their own carry ``"time_from": "session"`` or ``"file"`` in their metadata. Ids do not depend on time, so importing
a touched copy adds nothing.

A session without an id gets one derived from its position and its messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline import records
from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import source
from pipeline.importers.source import Imported, Malformed, Value
from pipeline.records import Scope, Turn

FORMAT: Final = "openai"
STEP_MS: Final = 1_000
_TEXT_PARTS: Final = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True)
class _Session:
    path: Path
    value: Value
    scope: Scope
    session_id: str
    messages: list[Any]
    start_ms: int
    time_from: str

    def place(self, number: int) -> str:
        return f"{self.value.place}, message {number + 1}"

    def malformed(self, number: int, reason: str) -> Malformed:
        return Malformed(self.path, self.value.position, self.place(number), reason)

    def event_id(self, position: str, *content: str) -> str:
        return source.event_id(FORMAT, self.scope, self.session_id, f"{self.value.position}/{position}", *content)


def read(path: Path, scope: Scope | None = None, *, start: int = 0) -> Iterator[Imported | Malformed]:
    """Yield the turns of every session in order, each session's closing after them.

    Raises:
        ConfigError: there is no scope, or the file cannot be opened.
    """
    if scope is None:
        raise ConfigError(f"the {FORMAT} format names no scope; give one, for example --scope user/u42")
    for value in source.values(path, "messages", start=start):
        try:
            session = _session(path, scope, value)
        except PoisonError as error:
            yield Malformed(path, value.position, value.place, str(error))
        else:
            yield from _read_session(session)


def _session(path: Path, scope: Scope, value: Value) -> _Session:
    """Check what a session says about itself.

    Raises:
        PoisonError: it is no session.
    """
    if value.reason:
        raise PoisonError(value.reason)
    if not isinstance(value.value, dict):
        raise PoisonError("is not a JSON object")
    messages = value.value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PoisonError("is no list of at least one message", field="messages")
    session_id = value.value.get("session_id")
    if session_id is None:
        content = source.canonical(messages)
        session_id = f"{FORMAT}-{source.event_id(FORMAT, scope, '', str(value.position), content)}"
    elif isinstance(session_id, bool) or not isinstance(session_id, str | int):
        raise PoisonError("is neither text nor a whole number", field="session_id")
    start_ms = _time_ms(value.value, "created_at", "timestamp")
    time_from = "session"
    if start_ms is None:
        start_ms, time_from = round(path.stat().st_mtime) * 1000, "file"
    return _Session(path, value, scope, str(session_id), messages, start_ms, time_from)


def _read_session(session: _Session) -> Iterator[Imported | Malformed]:
    next_ms, time_from = session.start_ms, session.time_from
    last: Turn | None = None
    for number, message in enumerate(session.messages):
        try:
            own_ms = _own_time_ms(message)
            next_ms, time_from = (next_ms, time_from) if own_ms is None else (own_ms, "message")
            turn = _turn(session, number, message, next_ms, time_from)
        except PoisonError as error:
            yield session.malformed(number, str(error))
        else:
            item = source.checked(session.path, session.value.position, session.place(number), turn)
            last = turn if isinstance(item, Imported) else last
            yield item
        next_ms += STEP_MS
    if last is not None:
        closed_id = session.event_id("closed", last.event_id)
        closed = source.session_closed(session.scope, session.session_id, last, closed_id)
        yield source.checked(session.path, session.value.position, session.value.place, closed)


def _turn(session: _Session, number: int, message: Any, time_ms: int, time_from: str) -> Turn:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise PoisonError("is missing or no text", field="role")
    speaker = message.get("name")
    if speaker is not None and not isinstance(speaker, str):
        raise PoisonError("is no text", field="name")
    content, others = _content(message.get("content"))
    metadata = {"source": FORMAT, **_noted(message, others)}
    if time_from != "message":
        metadata["time_from"] = time_from
    return Turn(
        scope=session.scope,
        session_id=session.session_id,
        role=role,
        content=content,
        timestamp=records.from_epoch_ms(time_ms),
        event_id=session.event_id(str(number), role, content),
        index=number,
        speaker=speaker or None,
        metadata=metadata,
    )


def _content(content: Any) -> tuple[str, list[str]]:
    """Give a message's text, and the kinds of its parts that are not text.

    Raises:
        PoisonError: it is neither text, nor null, nor a list of parts.
    """
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise PoisonError("is neither text, nor null, nor a list of parts", field="content")
    texts, others = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            raise PoisonError("holds a part that is neither text nor an object", field="content")
        elif part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            others.append(str(part.get("type", "unknown"))[:64])
    return "\n".join(texts), others


def _noted(message: dict[str, Any], others: list[str]) -> dict[str, Any]:
    """Keep what else a message says, in brief: kinds of parts, names of the tools called."""
    noted: dict[str, Any] = {"other_parts": others} if others else {}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        functions = [call.get("function") for call in calls if isinstance(call, dict)]
        names = [f["name"] for f in functions if isinstance(f, dict) and isinstance(f.get("name"), str)]
        noted["tool_calls"] = names
    if isinstance(message.get("tool_call_id"), str):
        noted["tool_call_id"] = message["tool_call_id"]
    return noted


def _own_time_ms(message: Any) -> int | None:
    if not isinstance(message, dict):
        raise PoisonError("is not a JSON object")
    return _time_ms(message, "created_at", "timestamp")


def _time_ms(fields: dict[str, Any], *names: str) -> int | None:
    """Read the first of the named times that is there.

    Raises:
        PoisonError: it is no time.
    """
    for name in names:
        value = fields.get(name)
        if value is not None:
            if not isinstance(value, str | int | float):
                raise PoisonError("is neither ISO 8601 text nor epoch seconds", field=name)
            return records.to_epoch_ms(value)
    return None
