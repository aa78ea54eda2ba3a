"""What scorers want to know of the vectors of a session's entries, whatever is asked; made once for the same ones."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.ledger.reads import Vectors
from retrieval.context.entries.words import Scores

FOLLOWING: Final = 3
"""Entries after one in which a follow-up is looked for. Source: the table of strategy `importance`."""
_FOLLOWS_COSINE: Final = 0.5
_SAME_COSINE: Final = 0.98
"""An entry this near says the same again, which is no follow-up."""


class VectorFacts:
    """The vectors of some entries, to be shared between threads.

    Args:
        vectors: ``(m, d) float32``, L2-normalised: a row per entry, else there are none.
        n: how many entries there are.
    """

    def __init__(self, vectors: Vectors, n: int) -> None:
        self.vectors = vectors
        self._n = n
        self._is_told = len(vectors) == n > 0

    @cached_property
    def followed(self) -> npt.NDArray[np.bool_]:
        """Which of the next entries follow each up by meaning: ``(n, FOLLOWING)``."""
        follows = np.zeros((self._n, FOLLOWING), np.bool_)
        for step in range(1, min(FOLLOWING, self._n - 1) + 1) if self._is_told else ():
            near = np.einsum("ij,ij->i", self.vectors[:-step], self.vectors[step:])
            follows[: self._n - step, step - 1] = (near >= _FOLLOWS_COSINE) & (near < _SAME_COSINE)
        return follows

    @cached_property
    def cosines_with_last(self) -> Scores | None:
        """How near each is to the last entry: ``(n,)``; None: that one has no vector."""
        if not self._is_told or not self.vectors[-1].any():
            return None
        return np.asarray(self.vectors @ self.vectors[-1], np.float32)

    @cached_property
    def is_embedded(self) -> npt.NDArray[np.bool_]:
        """Which entries have a vector: ``(n,)``."""
        return np.asarray(self.vectors.any(axis=1) if self._is_told else np.zeros(self._n), np.bool_)
