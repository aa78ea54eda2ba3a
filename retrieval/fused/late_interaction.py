"""Compare a question with passages token by token (MaxSim): each token of one with the nearest of the other.

Source: late interaction is ColBERT's. The token vectors are by-products of the forward pass that makes the sentence
vector: no second model and no second pass.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.embed import one_core
from retrieval.fused.passages import Floats, Passages

SCALE: Final = 127
"""A stored token vector is a unit vector times this, rounded."""


def nearest_tokens(token_vectors: Floats, passages: Passages) -> Floats:
    """Give for each passage and each token of the question the cosine of the passage's nearest token.

    Returns:
        ``(n, t) float32``; 0 for a passage without tokens.
    """
    best = np.zeros((passages.n, len(token_vectors)), np.float32)
    if not len(token_vectors) or not len(passages.tokens):
        return best
    cosines = _cosines(token_vectors, passages.tokens)
    lengths = np.diff(passages.token_ends, prepend=0)
    filled = np.flatnonzero(lengths)
    best[filled] = np.maximum.reduceat(cosines, (passages.token_ends - lengths)[filled], axis=1).T
    return best


def _cosines(token_vectors: Floats, tokens: npt.NDArray[np.int8]) -> Floats:
    """Compare each of the question's tokens with each of the passages': ``(t, m) float32``.

    Why not ``(m, t)``: the greatest of numbers that lie side by side is found twice as fast.
    """
    ours = np.ascontiguousarray(token_vectors / np.float32(SCALE))
    cosines = np.empty((len(ours), len(tokens)), np.float32)
    one_core.multiply(tokens, ours.T, into=cosines.T)
    return cosines


def weighted_mean(best: Floats, weights: npt.NDArray[np.floating]) -> Floats:
    """Average over the question's tokens, each with its weight; evenly when none has any: ``(n,) float32``."""
    if not best.shape[1]:
        return np.zeros(len(best), np.float32)
    total = float(weights.sum())
    shares = weights / total if total > 0 else np.full(best.shape[1], 1 / best.shape[1])
    return np.asarray(best @ shares.astype(np.float32), np.float32)
