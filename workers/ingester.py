"""The ingester process: reads the stream, has batches applied, rings the workers, and sweeps for work left undone.

Several may share the group. One that is killed leaves its entries pending: restarted under the same name it takes
them up at once, and any other claims them after a while.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from pipeline import crash_points, log
from pipeline.crash_points import CrashPoint, passing
from pipeline.errors import ServerUnreachableError, TransientError
from pipeline.ingest import Batch, BatchLimits, Ingest
from pipeline.ledger import LedgerPool
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import Shards, require_usable
from pipeline.stream import Claim, Entry, TurnStream, connect, server_url
from workers import app as doorbells
from workers.limits import ledgers_at_once
from workers.liveness import INGESTER, STACK_SIGNAL, STDERR, Pulse

_FEWEST_ENTRIES, _MOST_ENTRIES = 16, 500
_REPLY_BYTES = 8 << 20
"""What a reply should hold, by the mean size of the one before: it is all in memory before its size is known."""
_NO_WAIT_MS = 1
_UPKEEP_EVERY_S = 2.0
_TRIM_EVERY_S = 0.2
_STARVED_AFTER_S = 60.0
"""A scope rung this long ago is rung again even while the queue is not empty."""
_FORGET_CONSUMERS_AFTER_MS = 86_400_000
_log = structlog.get_logger()


def run(settings: Settings, *, name: str) -> None:
    """Ingest until SIGTERM or SIGINT.

    Raises:
        ConfigError: the data folder cannot be used.
    """
    log.configure(settings.log_level, settings.log_format, process=name)
    faulthandler.register(STACK_SIGNAL, file=STDERR)
    crash_points.arm(settings.crash_at)
    require_usable(settings.data_dir)
    url = server_url(settings.redis.plain_url, settings.data_dir)
    ingester = Ingester(settings, url, name=name, clock=lambda: time.time_ns() // 1_000_000)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ingester.stop)
    try:
        ingester.run()
    finally:
        ingester.close()


class Ingester:
    """One consumer of the group, with its doorbells and its sweeper."""

    def __init__(self, settings: Settings, url: str, *, name: str, clock: Callable[[], int]) -> None:
        names = settings.stream
        self._settings = settings
        self._name = name
        self._clock = clock
        self._pulse = Pulse(settings.data_dir, INGESTER, name, step_s=settings.redis.timeout_s)
        self._app: Celery = doorbells.make_app(url, timeout_s=settings.redis.timeout_s)
        self._stream = TurnStream(
            connect(url, timeout_s=settings.redis.timeout_s),
            name=names.turns,
            dead_name=names.dead,
            group=names.group,
        )
        self._registry = Registry(settings.data_dir, busy_timeout_ms=settings.ledger.busy_timeout_ms)
        self._ingest = Ingest(
            self._stream,
            LedgerPool(
                Shards(settings.data_dir),
                max_open=ledgers_at_once(settings.ledger.max_open),
                busy_timeout_ms=settings.ledger.busy_timeout_ms,
                is_flushed=True,
            ),
            self._registry,
            clock=clock,
            beat=self._pulse.beat,
        )
        self._limits = BatchLimits(
            n_entries=names.batch_entries, n_entries_spread=names.batch_entries_spread, n_bytes=names.batch_bytes
        )
        self._n_entries = _FEWEST_ENTRIES
        self._stopping = False
        self._next_upkeep = self._next_trim = 0.0

    def stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """End after the batch at hand."""
        self._stopping = True

    def close(self) -> None:
        """Close ledgers and connections."""
        self._ingest.close()
        self._registry.close()
        self._app.close()

    def run(self) -> None:
        """Read and apply until stopped; an unreachable server is waited for."""
        resumed = False
        while not self._stopping:
            self._pulse.beat()
            try:
                if not resumed:
                    self._stream.ensure_group()
                    self._ingest_all(self._own_pending())
                    resumed = True
                self._step()
            except ServerUnreachableError as error:
                _log.warning("server.lost", reason=str(error))
                resumed = False
                time.sleep(0.5)
            except TransientError as error:
                _log.warning("batch.postponed", reason=str(error))
                time.sleep(1.0)

    def _step(self) -> None:
        self._ingest_all(self._new_entries())
        if time.monotonic() >= self._next_trim:  # a full server takes nothing new until it is
            self._next_trim = time.monotonic() + _TRIM_EVERY_S
            passing(CrashPoint.BEFORE_TRIM)
            self._stream.trim()
            passing(CrashPoint.AFTER_TRIM)
        if time.monotonic() >= self._next_upkeep:
            self._next_upkeep = time.monotonic() + min(_UPKEEP_EVERY_S, self._settings.workers.sweep_every_s)
            self._upkeep()

    def _ingest_all(self, replies: Iterable[list[Entry]]) -> None:
        """Commit replies in batches, and ring for each part of one as soon as it is committed."""
        batch = Batch()
        for entries in replies:
            passing(CrashPoint.AFTER_READ)
            batch.add(entries)
            if batch.is_full(self._limits):
                self._commit(batch)
                batch = Batch()
        if batch.n_entries:
            self._commit(batch)

    def _commit(self, batch: Batch) -> None:
        for scopes in self._ingest.commit(batch):
            self._ring(doorbells.EMBED_TURNS, scopes)

    def _new_entries(self) -> Iterator[list[Entry]]:
        """Wait for entries, then yield what has piled up, for one batch at the most."""
        wait_ms, n_entries = self._settings.stream.block_ms, 0
        while n_entries < self._limits.n_entries_spread:
            entries = self._stream.read(self._name, count=self._n_entries, block_ms=wait_ms)
            if not entries:
                return
            self._fit_replies(entries)
            yield entries
            wait_ms, n_entries = _NO_WAIT_MS, n_entries + len(entries)

    def _own_pending(self) -> Iterator[list[Entry]]:
        after = "0"
        while entries := self._stream.read_own_pending(self._name, count=self._n_entries, after=after):
            self._fit_replies(entries)
            yield entries
            after = entries[-1].id

    def _strays(self) -> Iterator[list[Entry]]:
        while entries := self._stream.take_up_strays(self._name, count=self._n_entries):
            _log.warning("entries.taken_up_again", n_entries=len(entries), first=entries[0].id)
            self._registry.add_totals({"taken_up_again": len(entries)})
            self._fit_replies(entries)
            yield entries

    def _fit_replies(self, entries: list[Entry]) -> None:
        mean_bytes = sum(len(entry.raw or b"") for entry in entries) / len(entries)
        wanted = min(_MOST_ENTRIES, 4 * self._n_entries, round(_REPLY_BYTES / (mean_bytes + 1)))
        self._n_entries = max(_FEWEST_ENTRIES, wanted)

    def _upkeep(self) -> None:
        names = self._settings.stream
        claim: Claim = self._stream.claim(self._name, min_idle_ms=names.claim_idle_ms, count=self._n_entries)
        if claim.deleted:
            _log.error("entries.lost", n_entries=len(claim.deleted), first=claim.deleted[0])
            self._registry.add_totals({"lost_before_ingest": len(claim.deleted)})
        self._ingest_all([claim.entries])
        self._ingest_all(self._strays())
        if self._ingest.busy:
            self._ingest.busy.clear()
            self._ingest_all(self._own_pending())
        self._sweep()
        self._stream.remove_idle_consumers(_FORGET_CONSUMERS_AFTER_MS)

    def _sweep(self) -> None:
        """Ring for work whose doorbell was lost, and for what has fallen due: sessions, snapshots, purges."""
        now_ms = self._clock()
        limit = 10 * self._settings.workers.doorbell_scopes
        undone = self._registry.undone(
            now_ms=now_ms, rung_before_ms=self._rung_before_ms(doorbells.EMBED_TURNS, now_ms), limit=limit
        )
        self._ring(doorbells.EMBED_TURNS, undone)
        rung_before_ms = self._rung_before_ms(doorbells.SUMMARISE_SESSIONS, now_ms)
        due = self._registry.due(now_ms=now_ms, rung_before_ms=rung_before_ms, limit=limit)
        self._ring(doorbells.SUMMARISE_SESSIONS, due)
        waits_s = 0 if self._stream.n_waiting(doorbells.PUBLISH_SNAPSHOTS) == 0 else _STARVED_AFTER_S
        publishable = self._registry.take_publishable(
            now_ms=now_ms, due_by_ms=now_ms - round(waits_s * 1000), limit=limit
        )
        self._ring(doorbells.PUBLISH_SNAPSHOTS, publishable)

    def _rung_before_ms(self, task: str, now_ms: int) -> int:
        """Ring again soon while the workers are idle, rarely while doorbells still wait for them."""
        queue_is_empty = self._stream.n_waiting(task) == 0
        wait_s = self._settings.workers.sweep_every_s if queue_is_empty else _STARVED_AFTER_S
        return now_ms - round(wait_s * 1000)

    def _ring(self, task: str, scopes: list[str]) -> None:
        if not scopes:
            return
        self._registry.note_rung(scopes, now_ms=self._clock())
        try:
            doorbells.ring(self._app, task, scopes, scopes_per_task=self._settings.workers.doorbell_scopes)
        except OperationalError as error:
            _log.warning("doorbell.lost", task=task, n_scopes=len(scopes), error=type(error).__name__)
