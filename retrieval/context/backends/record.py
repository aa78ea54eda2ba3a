"""A session's window as bytes, and how it changes: pure, the same for every store.

A record is UTF-8 JSON: ``{"format": 1, "session_id": …, "exchanges": [{"entry": {…}, "turn_ids": […]}, …],
"forgotten": [<digest>, …], "up_to_ms": …}``.

Why what was forgotten is noted: each host has a ledger of its own, and one that has not forgotten an exchange may
tell it once more, as a retry does.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import PoisonError
from pipeline.records import to_epoch_ms
from retrieval.context.backends.protocol import IsForgotten, Kept, Limits, SessionKey
from retrieval.context.entries.entry import Entry

FORGOTTEN_FOR_MS: Final = 90 * 86_400_000
"""How long a store knows what was forgotten where nothing else is left of the session: who was away longer than that
and tells it again is believed."""
_MOST_FORGOTTEN: Final = 100
_DIGEST_BYTES: Final = 16
_FORMAT: Final = 1
_log = structlog.get_logger()


class DamagedRecordError(ValueError):
    """A record that is none: cut off, changed, or written by something else."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a store has of a session.

    Args:
        session_id: "" where nothing is left but what says what was forgotten.
        exchanges: the latest, oldest first.
        forgotten: digests of exchanges that were forgotten, the latest so many: none of them is taken again.
        up_to_ms: nor is anything said up to then; None: there is no such time.
    """

    session_id: str = ""
    exchanges: tuple[Kept, ...] = ()
    forgotten: tuple[str, ...] = ()
    up_to_ms: int | None = None

    def refuses(self, exchange: Kept) -> bool:
        """Tell whether an exchange is, or came before, what was forgotten: some host tells it again."""
        is_earlier = self.up_to_ms is not None and exchange.entry.time_ms <= self.up_to_ms
        return is_earlier or _digest(exchange) in self.forgotten


FORGOTTEN_SESSION: Final = Record(up_to_ms=1 << 62)
"""What is left of a session that was forgotten for good."""


@dataclass(frozen=True, slots=True)
class _Stored:
    format: int
    session_id: str
    exchanges: tuple[Kept, ...]
    forgotten: tuple[str, ...] = ()
    up_to_ms: int | None = None


def encode(record: Record) -> bytes:
    """Write a record; places in a ledger, which is one host's, are left out."""
    kept = tuple(replace(each, entry=replace(each.entry, turn_offsets=())) for each in record.exchanges)
    return _adapter().dump_json(_Stored(_FORMAT, record.session_id, kept, record.forgotten, record.up_to_ms))


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
    return Record(stored.session_id, stored.exchanges, stored.forgotten, stored.up_to_ms)


def decode_of(key: SessionKey, raw: bytes) -> Record:
    """Read a session's record.

    Raises:
        DamagedRecordError: it is none, or another session's.
    """
    record = decode(raw)
    is_of_nobody = not record.session_id and not record.exchanges
    if record.session_id != key.session_id and not is_of_nobody:
        raise DamagedRecordError("it is another session's")
    return record


def added(record: Record, session_id: str, exchange: Kept, limits: Limits) -> Record:
    """Add an exchange to a record, unless it is there, or was forgotten."""
    if record.refuses(exchange):
        return record
    exchanges = appended(record.exchanges, exchange, limits)
    return record if exchanges == record.exchanges else replace(record, session_id=session_id, exchanges=exchanges)


def purged(record: Record, is_forgotten: IsForgotten) -> Record:
    """Leave out the exchanges that were forgotten, but for what tells them from others; no text is left of them."""
    left = remaining(record.session_id, record.exchanges, is_forgotten)
    gone = [kept for kept in record.exchanges if kept not in left]
    if not gone:
        return record
    forgotten = (*record.forgotten, *map(_digest, gone))[-_MOST_FORGOTTEN:]
    if left:
        return replace(record, exchanges=left, forgotten=forgotten)
    return Record(forgotten=forgotten, up_to_ms=max(record.up_to_ms or 0, *(kept.entry.time_ms for kept in gone)))


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


def _digest(exchange: Kept) -> str:
    return hashlib.blake2b(exchange.entry.entry_id.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@functools.cache
def _adapter() -> TypeAdapter[_Stored]:
    return TypeAdapter(_Stored)
