"""Entries of session memory, and requests for context, with what a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.settings import ContextSettings
from retrieval.context.entries.entry import Entry
from retrieval.context.protocol import Asked
from tests.fakes import FakeEmbedder

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000


def entry(entry_id: str, objective: str = "", conclusion: str = "", *, days: float = 0, **fields: Any) -> Entry:
    """Make an entry of some days ago."""
    values = {"session_id": "s", "time_ms": NOW_MS - round(days * DAY_MS), **fields}
    return Entry(entry_id=entry_id, objective=objective, conclusion=conclusion, **values)


def asked(entries: Sequence[Entry], objective: str | None = None, *, vectors: bool = True, **settings: Any) -> Asked:
    """Ask about entries, embedded by their words."""
    embedder = FakeEmbedder(dimension=256)
    texts = [f"{one.objective} {one.conclusion}" for one in entries]
    return Asked(
        entries=entries,
        vectors=embedder.embed(texts) if vectors else np.zeros((len(entries), 0), np.float32),
        objective=objective,
        objective_vector=embedder.embed([objective])[0] if vectors and objective else None,
        now_ms=NOW_MS,
        settings=ContextSettings(**settings),
    )
