"""A second opinion on the best traces: an optional reranker, blended with the cognitive score.

Source: the weights 0.7 and 0.3 are those of the AgentOS SessionRetriever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from pipeline.errors import outcome_of
from retrieval.memory_store import ScoredTrace

COGNITIVE_WEIGHT: Final = 0.7
RELEVANCE_WEIGHT: Final = 0.3


class Reranker(Protocol):
    """Anything that reads a query and texts together. It may fail in any way: the retrieve goes on without it."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Give each text's relevance, in order, best between 0 and 1."""
        ...


def reranked(reranker: Reranker, query: str, pool: Sequence[ScoredTrace]) -> tuple[list[ScoredTrace], str]:
    """Blend the reranker's relevance into the scores and sort by them, descending; ties by trace id.

    Returns:
        The pool and ""; or, when the reranker failed, the pool as it was and the reason.
    """
    relevance = outcome_of(lambda: _relevance(reranker, query, [trace.text for trace in pool]))
    if isinstance(relevance, Exception):  # whatever somebody else's code raises, the pool is still an answer
        return list(pool), f"{type(relevance).__name__}: {relevance}"
    blended = [
        trace.blended(COGNITIVE_WEIGHT * trace.cognitive_score + RELEVANCE_WEIGHT * value, value)
        for trace, value in zip(pool, relevance, strict=True)
    ]
    return best_first(blended), ""


def _relevance(reranker: Reranker, query: str, texts: Sequence[str]) -> list[float]:
    relevance = [float(value) for value in reranker.rerank(query, texts)]
    if len(relevance) != len(texts) or not all(map(math.isfinite, relevance)):
        raise ValueError(f"gave {len(relevance)} scores for {len(texts)} texts, or one that is no number")
    return relevance


def best_first(pool: Sequence[ScoredTrace]) -> list[ScoredTrace]:
    """Sort by score, descending; ties by trace id, so that an answer never varies."""
    return sorted(pool, key=lambda trace: (-trace.score, trace.trace_id))
