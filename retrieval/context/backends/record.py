"""A session's window as bytes, and how it changes: pure, the same for every store.

A record is UTF-8 JSON: ``{"format": 1, "session_id": …, "exchanges": [{"entry": {…}, "turn_ids": […]}, …]}``; notes
of what was forgotten are ``{"format": 1, "up_to_ms": …, "turns": [<digest>, …]}``, kept apart: they outlive a window.

Why what was forgotten is noted: each host has a ledger of its own, and one that has not forgotten an exchange may
tell it once more, as a retry does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import PoisonError
from pipeline.ledger.forgetting import FOR_GOOD, Tombstones, turn_digest
from pipeline.records import to_epoch_ms
from retrieval.context.backends.protocol import ForgottenOf, Kept, Limits, SessionKey
from retrieval.context.entries.entry import Entry

FORGOTTEN_FOR_MS: Final = 90 * 86_400_000
"""How long a store knows what was forgotten of a session: who was away longer than that and tells it again is
believed."""
_MOST_TURNS: Final = 1_000
"""Of a session, noted one by one; more than that are refused only where a ledger has forgotten them."""
_FORMAT: Final = 1
_log = structlog.get_logger()


class DamagedRecordError(ValueError):
    """A record that is none: cut off, changed, or written by something else."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a store has of a session.

    Args:
        session_id: "" where there is none.
        exchanges: the latest, oldest first.
    """

    session_id: str = ""
    exchanges: tuple[Kept, ...] = ()


FORGOTTEN_SESSION: Final = Tombstones(FOR_GOOD)


@dataclass(frozen=True, slots=True)
class _Stored:
    format: int
    session_id: str
    exchanges: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class _StoredNotes:
    format: int
    up_to_ms: int | None
    turns: tuple[str, ...]


def encode(record: Record) -> bytes:
    """Write a record; places in a ledger, which is one host's, are left out."""
    kept = tuple(replace(each, entry=replace(each.entry, turn_offsets=())) for each in record.exchanges)
    return _adapter().dump_json(_Stored(_FORMAT, record.session_id, kept))


def decode(raw: bytes) -> Record:
    """Read a record.

    Raises:
        DamagedRecordError: it is none.
    """
    try:
        stored = _adapter().validate_json(raw, strict=True)
    except ValidationError as error:
        raise DamagedRecordError(f"{error.error_count()} things in {len(raw)} bytes are wrong") from error
    if stored.format != _FORMAT:
        raise DamagedRecordError(f"it has format {stored.format}, this release reads {_FORMAT}")
    for kept in stored.exchanges:
        try:
            to_epoch_ms(kept.entry.time_ms / 1_000)
        except (PoisonError, OverflowError) as error:
            raise DamagedRecordError("a time lies outside the years 1900-2199") from error
    return Record(stored.session_id, stored.exchanges)


def decode_of(key: SessionKey, raw: bytes) -> Record:
    """Read a session's record.

    Raises:
        DamagedRecordError: it is none, or another session's.
    """
    record = decode(raw)
    if record.session_id != key.session_id:
        raise DamagedRecordError("it is another session's")
    return record


def encode_notes(notes: Tombstones) -> bytes:
    """Write notes of what was forgotten."""
    return _notes_adapter().dump_json(_StoredNotes(_FORMAT, notes.up_to_ms, notes.turns))


def decode_notes(raw: bytes | None, backend: str) -> Tombstones:
    """Read notes of what was forgotten; those that cannot be read are told of and count as none."""
    if raw is None:
        return Tombstones()
    try:
        stored = _notes_adapter().validate_json(raw, strict=True)
    except ValidationError:
        note_set_aside(backend, f"what tells of the forgotten is damaged, {len(raw)} bytes")
        return Tombstones()
    return Tombstones(stored.up_to_ms, stored.turns)


def added(record: Record, notes: Tombstones, key: SessionKey, exchange: Kept, limits: Limits) -> Record:
    """Add an exchange to a record, unless it is there, or was forgotten: some host tells it again."""
    if notes.cover(key.session_id, exchange.turn_ids, exchange.entry.time_ms):
        return record
    exchanges = appended(record.exchanges, exchange, limits)
    return record if exchanges == record.exchanges else Record(key.session_id, exchanges)


def purged(record: Record, notes: Tombstones, forgotten_of: ForgottenOf) -> tuple[Record, Tombstones]:
    """Leave out the exchanges that a ledger has forgotten; and note all it has forgotten, in the window or not."""
    if not record.exchanges:
        return Record(), notes
    session_id = record.session_id
    forgotten = forgotten_of(session_id)
    left = remaining(session_id, record.exchanges, forgotten)
    ids = [turn_id for kept in record.exchanges if kept not in left for turn_id in kept.turn_ids]
    gone = [digest for digest in (turn_digest(session_id, turn_id) for turn_id in ids) if digest in forgotten.turns]
    turns = tuple(dict.fromkeys((*gone, *notes.turns, *forgotten.turns)))[:_MOST_TURNS]
    times = [notes.up_to_ms, forgotten.up_to_ms]
    up_to_ms = max((time_ms for time_ms in times if time_ms is not None), default=None)
    return (Record(session_id, left) if left else Record()), Tombstones(up_to_ms, turns)


def appended(exchanges: Sequence[Kept], exchange: Kept, limits: Limits) -> tuple[Kept, ...]:
    """Add an exchange, once, and keep the latest by (time, id) that no long silence separates from the last."""
    if any(kept.entry.entry_id == exchange.entry.entry_id for kept in exchanges):
        return tuple(exchanges)
    ordered = sorted((*exchanges, exchange), key=lambda kept: (kept.entry.time_ms, kept.entry.entry_id))
    start = first_living([kept.entry for kept in ordered], None, limits.ttl_ms)
    return tuple(ordered[start:][-limits.n_exchanges :])


def remaining(session_id: str, exchanges: Iterable[Kept], forgotten: Tombstones) -> tuple[Kept, ...]:
    """Give the exchanges that were not forgotten."""
    return tuple(kept for kept in exchanges if not forgotten.cover(session_id, kept.turn_ids, kept.entry.time_ms))


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
def _adapter() -> TypeAdapter[_Stored]:
    return TypeAdapter(_Stored)


@functools.cache
def _notes_adapter() -> TypeAdapter[_StoredNotes]:
    return TypeAdapter(_StoredNotes)
