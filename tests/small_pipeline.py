"""A small pipeline without its processes: real ledgers, snapshots, caches and registry, worked on in-process."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from unittest import mock

import apsw
from celery import Celery

from pipeline.embed.hashing import HashingEmbedder
from pipeline.ledger import Ledger, events, word_segments
from pipeline.records import Event, Scope, SessionClosed, Turn
from pipeline.registry import Registry
from pipeline.settings import EmbeddingSettings, IndexSettings, RedisSettings, Settings, SummarySettings
from pipeline.shards import Shards
from retrieval import open_memory
from tests.ledgers import NOW_MS, open_ledger
from workers import worker

SCOPE, OTHER = Scope("user", "u1"), Scope("user", "u2")
QUESTIONS = ("harbour", "river number7", "the long story", "lantern")
WORDS = ("harbour", "river", "lantern", "meadow", "copper", "violin")


class SmallPipeline:
    """One data folder, with settings under which snapshots are small and nothing waits."""

    def __init__(self, data_dir: Path, *, url: str | None = None) -> None:
        self.settings = Settings(
            data_dir=data_dir,
            redis=RedisSettings(url=url),
            embedding=EmbeddingSettings(backend="hashing"),
            summary=SummarySettings(settle_s=0, idle_s=1e-3),
            index=IndexSettings(min_tail=4),
        )
        self.shards = Shards(data_dir)
        self.registry_path = data_dir / "registry.sqlite"

    @property
    def folder(self) -> Path:
        """The folder of the scope that is damaged."""
        return self.shards.folder(SCOPE)

    @property
    def ledger_path(self) -> Path:
        """Its ledger."""
        return self.shards.ledger_path(SCOPE)

    def publish(self, published: Sequence[Event]) -> None:
        """Ingest events; as ever, the registry is told."""
        with closing(Registry(self.settings.data_dir)) as registry:
            for event in published:
                with closing(open_ledger(self.shards, event.scope)) as ledger:
                    events.apply(ledger, [event], now_ms=worker.now_ms() - 60_000)
                registry.mark([event.scope.key], now_ms=worker.now_ms())

    def publish_at_once(self, published: Sequence[Event]) -> None:
        """Ingest many events of one scope in one batch."""
        with closing(open_ledger(self.shards, published[0].scope)) as ledger:
            events.apply(ledger, published, now_ms=worker.now_ms() - 60_000)
        with closing(Registry(self.settings.data_dir)) as registry:
            registry.mark([published[0].scope.key], now_ms=worker.now_ms())

    def seal(self) -> None:
        """Put the words of all turns into segments, as when there are many."""
        for scope in (SCOPE, OTHER):
            with closing(open_ledger(self.shards, scope)) as ledger, ledger.write() as connection:
                word_segments.seal_when_due(connection, 0, seal_turns=1)

    def work(self) -> None:
        """Do what the doorbells and the sweeper would have done by now, and no more."""
        with mock.patch.object(worker, "embedder_of", return_value=_embedder()):  # loading one takes longest
            flow = worker.make_flow(self.settings, Celery("test", broker="memory://"), "w")
        try:
            steps = (flow.embed_turns, flow.summarise_sessions, flow.condense_sessions, flow.publish_snapshots)
            for step in steps:
                step(flow.registry.scopes())
        finally:
            flow.ledgers.close()
            flow.registry.close()
            flow.token.close()
            flow.forgetting.close()

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        """Change the ledger behind everybody's back; FTS5's tables and the schema, too. Gives the last one's rows."""
        with closing(apsw.Connection(str(self.ledger_path))) as connection:
            return [connection.execute(statement).fetchall() for statement in statements][-1]

    def answers(self) -> list[list[tuple[str, str, float]]]:
        """What a bot is told, all of it: which of two equals comes first depends on ids."""
        asked = {"recall_top_k": 50, "chunks_per_session": 50}
        with closing(open_memory(settings=self.settings, embedder=_embedder(), clock=lambda: NOW_MS)) as memory:
            found = []
            for q, scope in product(QUESTIONS, (SCOPE, OTHER)):
                hits = memory.retrieve(q, scope, **asked).hits
                found.append(sorted((hit.session_id, hit.text, round(hit.score, 5)) for hit in hits))
                sessions = memory.search(q, scope, profile="keyword")
                found.append([(hit.session_id, hit.snippet, hit.score) for hit in sessions])
            recent = [memory.recent(scope) for scope in (SCOPE, OTHER)]
            return found + [[(row.session_id, row.title, row.message_count) for row in rows] for rows in recent]

    def open(self) -> Ledger:
        """Open the ledger of the scope that is damaged."""
        return open_ledger(self.shards, SCOPE)


@functools.cache
def _embedder() -> HashingEmbedder:
    return HashingEmbedder()


def story(scope: Scope) -> list[Event]:
    """Two closed sessions, numbered turns; a long turn of several chunks, a blank one, and the platform's summary."""
    told: list[Event] = []
    for i in range(16):
        content = f"{WORDS[i % 6]} {WORDS[i // 3 % 6]} number{i} of {scope.id}"
        if i == 5:
            content = " ".join(f"The long story of {WORDS[n % 6]} went on for {n} days." for n in range(60))
        if i == 6:
            content = "   "
        told.append(
            Turn(scope=scope, session_id=f"s{i % 2}", role="user", content=content, timestamp=1.6e9 + i,
                 event_id=f"e{i}", turn_id=f"t{i}", index=i // 2)
        )  # fmt: skip
    summaries = {"s0": None, "s1": "They talked about a violin."}
    return told + [
        SessionClosed(scope=scope, session_id=name, timestamp_ms=1_600_000_100_000, event_id=f"c{name}", summary=text)
        for name, text in summaries.items()
    ]
