"""A session's window as bytes, and how it changes: pure, the same for every store.

A record is UTF-8 JSON: ``{"format": 1, "session_id": …, "exchanges": [{"entry": {…}, "turn_ids": […]}, …]}``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import PoisonError
from pipeline.records import to_epoch_ms
from retrieval.context.backends.protocol import IsForgotten, Kept, Limits, SessionKey
from retrieval.context.entries.entry import Entry

_FORMAT: Final = 1
_log = structlog.get_logger()


class DamagedRecordError(ValueError):
    """A record that is none: cut off, changed, or written by something else."""


@dataclass(frozen=True, slots=True)
class _Record:
    format: int
    session_id: str
    exchanges: tuple[Kept, ...]


def encode(session_id: str, exchanges: Sequence[Kept]) -> bytes:
    """Write a record; places in a ledger, which is one host's, are left out."""
    kept = tuple(replace(each, entry=replace(each.entry, turn_offsets=())) for each in exchanges)
    return _adapter().dump_json(_Record(_FORMAT, session_id, kept))


def decode(raw: bytes) -> tuple[str, tuple[Kept, ...]]:
    """Read a record: the session's id and its exchanges.

    Raises:
        DamagedRecordError: it is none.
    """
    try:
        record = _adapter().validate_json(raw, strict=True)
    except ValidationError as error:
        raise DamagedRecordError(f"{error.error_count()} things in {len(raw)} bytes are wrong") from error
    if record.format != _FORMAT:
        raise DamagedRecordError(f"it has format {record.format}, this release reads {_FORMAT}")
    for kept in record.exchanges:
        try:
            to_epoch_ms(kept.entry.time_ms / 1_000)
        except (PoisonError, OverflowError) as error:
            raise DamagedRecordError("a time lies outside the years 1900-2199") from error
    return record.session_id, record.exchanges


def decode_of(key: SessionKey, raw: bytes) -> tuple[Kept, ...]:
    """Read a session's record.

    Raises:
        DamagedRecordError: it is none, or another session's.
    """
    session_id, exchanges = decode(raw)
    if session_id != key.session_id:
        raise DamagedRecordError("it is another session's")
    return exchanges


def appended(exchanges: Sequence[Kept], exchange: Kept, limits: Limits) -> tuple[Kept, ...]:
    """Add an exchange, once, and keep the latest by (time, id) that no long silence separates from the last."""
    if any(kept.entry.entry_id == exchange.entry.entry_id for kept in exchanges):
        return tuple(exchanges)
    ordered = sorted((*exchanges, exchange), key=lambda kept: (kept.entry.time_ms, kept.entry.entry_id))
    start = first_living([kept.entry for kept in ordered], None, limits.ttl_ms)
    return tuple(ordered[start:][-limits.n_exchanges :])


def remaining(session_id: str, exchanges: Iterable[Kept], is_forgotten: IsForgotten) -> tuple[Kept, ...]:
    """Give the exchanges that were not forgotten."""
    return tuple(kept for kept in exchanges if not is_forgotten(session_id, kept))


def first_living(entries: Sequence[Entry], now_ms: int | None, ttl_ms: int | None) -> int:
    """Give the position, in entries oldest first, after the last silence longer than ``ttl_ms``.

    The silence up to ``now_ms`` counts too, unless that is None.
    """
    if ttl_ms is None:
        return 0
    until_ms = entries[-1].time_ms if now_ms is None and entries else now_ms or 0
    for at in range(len(entries) - 1, -1, -1):
        if until_ms - entries[at].time_ms > ttl_ms:
            return at + 1
        until_ms = entries[at].time_ms
    return 0


def note_set_aside(backend: str, reason: str) -> None:
    """Report a record that was set aside; its session goes on with what the ledger has."""
    _log.error("window.set_aside", backend=backend, reason=reason)


@functools.cache
def _adapter() -> TypeAdapter[_Record]:
    return TypeAdapter(_Record)
