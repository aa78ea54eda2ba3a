"""Whose an entry is that cannot be decoded: read as far as it can be, for forgetting and for nothing else.

JSON is read as JSON. What is none, because it was cut off, is no UTF-8 or is nested too deeply, is searched for the
fields by name; a field found several times is taken at each of its values.

Why so generous: a dead letter that may hold what somebody asked to be gone is worth less than its absence. One that
names no scope is nobody's, and stays.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import PoisonError
from pipeline.records import to_epoch_ms

_FIELDS: Final = ("scope", "scope_id", "session_id", "turn_id", "event_id", "timestamp")
_SEARCHED: Final = {
    name: re.compile(rb'"%s"\s{0,64}:\s{0,64}("(?:[^"\\]|\\.){0,4096}"|-?\d{1,20}(?:\.\d{1,20})?)' % name.encode())
    for name in _FIELDS
}
_MOST_VALUES: Final = 4
"""Of one field: what repeats a field more often than that is made to be searched for long."""


@dataclass(frozen=True, slots=True)
class Place:
    """What an entry is about; None where it does not say.

    Args:
        scope_key: ``KIND/ID`` of its scope.
        session_id: its session.
        turn_id: its turn.
        at_ms: when it says that it happened.
    """

    scope_key: str
    session_id: str | None
    turn_id: str | None
    at_ms: int | None


def places(raw: bytes) -> list[Place]:
    """List what an entry may be about; empty when it names no scope."""
    values = _parsed(raw) or _found(raw)
    kinds, ids = values["scope"], values["scope_id"]
    rest = [values["session_id"] or [None], values["turn_id"] or values["event_id"] or [None]]
    times = [_epoch_ms(value) for value in values["timestamp"]] or [None]
    return [
        Place(f"{kind}/{id_}", session_id, turn_id, at_ms)
        for kind, id_, session_id, turn_id, at_ms in itertools.product(kinds, ids, *rest, times)
    ]


def _parsed(raw: bytes) -> dict[str, list[Any]] | None:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    if not isinstance(fields, dict):
        return None
    return {name: _plain(fields.get(name)) for name in _FIELDS}


def _found(raw: bytes) -> dict[str, list[Any]]:
    found = {}
    for name, pattern in _SEARCHED.items():
        matches = itertools.islice(pattern.finditer(raw), _MOST_VALUES)
        found[name] = [value for match in matches for value in _plain(_json_value(match[1]))]
    return found


def _json_value(literal: bytes) -> Any:
    try:
        return json.loads(literal.decode(errors="replace"))
    except ValueError:
        return None


def _plain(value: Any) -> list[Any]:
    """Give a field's value as text; a session 7 may have been meant for '7'."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return []
    return [str(value)]


def _epoch_ms(value: str) -> int | None:
    try:
        return to_epoch_ms(value if not _is_number(value) else float(value))
    except PoisonError:
        return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None
