"""Ingest: entries of the stream become turns in their ledgers, and only then are acknowledged.

After a kill at any point the entry is either still pending, and applied again without effect, or in its ledger and
acknowledged. A bad entry moves to the dead letters in the same server transaction that acknowledges it. A scope whose
ledger cannot be written keeps its entries pending; the others of the batch go on.

Why a batch may grow large: opening a ledger and committing to it costs more than ten turns do. Under a backlog spread
over ten thousand scopes, 50 000 entries are sorted by scope first, so that each ledger is opened once for all of its
turns; with few scopes, or no backlog, a batch is committed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from pipeline import contract
from pipeline.crash_points import CrashPoint, passing
from pipeline.errors import PoisonError, ShardError, TransientError
from pipeline.ledger import Ledger, LedgerPool, disk, events
from pipeline.records import Event, Scope
from pipeline.registry import Registry
from pipeline.stream import DeadLetter, Entry, TurnStream

_ENOUGH_PER_SCOPE = 8
_COMMIT_THREADS = 4
"""Making and opening many ledgers is waiting for the disk."""
_SCOPES_PER_FLUSH = 500
"""Scopes after which what is committed is flushed, acknowledged and handed on."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is committed.

    Args:
        n_entries: entries after which it is, if its scopes have several each.
        n_entries_spread: entries after which it is, however many scopes they are spread over.
        n_bytes: bytes after which it is, whatever the entries.
    """

    n_entries: int
    n_entries_spread: int
    n_bytes: int


@dataclass(slots=True)
class _Share:
    """One scope's share of a batch: its events and the entries they came in."""

    scope: Scope
    events: list[Event] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


class Batch:
    """Entries read together, validated and sorted by scope; bad ones aside with their reasons."""

    def __init__(self) -> None:
        self.shares: dict[Scope, _Share] = {}
        self.letters: list[DeadLetter] = []
        self.n_entries = 0
        self._n_bytes = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Validate entries and sort them in."""
        for entry in entries:
            self.n_entries += 1
            self._n_bytes += len(entry.raw or b"")
            try:
                event = contract.decode(_raw_event(entry))
            except PoisonError as error:
                self.letters.append(DeadLetter(entry.id, entry.raw, error.reason, error.field))
                continue
            share = self.shares.setdefault(event.scope, _Share(event.scope))
            share.events.append(event)
            share.entry_ids.append(entry.id)

    def is_full(self, limits: BatchLimits) -> bool:
        """Tell whether reading on would gain less than committing now."""
        if self._n_bytes >= limits.n_bytes or self.n_entries >= limits.n_entries_spread:
            return True
        return self.n_entries >= max(limits.n_entries, _ENOUGH_PER_SCOPE * len(self.shares))


class Ingest:
    """Takes batches of entries to their ledgers.

    Args:
        stream: where the entries come from, and are acknowledged.
        ledgers: this process's ledgers.
        registry: told which scopes have work.
        clock: epoch milliseconds.
        beat: called at each step, of which none should take long; by several threads.
    """

    def __init__(
        self,
        stream: TurnStream,
        ledgers: LedgerPool,
        registry: Registry,
        *,
        clock: Callable[[], int],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._ledgers = ledgers
        self._registry = registry
        self._clock = clock
        self._beat = beat
        self._threads = ThreadPoolExecutor(_COMMIT_THREADS, thread_name_prefix="commit")

    def commit(self, batch: Batch) -> Iterator[list[str]]:
        """Apply, flush, mark, acknowledge, in this order, some scopes at a time.

        Yields:
            The keys of scopes that have new work.

        Raises:
            TransientError: the server cannot be reached; what is committed is committed, the rest stays pending.
        """
        self._set_aside(batch.letters)
        shares = list(batch.shares.values())
        for start in range(0, len(shares), _SCOPES_PER_FLUSH):
            for group in self._ledgers.groups(shares[start : start + _SCOPES_PER_FLUSH]):
                yield self._commit(group)

    def close(self) -> None:
        """End the threads and close the ledgers."""
        self._threads.shutdown()
        self._ledgers.close()

    def _set_aside(self, letters: list[DeadLetter]) -> None:
        if n_letters := self._stream.dead_letter_and_ack(letters):
            passing(CrashPoint.AFTER_DEAD_LETTER)
            self._registry.add_totals({"dead_lettered": n_letters})
            for letter in letters:
                _log.warning("entry.dead_lettered", entry_id=letter.entry_id, field=contract.loggable(letter.field))

    def _commit(self, shares: Sequence[_Share]) -> list[str]:
        apply_all = self._threads.map if len(shares) > _COMMIT_THREADS else map
        written = [
            (share, ledger) for share, ledger in zip(shares, apply_all(self._apply, shares), strict=True) if ledger
        ]
        self._beat()
        disk.flush([ledger for _, ledger in written])
        self._beat()
        passing(CrashPoint.AFTER_FLUSH)
        keys = [share.scope.key for share, _ in written]
        self._registry.mark(keys, now_ms=self._clock())
        passing(CrashPoint.AFTER_MARK)
        outcomes = sum((share.outcomes for share, _ in written), Counter[str]())
        self._registry.add_totals(dict(outcomes))  # before the server, which may not be there any more, is told
        self._stream.ack([entry_id for share, _ in written for entry_id in share.entry_ids])
        passing(CrashPoint.AFTER_ACK)
        _log.info("batch.committed", n_scopes=len(keys), **outcomes)
        return keys

    def _apply(self, share: _Share) -> Ledger | None:
        self._beat()
        try:
            ledger = self._ledgers.open(share.scope)
            share.outcomes.update(events.apply(ledger, share.events, now_ms=self._clock()))
        except TransientError as error:
            _log.warning("batch.postponed", n_entries=len(share.entry_ids), reason=str(error))
            return None
        except ShardError as error:
            _log.error("shard.refused", n_entries=len(share.entry_ids), reason=str(error))
            return None
        return ledger


def _raw_event(entry: Entry) -> bytes:
    if entry.raw is not None:
        return entry.raw
    if entry.n_fields:
        raise PoisonError("the entry has no field 'event'; publish it with XADD … * event '{…}'")
    raise PoisonError("the entry was removed from the stream before it was ingested; publish its event again")
