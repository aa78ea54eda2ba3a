"""Filling ledgers the way the pipeline does, without its processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from pipeline import cognition
from pipeline.embed import TokenEmbedder
from pipeline.index import build
from pipeline.ledger import Ledger, events, reads, sessions, work
from pipeline.ledger.connection import create
from pipeline.records import Chunk, Event, Scope, Turn
from pipeline.shards import Shards
from pipeline.snapshot import SnapshotStore
from retrieval.query_vector import QueryEmbedder

NOW_MS = 1_700_000_000_000
WORKER = "w1"


def open_ledger(shards: Shards, scope: Scope) -> Ledger:
    """Open the scope's ledger, made when missing."""
    path = shards.ledger_path(scope)
    if not path.exists():
        shards.create(scope)
        create(path)
    return Ledger.open(path, scope)


def remember(shards: Shards, scope: Scope, published: Sequence[Event], embedder: QueryEmbedder) -> None:
    """Apply events and make their turns searchable, one chunk each."""
    with closing(open_ledger(shards, scope)) as ledger:
        events.apply(ledger, published, now_ms=NOW_MS)
        while True:
            claimed = work.claim(
                ledger, WORKER, limit=100_000, max_attempts=3, is_alive=lambda _: True, model_key=embedder.model_key
            )
            if not claimed:
                return
            texts = [turn.content for turn in claimed]
            tokens: Sequence[np.ndarray | None] = [None] * len(texts)
            if isinstance(embedder, TokenEmbedder):
                vectors, tokens = embedder.embed_with_tokens(texts)
            else:
                vectors = embedder.embed(texts)
            done = [
                work.TurnWork(turn, turn.content, [_trace(turn, *made)])
                for turn, *made in zip(claimed, vectors, tokens, strict=True)
            ]
            work.commit(ledger, WORKER, done, model_key=embedder.model_key, dimension=embedder.dimension)


def summarise(shards: Shards, scope: Scope, session_id: str, text: str, embedder: QueryEmbedder) -> None:
    """Keep a session's summary as the summariser would."""
    summary = sessions.NewSummary(session_id, text, "digest", "model", embedder.embed([text])[0])
    with closing(open_ledger(shards, scope)) as ledger:
        sessions.put_summary(ledger, summary, now_ms=NOW_MS, model_key=embedder.model_key)


def publish_snapshot(
    shards: Shards, scope: Scope, embedder: QueryEmbedder, *, flat_max: int = 50_000, min_recall: float = 0.5
) -> Path:
    """Publish what the ledger holds now; give the file of the generation."""
    with closing(open_ledger(shards, scope)) as ledger, ledger.read() as connection:
        ids, vectors = reads.vectors_above(connection, 0, embedder.dimension)
        watermark = reads.last_trace_id(connection)
    folder = shards.folder(scope)
    manifest = SnapshotStore(folder).publish(
        "traces",
        index=build(ids, vectors, flat_max=flat_max, min_recall=min_recall),
        watermark=watermark,
        model_key=embedder.model_key,
        dimension=embedder.dimension,
    )
    return folder / f"traces.{manifest.generation}.faiss"


def turn(
    scope: Scope, event_id: str, content: str, *, session: str = "s1", at: float = 1.6e9, **fields: object
) -> Turn:
    """Make a turn with the fields a test does not care about filled in."""
    values = {"role": "user", **fields}
    return Turn(scope=scope, session_id=session, content=content, timestamp=at, event_id=event_id, **values)  # type: ignore[arg-type]


def _trace(claimed: work.ClaimedTurn, vector: np.ndarray, tokens: np.ndarray | None) -> work.NewTrace:
    encoding = cognition.encode(claimed.mood)
    return work.NewTrace(
        Chunk(0, len(claimed.content), claimed.content, 1),
        vector,
        encoding.strength,
        encoding.stability_ms,
        encoding.valence,
        encoding.confidence,
        tokens,
    )
