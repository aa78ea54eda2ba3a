"""A transcript file as a stream of JSON values, each with its position, in memory that does not grow with the file.

A position is the byte offset of a line, or the ordinal of an element of a JSON array. Reading again from a stored
position repeats that one value at most, and its events have the ids they had before: a restarted import does no harm.

Why ids are digests of format, scope, session, position and content, and of nothing else: the same transcript under
another name, or with another modification time, gives the same ids; two equal turns at different positions do not.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pipeline import contract
from pipeline.errors import ConfigError, PoisonError
from pipeline.records import Event, Scope, SessionClosed, Turn

MAX_LINE_BYTES: Final = 64 << 20
"""A longer line is skipped and reported; a session of 10 million words still fits."""

_BLOCK_BYTES: Final = 1 << 20
_BOM: Final = codecs.BOM_UTF8
_MAX_DEPTH: Final = 100
_TOO_DEEP: Final = object()
_STARTS: Final = ("start_map", "start_array")
_ENDS: Final = ("end_map", "end_array")


@dataclass(frozen=True, slots=True)
class Imported:
    """One event of a transcript, and the position of the value it came from."""

    position: int
    event: Event


@dataclass(frozen=True, slots=True)
class Malformed:
    """A part of a transcript that cannot be used; the rest goes in.

    ``place`` is for people: ``line 12``, ``element 3, message 2``, ``conv-26, session_4, D4:7``.
    """

    path: Path
    position: int
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value with its position, or the reason why there is none."""

    position: int
    place: str
    value: Any = None
    raw: bytes = b""
    reason: str = ""


def event_id(form: str, scope: Scope | None, session_id: str, position: str, *content: str) -> str:
    """Derive an event's id: BLAKE2b, 128 bits, hex, of everything that makes it this event."""
    parts = canonical([form, scope.key if scope else "", session_id, position, *content])
    return hashlib.blake2b(
        parts.encode("utf-8", "surrogatepass"), digest_size=16, person=b"turnstream-impor"
    ).hexdigest()


def session_closed(scope: Scope, session_id: str, last: Turn, closed_id: str) -> SessionClosed:
    """Make the event that closes an imported session, at the time of its last turn."""
    return SessionClosed(scope=scope, session_id=session_id, timestamp_ms=last.timestamp_ms, event_id=closed_id)


def checked(path: Path, position: int, place: str, event: Event) -> Imported | Malformed:
    """Pass an event the contract would accept; report any other."""
    try:
        contract.encode(event)
    except PoisonError as error:
        return Malformed(path, position, place, str(error))
    return Imported(position, event)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a transcript at its first byte, past a byte order mark.

    Raises:
        ConfigError: it cannot be opened.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a transcript that can be read") from error
    with file:
        if file.read(len(_BOM)) != _BOM:
            file.seek(0)
        yield file


def lines(path: Path, *, start: int = 0, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Value]:
    """Yield the JSON value of each line that is not blank, from the line at byte ``start`` on."""
    with opened(path) as file:
        number = _seek_line(file, start) if start else 1
        while True:
            position = file.tell()
            raw = file.readline(max_line_bytes + 1)
            if not raw:
                return
            if len(raw) > max_line_bytes and not raw.endswith(b"\n"):
                _skip_line(file, raw)
                reason = f"longer than {max_line_bytes} bytes; it was skipped"
                yield Value(position, f"line {number}", reason=reason)
            elif raw.strip():
                yield _parsed_line(position, f"line {number}", raw.strip())
            number += 1


def elements(path: Path, *, start: int = 0) -> Iterator[Value]:
    """Yield the elements of a JSON array, or the objects of a file that is one or several, from ordinal ``start`` on.

    A syntax error ends the file: what comes after it cannot be told apart.
    """
    import ijson  # noqa: PLC0415 - a compiled parser that only whoever imports an array pays

    with opened(path) as file:
        at = file.tell()
        is_array = _first_byte(file) == b"["
        file.seek(at)
        ordinal = 0
        # Not `ijson.items`: it spells out the path to each value, which takes the square of the depth.
        parsed = ijson.basic_parse(file, use_float=True, multiple_values=not is_array)
        try:
            for value in _assembled(parsed, ijson.ObjectBuilder, int(is_array)):
                if ordinal >= start:
                    reason = "is nested too deeply" if value is _TOO_DEEP else ""
                    yield Value(ordinal, f"element {ordinal + 1}", value, reason=reason)
                ordinal += 1
        except (ijson.JSONError, ValueError) as error:
            reason = f"no valid JSON from here on ({_first_line(error)}); the rest of the file was not read"
            yield Value(ordinal, f"element {ordinal + 1}", reason=reason)


def _assembled(events: Iterable[tuple[str, Any]], builder_type: Callable[[], Any], base: int) -> Iterator[Any]:
    """Put the values ``base`` levels down together from a parser's events; one nested too deeply is `_TOO_DEEP`."""
    builder, depth, too_deep = builder_type(), 0, False
    for event, scalar in events:
        depth -= event in _ENDS
        belongs = depth >= base
        if belongs and depth - base <= _MAX_DEPTH:
            builder.event(event, scalar)
        too_deep = too_deep or depth - base > _MAX_DEPTH
        depth += event in _STARTS
        if belongs and depth == base:
            yield _TOO_DEEP if too_deep else builder.value
            builder, too_deep = builder_type(), False


def values(path: Path, mark: str, *, start: int = 0) -> Iterator[Value]:
    """Yield the values of a file that is JSON lines, a JSON array, or one object over several lines.

    Args:
        path: the file.
        mark: a key that every value has; tells JSON lines with a damaged first line from an object over several.
        start: position to begin at.
    """
    if _looks_like_lines(path, mark):
        yield from lines(path, start=start)
    else:
        yield from elements(path, start=start)


def canonical(value: Any) -> str:
    """Write a value the same way whatever the order of its keys.

    Raises:
        PoisonError: it is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise PoisonError("is nested too deeply") from error


def _looks_like_lines(path: Path, mark: str) -> bool:
    with opened(path) as file:
        first = _next_filled_line(file)
        if not first.startswith(b"{"):
            return not first.startswith(b"[")
        if first.endswith(b"}") or len(first) == _BLOCK_BYTES:  # nobody breaks an object after a megabyte
            return True
        second = _parsed_line(0, "", _next_filled_line(file)).value
        return isinstance(second, dict) and mark in second


def _next_filled_line(file: BinaryIO) -> bytes:
    """Give the next line that is not blank, or its first megabyte."""
    while (raw := file.readline(_BLOCK_BYTES)) and not raw.strip():
        pass
    return raw if len(raw) == _BLOCK_BYTES else raw.strip()


def _first_byte(file: BinaryIO) -> bytes:
    while (byte := file.read(1)).isspace():
        pass
    return byte


def _parsed_line(position: int, place: str, raw: bytes) -> Value:
    try:
        return Value(position, place, json.loads(raw.decode()), raw)
    except UnicodeDecodeError as error:
        return Value(position, place, reason=f"invalid UTF-8 at byte {error.start} of the line")
    except ValueError as error:
        return Value(position, place, reason=f"no valid JSON: {_first_line(error)}")
    except RecursionError:
        return Value(position, place, reason="no usable JSON: nested too deeply")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _seek_line(file: BinaryIO, start: int) -> int:
    """Go to a byte offset; give the number of the line there."""
    file.seek(0)
    number, left = 1, start
    while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
        number += block.count(b"\n")
        left -= len(block)
    return number


def _skip_line(file: BinaryIO, raw: bytes) -> None:
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(_BLOCK_BYTES)
