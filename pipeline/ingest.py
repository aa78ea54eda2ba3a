"""Ingest: entries of the stream become turns in their ledgers, and only then are acknowledged.

After a kill at any point the entry is either still pending, and applied again without effect, or in its ledger and
acknowledged. A bad entry moves to the dead letters in the same server transaction that acknowledges it. A scope whose
ledger cannot be written keeps its entries pending; the others of the batch go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from pipeline import contract
from pipeline.errors import PoisonError, ShardError, TransientError
from pipeline.ledger import Ledger, LedgerPool, disk, events
from pipeline.records import Event, Scope
from pipeline.registry import Registry
from pipeline.stream import DeadLetter, Entry, TurnStream

_log = structlog.get_logger()


@dataclass(slots=True)
class _ScopeBatch:
    """One scope's share of a batch: its events and the entries they came in."""

    scope: Scope
    events: list[Event] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


class Ingest:
    """Takes batches of entries to their ledgers.

    Args:
        stream: where the entries come from, and are acknowledged.
        ledgers: this process's ledgers.
        registry: told which scopes have work.
        clock: epoch milliseconds.
    """

    def __init__(
        self, stream: TurnStream, ledgers: LedgerPool, registry: Registry, *, clock: Callable[[], int]
    ) -> None:
        self._stream = stream
        self._ledgers = ledgers
        self._registry = registry
        self._clock = clock

    def batch(self, entries: Sequence[Entry]) -> list[str]:
        """Apply, flush, mark, acknowledge, in this order.

        Returns:
            The keys of the scopes that have new work.

        Raises:
            TransientError: the server cannot be reached; what is committed is committed, the rest stays pending.
        """
        batches, letters = _sort_out(entries)
        self._stream.dead_letter_and_ack(letters)
        scopes: list[str] = []
        for group in self._ledgers.groups(batches):
            committed = self._commit(group)
            keys = [batch.scope.key for batch in committed]
            self._registry.mark(keys, now_ms=self._clock())
            self._stream.ack([entry_id for batch in committed for entry_id in batch.entry_ids])
            scopes += keys
            self._count(committed, letters)
            letters = []
        return scopes

    def close(self) -> None:
        """Close the ledgers."""
        self._ledgers.close()

    def _commit(self, batches: Sequence[_ScopeBatch]) -> list[_ScopeBatch]:
        written = [(batch, ledger) for batch in batches if (ledger := self._apply(batch))]
        disk.flush([ledger for _, ledger in written])
        return [batch for batch, _ in written]

    def _apply(self, batch: _ScopeBatch) -> Ledger | None:
        try:
            ledger = self._ledgers.open(batch.scope)
            batch.outcomes.update(events.apply(ledger, batch.events, now_ms=self._clock()))
        except TransientError as error:
            _log.warning("batch.postponed", n_entries=len(batch.entry_ids), reason=str(error))
            return None
        except ShardError as error:
            _log.error("shard.refused", n_entries=len(batch.entry_ids), reason=str(error))
            return None
        return ledger

    def _count(self, committed: list[_ScopeBatch], letters: list[DeadLetter]) -> None:
        outcomes: Counter[str] = Counter()
        for batch in committed:
            outcomes += batch.outcomes
        if letters:
            outcomes["dead_lettered"] = len(letters)
        self._registry.add_totals(dict(outcomes))
        _log.info("batch.committed", n_scopes=len(committed), **outcomes)


def _sort_out(entries: Sequence[Entry]) -> tuple[list[_ScopeBatch], list[DeadLetter]]:
    batches: dict[Scope, _ScopeBatch] = {}
    letters: list[DeadLetter] = []
    for entry in entries:
        try:
            if entry.raw is None:
                raise PoisonError("the entry has no field 'event'; XADD … * event '{…}'")  # noqa: TRY301 - one kind of refusal
            event = contract.decode(entry.raw)
        except PoisonError as error:
            letters.append(DeadLetter(entry.id, entry.raw or b"", error.reason, error.field))
            _log.warning("entry.dead_lettered", entry_id=entry.id, field=error.field)
            continue
        batch = batches.setdefault(event.scope, _ScopeBatch(event.scope))
        batch.events.append(event)
        batch.entry_ids.append(entry.id)
    return list(batches.values()), letters
