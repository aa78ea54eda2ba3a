"""What a model answers, looked at before anybody relies on it.

Why: a vector that is no number, or none, would be stored without a word, and compare as near to nothing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.embed.protocol import Embedder, Floats, TokenEmbedder
from pipeline.errors import TransientError

_TOLERANCE: Final = 1e-3
"""Of a length of one; what storing as float16 costs anyway."""


def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """Embed, and hand on only what the embedder promises: (n, d) float32, finite, rows of length one.

    What the model raises, which may quote a text, goes on to whoever asked: a task has a boundary for it.

    Raises:
        TransientError: the model answered anything else; which text is to blame it does not say.
    """
    return _checked(embedder, texts, embedder.embed(texts))


def unit_vectors_with_tokens(
    embedder: Embedder, texts: Sequence[str]
) -> tuple[Floats, list[npt.NDArray[np.int8]] | None]:
    """Embed with token vectors, each text's ``(t, p) int8``; None for them when the model has none.

    Raises:
        TransientError: as for `unit_vectors`.
    """
    if not isinstance(embedder, TokenEmbedder):
        return unit_vectors(embedder, texts), None
    vectors, tokens = embedder.embed_with_tokens(texts)
    vectors = _checked(embedder, texts, vectors)
    if len(tokens) != len(texts) or any(
        of_text.dtype != np.int8 or of_text.shape[1:] != (embedder.token_dimension,) for of_text in tokens
    ):
        raise TransientError(f"{embedder.model_key} answered {len(texts)} texts with token vectors of another kind")
    return vectors, tokens


def _checked(embedder: Embedder, texts: Sequence[str], answer: Any) -> Floats:
    if fault := _fault(answer, (len(texts), embedder.dimension)):
        raise TransientError(f"{embedder.model_key} answered {len(texts)} texts with {fault}; nothing of it is kept")
    return np.asarray(answer, np.float32)


def _fault(answer: Any, shape: tuple[int, int]) -> str:
    if not isinstance(answer, np.ndarray) or answer.dtype.kind != "f":
        return f"{getattr(answer, 'dtype', type(answer).__name__)}, not numbers"
    if answer.shape != shape:
        return f"the shape {answer.shape}, not {shape}"
    lengths = np.linalg.norm(answer.astype(np.float64), axis=1)
    if not np.isfinite(lengths).all():
        return f"NaN or infinity, first for number {int(np.argmin(np.isfinite(lengths)))}"
    wrong = np.abs(lengths - 1) > _TOLERANCE
    if wrong.any():
        return f"a vector of length {lengths[int(np.argmax(wrong))]:.3g}, not 1, for number {int(np.argmax(wrong))}"
    return ""
