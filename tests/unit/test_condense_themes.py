"""The groupings of sessions that a process keeps: as many as it may, and the same groups as if it kept none."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pipeline.records import Scope
from retrieval.context.condensing.themes import Grouping, Groups, KeptGroupings
from tests.entries import entry
from tests.fakes import FakeEmbedder

SCOPE = Scope("user", "u1")
DIMENSION = 384


@pytest.mark.parametrize("n_entries", [0, 1])
def test_short_sessions_leave_little_behind(n_entries: int) -> None:
    """A worker comes by thousands of sessions in which there is nothing to group."""
    kept, told = KeptGroupings(50_000, max_kept=4), [entry(str(n)) for n in range(n_entries)]
    vectors = np.ones((n_entries, DIMENSION), np.float32) / np.sqrt(DIMENSION, dtype=np.float32)
    kept.groups((SCOPE, "first", 4), told, vectors)
    tracemalloc.start()
    try:
        for n in range(200):
            assert len(kept.groups((SCOPE, f"s{n}", 4), told, vectors).groups) == n_entries
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_what_is_kept_goes_on_as_what_begins_anew_whatever_was_dropped_meanwhile() -> None:
    """Groups are the same for who was asked before and who was not."""
    told = [entry(str(n)) for n in range(12)]
    vectors = FakeEmbedder(dimension=16).embed([one.objective for one in told])
    kept = KeptGroupings(20)
    for n in (3, 7, 0, 7, 12):
        for session in ("a", "b", "c"):
            found = kept.groups((SCOPE, session, 4), told[:n], vectors[:n])
            assert found == (Grouping().groups(told[:n], vectors[:n]) if n else Groups())
