"""Ingest and one worker's flow in the test's own process: the real ones, without a server and without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

import structlog
from celery import Celery

from pipeline import contract, log
from pipeline.ingest import Batch, Ingest
from pipeline.ledger import Ledger, LedgerPool, upkeep
from pipeline.records import Event
from pipeline.settings import Settings, load_settings
from pipeline.shards import Shards, require_usable
from pipeline.stream import DeadLetter, Entry
from retrieval import Memory, open_memory
from workers import worker

BATCH_ENTRIES = 2_000


def settings_of(data_dir: Path, **groups: Any) -> Settings:
    """Settings with a word hash for a model and sessions that are due at once."""
    summary = {"settle_s": 0.0, "idle_s": 1e-3, **groups.pop("summary", {})}
    return load_settings(data_dir=data_dir, embedding={"backend": "hashing"}, summary=summary, **groups)


class InProcess:
    """What an ingester and a worker do, one after the other."""

    def __init__(self, settings: Settings) -> None:
        require_usable(settings.data_dir)
        log.configure("error", process="test")
        self.settings = settings
        flow = worker.make_flow(settings, Celery("test", broker="memory://", set_as_current=False), "w")
        self.flow = replace(flow, forgetting=_ForgettingWithoutServer())  # type: ignore[arg-type]
        self._server = _NoServer()
        ledgers = LedgerPool(Shards(settings.data_dir), max_open=500, is_flushed=True)
        self._ingest = Ingest(self._server, ledgers, self.flow.registry, clock=worker.now_ms)  # type: ignore[arg-type]
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ingest.close()
        self.flow.ledgers.close()
        self.flow.registry.close()
        self.flow.token.close()
        self.flow.app.close()
        structlog.reset_defaults()

    @property
    def letters(self) -> list[DeadLetter]:
        """What ingest refused."""
        return self._server.letters

    def publish(self, *events: Event) -> None:
        """Encode events and take them in."""
        self.take(contract.encode(event) for event in events)

    def take(self, raw_events: Iterable[bytes]) -> None:
        """Take events in, batch by batch, as an ingester that has a backlog."""
        waiting = iter(raw_events)
        while raws := list(islice(waiting, BATCH_ENTRIES)):
            batch = Batch()
            batch.add([Entry(f"{next(self._numbers)}-0", raw, 1) for raw in raws])
            for _keys in self._ingest.commit(batch):
                pass

    def embed(self) -> None:
        """Make every pending turn searchable."""
        self.flow.embed_turns(self.flow.registry.scopes())

    def finish(self) -> None:
        """Do all there is to do: embed, summarise, condense, publish what is due, purge."""
        while True:
            scopes = self.flow.registry.scopes()
            self.flow.embed_turns(scopes)
            self.flow.summarise_sessions(scopes)
            self.flow.condense_sessions(scopes)
            self.flow.publish_snapshots(scopes)
            now_ms = worker.now_ms()
            if not self.flow.registry.n_undone() and not self.flow.registry.due(
                now_ms=now_ms, rung_before_ms=now_ms + 1, limit=1
            ):
                return

    def memory(self, **options: Any) -> Memory:
        """Open what a bot opens."""
        return open_memory(settings=self.settings, embedder=self.flow.embedder, **options)  # type: ignore[arg-type]


class _ForgettingWithoutServer:
    """Ends purges whose ledgers are purged: there is no stream that could hold anything."""

    def end_purges(self, due: Sequence[tuple[Ledger, str]]) -> None:
        """Note them as ended."""
        for ledger, token in due:
            upkeep.end_purge(ledger, token, now_ms=worker.now_ms(), rewritten=False)


class _NoServer:
    """Stands where the stream does, for an ingest whose entries come from the test."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.n_acked = 0

    def ack(self, entry_ids: Sequence[str]) -> int:
        """Count what was acknowledged."""
        self.n_acked += len(entry_ids)
        return len(entry_ids)

    def dead_letter_and_ack(self, letters: Sequence[DeadLetter]) -> int:
        """Keep what was set aside."""
        self.letters += letters
        return len(letters)
