"""From token vectors to a text's vector, as the model was trained to do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.embed.protocol import Floats

Mask = npt.NDArray[np.int64]


def mean(tokens: Floats, mask: Mask) -> Floats:
    """Average a text's own tokens (special ones included): (b, t, d) and (b, t) to (b, d)."""
    return np.asarray(_sum(tokens, mask) / _lengths(mask), np.float32)


def mean_sqrt_len_tokens(tokens: Floats, mask: Mask) -> Floats:
    """Add a text's tokens and divide by the root of their number."""
    return np.asarray(_sum(tokens, mask) / np.sqrt(_lengths(mask)), np.float32)


def cls(tokens: Floats, mask: Mask) -> Floats:  # noqa: ARG001 - every pooling takes both
    """Take a text's first token; texts are padded on the right."""
    return np.asarray(tokens[:, 0], np.float32)


def largest(tokens: Floats, mask: Mask) -> Floats:
    """Take each dimension's greatest value over a text's tokens."""
    return np.asarray(np.where(mask[:, :, None] > 0, tokens, np.float32(-np.inf)).max(axis=1), np.float32)


def _sum(tokens: Floats, mask: Mask) -> Floats:
    return np.asarray(np.einsum("btd,bt->bd", tokens, mask.astype(np.float32)), np.float32)


def _lengths(mask: Mask) -> Floats:
    return np.asarray(mask.sum(axis=1, keepdims=True), np.float32)


POOLINGS: Final[dict[str, Callable[[Floats, Mask], Floats]]] = {
    "mean": mean,
    "cls": cls,
    "max": largest,
    "mean_sqrt_len_tokens": mean_sqrt_len_tokens,
}
"""By the names that sentence-transformers gives them."""


def normalise(vectors: Floats) -> Floats:
    """Scale each row to length one; a row of zeros stays."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
