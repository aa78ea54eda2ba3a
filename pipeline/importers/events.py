"""JSON lines of contract events: what a platform would have written into the stream.

An event without an ``event_id`` gets one derived from its scope, session, byte offset and content. A scope given by
the caller wins over the event's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pipeline import contract
from pipeline.errors import PoisonError
from pipeline.importers import source
from pipeline.importers.source import Imported, Malformed, Value
from pipeline.records import Scope

FORMAT: Final = "events"
MAX_LINE_BYTES: Final = contract.MAX_EVENT_BYTES + (64 << 10)
"""A little more than the contract allows, so that it is the contract which says why an event is refused."""


def read(path: Path, scope: Scope | None = None, *, start: int = 0) -> Iterator[Imported | Malformed]:
    """Yield the events of a file in order, from the line at byte ``start`` on.

    Raises:
        ConfigError: the file cannot be opened.
    """
    for line in source.lines(path, start=start, max_line_bytes=MAX_LINE_BYTES):
        yield _read_line(path, scope, line)


def _read_line(path: Path, scope: Scope | None, line: Value) -> Imported | Malformed:
    if line.reason:
        return Malformed(path, line.position, line.place, line.reason)
    if not isinstance(line.value, dict):
        return Malformed(path, line.position, line.place, "is not a JSON object")
    try:
        return Imported(line.position, contract.decode(_completed(line, scope)))
    except PoisonError as error:
        return Malformed(path, line.position, line.place, str(error))


def _completed(line: Value, scope: Scope | None) -> bytes:
    """Give the line's bytes, with the scope and the id it lacks; untouched when it lacks nothing."""
    fields: dict[str, Any] = line.value
    if scope is None and fields.get("event_id") is not None:
        return line.raw
    given = {"scope": scope.kind, "scope_id": scope.id} if scope else {}
    whole = {**fields, **given}
    if whole.get("event_id") is None:
        whole["event_id"] = _derived_id(whole, line.position)
    return source.canonical(whole).encode("utf-8", "surrogatepass")


def _derived_id(fields: dict[str, Any], position: int) -> str:
    return source.event_id(FORMAT, None, str(fields.get("session_id", "")), str(position), source.canonical(fields))
