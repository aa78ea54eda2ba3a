"""Take the best first, but what is new before what says the same again: maximal marginal relevance per token.

Source: Carbonell and Goldstein 1998. Why per token: of two entries that help as much, the shorter leaves more room.
Why per root of its tokens: else a short remark comes before a long answer that is far more relevant; measured on
LoCoMo sessions, the block then holds 72 % of the evidence at 256 tokens, not 66 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from retrieval.context.condensing.themes import FloatRows
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.words import Numbers, Scores
from retrieval.context.ranking import lengths

_SCORE: Final = 0.7
_NOVELTY: Final = 0.3


def in_order(
    places: Sequence[int], scores: Scores, facts: EntryFacts, vectors: FloatRows, room: int
) -> tuple[list[int], Scores]:
    """Order entries by what each adds to those before it, for its length, while there may be room for more.

    Args:
        places: the entries.
        scores: of all entries, ``(n,)``.
        facts: about all entries.
        vectors: of all entries, ``(n, d)``; the words are compared where one of these has none.
        room: tokens.

    Returns:
        The places taken, and for each how much it is like one before it, in [0, 1].
    """
    chosen = np.asarray(places, np.int64)
    alike = _likeness(chosen, facts, vectors)
    costs = lengths.n_tokens(places, facts, room)
    roots = np.sqrt(costs)
    nearest = np.zeros(len(chosen), np.float32)
    is_left = np.ones(len(chosen), np.bool_)
    order: list[int] = []
    filled = 0.0
    while is_left.any() and filled < lengths.ROOMS * room:
        gain = _SCORE * scores[chosen] - _NOVELTY * nearest
        worth = np.where(gain > 0, gain / roots, gain * roots)
        best = int(np.argmax(np.where(is_left, worth, -np.inf)))
        order.append(best)
        is_left[best] = False
        filled += float(costs[best])
        nearest = np.where(is_left, np.maximum(nearest, alike[best]), nearest)
    return chosen[order].tolist(), nearest[order]


def _likeness(places: Numbers, facts: EntryFacts, vectors: FloatRows) -> FloatRows:
    """Compare each with each: ``(m, m)``."""
    rows = vectors[places] if len(vectors) == len(facts.entries) else np.zeros((0, 0), np.float32)
    if not len(rows) or not rows.any(axis=1).all():
        rows = facts.word_rows(places)
    return np.asarray((rows @ rows.T).clip(min=0), np.float32)
