"""The flow of a turn after ingest, in order: claim, chunk, embed, commit, summarise, condense, index.

Each task is a doorbell: it carries scope keys, and reads in the ledgers what is to be done. Ringing twice does
nothing the second time; a lost ring is made good by the ingester's sweeper. Whatever a task was doing when it was
killed is pending again, with the attempt counted.

A scope that cannot be worked on, because its ledger is damaged, locked or another model's, is left for the next ring;
the other scopes of its doorbell go on.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from pipeline import cognition
from pipeline.chunk import Chunker
from pipeline.crash_points import CrashPoint, passing
from pipeline.embed import Embedder, unit_vectors_with_tokens
from pipeline.errors import ConfigError, ShardError, TransientError, outcome_of
from pipeline.ledger import Ledger, LedgerPool, upkeep, work
from pipeline.ledger.fulltext import index_form
from pipeline.records import Chunk, Scope
from pipeline.registry import Registry
from pipeline.settings import WorkerSettings
from workers import app as doorbells
from workers.condensing import CondensingDesk
from workers.forgetting import END_WITHIN_S, Forgetting
from workers.indexer import Indexer
from workers.liveness import STDERR, Pulse, WorkerToken
from workers.sessions import SessionDesk

_CHARS_PER_TIMEOUT = 250_000
"""A claim of more text than this may take longer than the time limit, in proportion."""
_SNAPSHOT_S, _SNAPSHOT_S_PER_TRACE = 60.0, 0.003
"""The longest that building a snapshot, or a purge, should take: training 100 000 vectors takes a minute."""
_SHORT_PURGE_S, _LONGEST_REST_S = 1.0, 60.0
_log = structlog.get_logger()
_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Flow:
    """What a worker process works with; one per process."""

    app: Celery
    settings: WorkerSettings
    ledgers: LedgerPool
    registry: Registry
    chunker: Chunker
    embedder: Embedder
    sessions: SessionDesk
    condensing: CondensingDesk
    indexer: Indexer
    forgetting: Forgetting
    token: WorkerToken
    pulse: Pulse
    clock: Callable[[], int]

    def embed_turns(self, scopes: list[str]) -> None:
        """Make every pending turn of these scopes searchable, in batches across scopes.

        Turns tried before come last, each alone: whichever of them fails, no other is counted with it.
        """
        for marks in self._marked(scopes):
            ledgers = self._open(marks)
            for retried in (False, True):
                active = list(ledgers)
                while claimed := self._claim(active, retried=retried):
                    self._attempt(claimed, active)
            self._ring_for_snapshots(self._settle(marks))

    def summarise_sessions(self, scopes: list[str]) -> None:
        """Summarise sessions that are due in these scopes, to be condensed next; what is left over is rung again."""
        for marks in self._marked(scopes):
            left_over = []
            for key in marks:
                with self._one_scope(key):
                    if self.sessions.summarise_due(self.ledgers.open(Scope.parse(key))):
                        left_over.append(key)
            self._ring_for_snapshots(self._settle(marks))
            self._ring(doorbells.SUMMARISE_SESSIONS, left_over)
            self._ring(doorbells.CONDENSE_SESSIONS, list(marks))

    def condense_sessions(self, scopes: list[str]) -> None:
        """Find facts in new turns and condense sessions that are due in these scopes; what is left is rung again."""
        for marks in self._marked(scopes, settled_too=True):
            left_over = []
            for key in marks:
                with self._one_scope(key):
                    if self.condensing.condense_due(self.ledgers.open(Scope.parse(key))):
                        left_over.append(key)
            self._settle(marks)
            self._ring(doorbells.CONDENSE_SESSIONS, left_over)

    def publish_snapshots(self, scopes: list[str]) -> None:
        """Publish a snapshot of each scope that has outgrown its last, and purge what was forgotten.

        What failed, or was asked for meanwhile, is the sweeper's to ring for, after a while.
        """
        rests = dict.fromkeys(scopes, 0)
        for group in self.ledgers.groups(scopes):
            published, purged = list[str](), list[tuple[Ledger, str]]()
            for key in group:
                with self._one_scope(key):
                    ledger = self.ledgers.open(Scope.parse(key))
                    status, start_s = self._status(ledger), time.monotonic()
                    self.pulse.beat(_SNAPSHOT_S + _SNAPSHOT_S_PER_TRACE * status.counts.traces)
                    self.indexer.publish(ledger, status)
                    if status.purge_due is not None:
                        purged.append((ledger, status.purge_due))
                        rests[key] = rest_ms(time.monotonic() - start_s)
                    published.append(key)
            self._end_purges(purged)
            self.registry.note_published(published)
        for marks in self._marked(scopes, settled_too=True):
            self._settle(marks)
        self.registry.put_off_publishing(rests, now_ms=self.clock())

    def _end_purges(self, purged: list[tuple[Ledger, str]]) -> None:
        self.pulse.beat(END_WITHIN_S)
        try:
            self.forgetting.end_purges(purged)
        except (TransientError, ConfigError, ShardError) as error:  # they stay due: the sweeper rings again
            _log.warning("purge.postponed", reason=str(error))

    def _open(self, keys: Iterable[str]) -> list[Ledger]:
        ledgers = []
        for key in keys:
            with self._one_scope(key):
                ledgers.append(self.ledgers.open(Scope.parse(key)))
        return ledgers

    def _marked(self, scopes: list[str], *, settled_too: bool = False) -> Iterator[dict[str, int]]:
        """Yield those of the scopes that have work, with their marks, as many as can be open at a time."""
        marks = self.registry.marks(scopes, now_ms=self.clock(), settled_too=settled_too)
        for group in self.ledgers.groups(list(marks.items())):
            yield dict(group)

    def _claim(self, active: list[Ledger], *, retried: bool) -> dict[Ledger, list[work.ClaimedTurn]]:
        """Claim turns from the ledgers in order; one that has none left, or refuses, leaves the list."""
        room = 1 if retried else self.settings.claim_turns
        claimed: dict[Ledger, list[work.ClaimedTurn]] = {}
        for ledger in list(active):
            turns: list[work.ClaimedTurn] = []
            with self._one_scope(ledger.scope.key):
                turns = work.claim(
                    ledger,
                    self.token.name,
                    limit=room,
                    max_attempts=self.settings.max_attempts,
                    is_alive=self.token.is_alive,
                    model_key=self.embedder.model_key,
                    retried=retried,
                )
            if turns:
                claimed[ledger] = turns
                room -= len(turns)
            else:
                active.remove(ledger)
            if room <= 0:
                break
        return claimed

    def _attempt(self, claimed: dict[Ledger, list[work.ClaimedTurn]], active: list[Ledger]) -> None:
        n_chars = sum(len(turn.content) for turns in claimed.values() for turn in turns)
        limit_s = self.settings.turn_timeout_s * (1 + n_chars / _CHARS_PER_TIMEOUT)
        self.pulse.beat(limit_s)
        refused = outcome_of(lambda: self._make_searchable_within(limit_s, claimed))
        if isinstance(refused, Exception):  # a ledger's trouble is contained below, this is a turn's
            error = type(refused).__name__
            _log.warning("attempt.failed", n_turns=sum(map(len, claimed.values())), error=error)
            self._give_back(claimed, f"{error}: {refused}", counted=True)
            return
        self._give_back(refused, "", counted=False)
        active[:] = [ledger for ledger in active if ledger not in refused]

    def _make_searchable_within(self, limit_s: float, claimed: dict[Ledger, list[work.ClaimedTurn]]) -> list[Ledger]:
        with _time_limit(limit_s):
            return self._make_searchable(claimed)

    def _make_searchable(self, claimed: dict[Ledger, list[work.ClaimedTurn]]) -> list[Ledger]:
        """Chunk, embed and commit; gives the ledgers that refused the commit."""
        turns = [turn for batch in claimed.values() for turn in batch]
        chunks = self.chunker.chunk_many([turn.content for turn in turns])
        vectors, tokens = unit_vectors_with_tokens(
            self.embedder, [chunk.text for of_turn in chunks for chunk in of_turn]
        )
        embedded = zip(vectors, repeat(None) if tokens is None else tokens, strict=False)
        passing(CrashPoint.AFTER_EMBED)
        done = iter([_work_on(turn, of_turn, embedded) for turn, of_turn in zip(turns, chunks, strict=True)])
        n_searchable, refused = 0, list(claimed)
        for ledger, batch in claimed.items():
            work_done = list(islice(done, len(batch)))
            with self._one_scope(ledger.scope.key):
                n_searchable += work.commit(
                    ledger,
                    self.token.name,
                    work_done,
                    model_key=self.embedder.model_key,
                    dimension=self.embedder.dimension,
                )
                refused.remove(ledger)
        _log.info("turns.made_searchable", n_turns=n_searchable, n_scopes=len(claimed) - len(refused))
        return refused

    def _give_back(self, ledgers: Iterable[Ledger], failure: str, *, counted: bool) -> None:
        for ledger in ledgers:
            with self._one_scope(ledger.scope.key):
                work.release(
                    ledger, self.token.name, failure=failure, max_attempts=self.settings.max_attempts, counted=counted
                )

    def _settle(self, marks: dict[str, int]) -> list[str]:
        """Note what is done, and when to look again; gives the scopes whose snapshot or purge is due."""
        settled, waiting = [], []
        for key, mark in marks.items():
            with self._one_scope(key):
                ledger = self.ledgers.open(Scope.parse(key))
                status = self._status(ledger)
                purge_ms = None if status.purge_due is None else int(status.purge_due)
                is_due = self.indexer.is_due(ledger, status)
                waiting.append((key, status.unsummarised_since_ms, purge_ms, is_due))
                if status.counts.pending == 0:
                    settled.append((key, mark, status.next_session_due_ms, status.counts))
        passing(CrashPoint.BEFORE_SETTLE)
        self.registry.settle(settled, waiting, now_ms=self.clock())
        return [key for key, _, _, is_due in waiting if is_due]

    def _ring_for_snapshots(self, due: list[str]) -> None:
        """Ring for those that were not rung for lately, nor rest from a long purge."""
        if due:
            self._ring(doorbells.PUBLISH_SNAPSHOTS, self.registry.take_publishable(due, now_ms=self.clock()))

    def _ring(self, task: str, scopes: list[str]) -> None:
        try:
            doorbells.ring(self.app, task, scopes, scopes_per_task=self.settings.doorbell_scopes)
        except OperationalError as error:  # the sweeper rings again
            _log.warning("doorbell.lost", task=task, n_scopes=len(scopes), error=type(error).__name__)

    @contextmanager
    def _one_scope(self, key: str) -> Iterator[None]:
        """Have a scope's trouble end the work on that scope alone; the sweeper rings for it again.

        One that needs an operator is tried again after ever longer waits, and told of once.
        """
        self.pulse.beat()
        try:
            yield
        except TransientError as error:
            _log.warning("scope.postponed", reason=str(error))
        except (ConfigError, ShardError) as error:
            if self.registry.note_refusal(key, str(error), now_ms=self.clock()):
                _log.error("scope.refused", reason=str(error))

    def _status(self, ledger: Ledger) -> upkeep.Status:
        return upkeep.status(ledger, idle_ms=self.sessions.idle_ms, settle_ms=self.sessions.settle_ms)


def register(app: Celery, flow: Flow) -> None:
    """Give the app its tasks."""
    steps = {
        doorbells.EMBED_TURNS: flow.embed_turns,
        doorbells.SUMMARISE_SESSIONS: flow.summarise_sessions,
        doorbells.CONDENSE_SESSIONS: flow.condense_sessions,
        doorbells.PUBLISH_SNAPSHOTS: flow.publish_snapshots,
    }
    for name, step in steps.items():
        app.task(name=name)(_logged(name, step))


def rest_ms(purge_s: float) -> int:
    """Give how long a scope is left alone after a purge: at most a tenth of the time is spent on it.

    Why: each deletion asks for one, and a large ledger is locked for seconds while it is written anew.
    """
    return 0 if purge_s < _SHORT_PURGE_S else round(1_000 * min(10 * purge_s, _LONGEST_REST_S))


def _logged(name: str, step: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    def run(scopes: list[str]) -> None:
        passing(CrashPoint.TASK_START)
        try:
            step(scopes)
        except TransientError as error:
            _log.warning("task.postponed", task=name, reason=str(error))
        except (ConfigError, ShardError) as error:
            _log.error("task.refused", task=name, reason=str(error))

    return run


def _work_on(
    turn: work.ClaimedTurn, chunks: list[Chunk], embedded: Iterator[tuple[_Array, _Array | None]]
) -> work.TurnWork:
    felt = cognition.encode(turn.mood)
    traces = [
        work.NewTrace(chunk, vector, felt.strength, felt.stability_ms, felt.valence, felt.confidence, tokens)
        for chunk, (vector, tokens) in zip(chunks, islice(embedded, len(chunks)), strict=True)
    ]
    return work.TurnWork(turn, index_form(turn.content), traces)


@contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """End this process when the block hangs, even inside native code; the supervisor starts another.

    Why: a signal handler does not run while native code holds on; this watchdog is a native thread of its own.
    """
    faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
