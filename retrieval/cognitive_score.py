"""The cognitive score: how much a trace deserves to come to mind now, given the query and the mood.

Source: the terms, their formulas and default weights are those of the AgentOS cognitive memory documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.ledger.reads import TraceRow
from pipeline.records import NEUTRAL, Mood

_DAY_MS: Final = 86_400_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """What each term counts; in the order of ``ScoreParts``."""

    strength: float = 0.25
    similarity: float = 0.35
    recency: float = 0.10
    emotion: float = 0.15
    graph: float = 0.10
    importance: float = 0.05


class ScoreParts(NamedTuple):
    """The unweighted terms of one score.

    ``strength`` is what is left of the trace's strength, ``similarity`` the raw cosine, ``recency`` the decay over a
    day, ``emotion`` the agreement of moods, ``graph`` the spreading activation (0 unless given), ``importance`` from
    the confidence.
    """

    strength: float
    similarity: float
    recency: float
    emotion: float
    graph: float
    importance: float


def score(
    traces: Sequence[TraceRow],
    similarities: npt.ArrayLike,
    *,
    now_ms: int,
    mood: Mood = NEUTRAL,
    weights: Weights = Weights(),
    activation: npt.ArrayLike = 0.0,
) -> tuple[Floats, Floats]:
    """Score traces against a query.

    Args:
        traces: ``n`` traces.
        similarities: ``(n,)`` cosine of each trace with the query.
        now_ms: the time of asking; a trace from the future counts as from now.
        mood: the mood of asking.
        weights: what each term counts.
        activation: ``(n,)`` or one graph activation for all.

    Returns:
        ``(n,)`` scores in [0, 1] and the ``(n, 6)`` unweighted terms in the order of ``ScoreParts``.
    """
    terms = np.zeros((len(traces), len(ScoreParts._fields)))
    if not traces:
        return np.zeros(0), terms
    strength, stability_ms, valence, confidence, accessed_ms = np.array(
        [(t.strength, t.stability_ms, t.valence, t.confidence, t.last_accessed_ms) for t in traces]
    ).T
    elapsed_ms = np.maximum(0.0, now_ms - accessed_ms)
    terms[:, 0] = strength * np.exp(-elapsed_ms / stability_ms)
    terms[:, 1] = similarities
    terms[:, 2] = np.exp(-elapsed_ms / _DAY_MS)
    terms[:, 3] = np.maximum(0.0, mood.valence * valence)
    terms[:, 4] = activation
    terms[:, 5] = 0.5 + 0.5 * confidence
    return np.clip(terms @ np.array(astuple(weights)), 0.0, 1.0), terms
