"""What a model answers, looked at before anybody relies on it.

Why: a vector that is no number, or none, would be stored without a word, and compare as near to nothing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pipeline.embed.protocol import Embedder, Floats
from pipeline.errors import TransientError

_TOLERANCE: Final = 1e-3
"""Of a length of one; what storing as float16 costs anyway."""
_FAILURES: Final = (
    RuntimeError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    MemoryError,
    AssertionError,
    OSError,
)
"""What libraries raise when a text is more than they can take."""


def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """Embed, and hand on only what the embedder promises: (n, d) float32, finite, rows of length one.

    Raises:
        TransientError: the model failed or answered anything else; which text is to blame it does not say.
    """
    try:
        answer: Any = embedder.embed(texts)
    except _FAILURES as error:
        raise TransientError(
            f"{embedder.model_key} failed on {len(texts)} texts: {type(error).__name__}: {error}"
        ) from error
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
