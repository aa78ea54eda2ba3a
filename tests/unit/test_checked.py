from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pipeline.embed import unit_vectors
from pipeline.embed.hashing import HashingEmbedder
from pipeline.errors import TransientError


class _Answering(HashingEmbedder):
    """Answers whatever a test wants."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self._answer = answer

    def embed(self, texts: Sequence[str]) -> Any:  # noqa: ARG002 - the protocol's signature
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "NoneType"),
        ([[1.0] * 384] * 2, "list"),
        (np.array([["x"] * 384] * 2), "<U1"),
        (np.ones((2, 384), np.int64), "int64"),
        (np.ones((3, 384), np.float32), r"\(3, 384\), not \(2, 384\)"),
        (np.ones((2, 383), np.float32), r"\(2, 383\)"),
        (np.ones(768, np.float32), r"\(768,\)"),
        (np.zeros((2, 384), np.float32), "length 0, not 1, for number 0"),
        (np.ones((2, 384), np.float32), "length 19.6"),
        (np.full((2, 384), np.nan, np.float32), "NaN or infinity, first for number 0"),
        (np.full((2, 384), np.inf, np.float32), "NaN or infinity"),
        (np.full((2, 384), 3e38, np.float32), "length"),
        (RuntimeError("out of range"), "RuntimeError: out of range"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_answer_that_is_no_unit_vector_for_each_text_is_refused(answer: object, says: str) -> None:
    """Whatever a model does, no such vector is stored."""
    with pytest.raises(TransientError, match=says):
        unit_vectors(_Answering(answer), ["a", "b"])


def test_what_a_model_should_answer_is_handed_on() -> None:
    """In single precision, whatever the model works with."""
    vectors = HashingEmbedder().embed(["one", "two"]).astype(np.float64)
    found = unit_vectors(_Answering(vectors), ["one", "two"])
    assert found.dtype == np.float32
    assert np.array_equal(found, vectors.astype(np.float32))
    assert unit_vectors(HashingEmbedder(), []).shape == (0, 384)
