"""A trace is scored with the documented formula and weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger.reads import TraceRow
from pipeline.records import Mood
from retrieval.cognitive_score import ScoreParts, Weights, score

NOW = 1_700_000_000_000


def trace(**fields: Any) -> TraceRow:
    values = {"strength": 0.2875, "stability_ms": 9_810_000.0, "valence": 0.0, "confidence": 0.8} | fields
    return TraceRow(
        trace_id=1,
        turn_offset=1,
        start=0,
        stop=1,
        last_accessed_ms=values.pop("accessed_ms", NOW),
        session_id="s",
        turn_id="t",
        role="user",
        speaker=None,
        timestamp_ms=NOW,
        tags_json="[]",
        **values,
    )


@pytest.mark.parametrize(
    ("s0", "stability", "elapsed", "similarity", "mood", "valence", "graph", "confidence", "expected"),
    [
        (0.2875, 9_810_000, 0, 0.8, 0, 0, 0, 0.8, 0.496875),
        (0.5, 3_600_000, 3_600_000, 0.6, 0.5, 0.4, 0.3, 0.9, 0.459404),
    ],
)
def test_worked_values(*, s0, stability, elapsed, similarity, mood, valence, graph, confidence, expected) -> None:
    """The contract's own examples."""
    row = trace(
        strength=s0, stability_ms=stability, valence=valence, confidence=confidence, accessed_ms=NOW - elapsed
    )
    scores, _ = score([row], [similarity], now_ms=NOW, mood=Mood(valence=mood), activation=graph)
    assert scores[0] == pytest.approx(expected, abs=5e-7)


def test_terms_are_reported_unweighted() -> None:
    """A hit explains itself: strength and recency after a day, the rest as they are."""
    row = trace(strength=0.4, stability_ms=86_400_000.0, valence=0.5, accessed_ms=NOW - 86_400_000)
    _, terms = score([row], [0.3], now_ms=NOW, mood=Mood(valence=1.0))
    parts = ScoreParts(*terms[0])
    assert parts == pytest.approx((0.4 / math.e, 0.3, 1 / math.e, 0.5, 0.0, 0.9))


def test_opposed_moods_count_nothing() -> None:
    """The emotion term is cut at 0: disagreement is no punishment."""
    _, terms = score([trace(valence=-0.9)], [0.0], now_ms=NOW, mood=Mood(valence=0.9))
    assert ScoreParts(*terms[0]).emotion == 0.0


def test_a_trace_from_the_future_counts_as_from_now() -> None:
    """Clocks of platforms differ; recency never exceeds 1."""
    _, terms = score([trace(accessed_ms=NOW + 10**9)], [0.0], now_ms=NOW)
    assert ScoreParts(*terms[0]).recency == 1.0


def test_an_opposite_vector_lowers_the_score_but_never_below_zero() -> None:
    """The similarity is the raw cosine, the sum is clamped."""
    scores, terms = score([trace()], [-1.0], now_ms=NOW, weights=Weights(similarity=1.0))
    assert ScoreParts(*terms[0]).similarity == -1.0
    assert scores[0] == 0.0


def test_weights_add_up_to_one() -> None:
    """Six full terms give the best score there is."""
    row = trace(strength=1.0, valence=1.0, confidence=1.0)
    assert score([row], [1.0], now_ms=NOW, mood=Mood(valence=1.0), activation=1.0)[0][0] == pytest.approx(1.0)


def test_no_trace_gives_no_score() -> None:
    """An empty pool is ordinary."""
    scores, terms = score([], np.empty(0), now_ms=NOW)
    assert scores.shape == (0,)
    assert terms.shape == (0, 6)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1), st.integers(0, 10**13)), min_size=1, max_size=20))
def test_scores_are_the_clamped_weighted_sum_of_the_terms(rows: list[tuple[float, float, int]]) -> None:
    """What is shown is what was counted, for any number of traces at once."""
    traces = [trace(strength=s, accessed_ms=NOW - e) for s, _, e in rows]
    scores, terms = score(traces, [c for _, c, _ in rows], now_ms=NOW)
    weights = (0.25, 0.35, 0.10, 0.15, 0.10, 0.05)
    for value, parts in zip(scores, terms, strict=True):
        assert value == pytest.approx(min(1, max(0, sum(w * p for w, p in zip(weights, parts, strict=True)))))
