"""What makes an exchange worth keeping, and with an objective, what it has to do with it.

Source: the table of strategy `importance`; recency fades slower for what is recalled (MemoryBank: S grows with each
recall). Relevance is our addition: it counts only where an objective was told, then twice as much as all others
together by default. Why: what was important says little about what is asked; on LoCoMo, blocks of 512 tokens told
at most 1 % of the evidence without it, and 73 % with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pipeline.settings import ImportanceFactors
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.vector_facts import FOLLOWING
from retrieval.context.entries.words import Scores
from retrieval.context.protocol import Asked
from retrieval.context.ranking.relevance import relevance

_DAY_MS: Final = 86_400_000
_DAYS_OF_STRENGTH: Final = 10


class Parts(NamedTuple):
    """The parts of importance, each ``(n,)`` in [0, 1], named as their weights are."""

    engagement: Scores
    complexity: Scores
    success: Scores
    continuity: Scores
    recency: Scores
    relevance: Scores


def parts(asked: Asked, facts: EntryFacts) -> Parts:
    """Give the parts of each entry's importance; without an objective none is relevant."""
    return Parts(
        engagement=_numbers((facts.n_follow_ups(asked.vectors) / FOLLOWING).clip(max=1)),
        complexity=_numbers((np.log2(1 + facts.n_tools) / 4).clip(max=1)),
        success=facts.success,
        continuity=_numbers(1 - np.exp(-facts.n_refs / 2)),
        recency=recency(facts, asked.now_ms),
        relevance=relevance(asked, facts).scores,
    )


def weighed(found: Parts, weights: ImportanceFactors, *, has_objective: bool = False) -> Scores:
    """Weigh the parts, relevance only with an objective: ``(n,)`` in [0, 100].

    Raises:
        ValueError: every weight is 0.
    """
    by_name: dict[str, float] = {name: getattr(weights, name) for name in Parts._fields}
    if not has_objective:
        by_name["relevance"] = 0.0
    whole = sum(by_name.values())
    if not whole:
        raise ValueError(f"importance_factors: all of {', '.join(by_name)} are 0; give one of them a weight")
    terms = [by_name[name] / whole * part.astype(np.float64) for name, part in found._asdict().items()]
    return _numbers(100 * np.sum(terms, axis=0))


def recency(facts: EntryFacts, now_ms: int) -> Scores:
    """Give exp(-days / (S * 10)), S being 1 and the recalls of an entry; a time to come counts as now."""
    days = (now_ms - facts.times_ms).clip(min=0) / _DAY_MS
    return _numbers(np.exp(-days / ((1 + facts.n_recalls) * _DAYS_OF_STRENGTH)))


def _numbers(values: object) -> Scores:
    return np.asarray(values, np.float32)
