"""What every backend is, and what they share on the way to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pipeline.errors import TransientError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]


class Embedder(Protocol):
    """A loaded model, safe to use from many threads.

    Attributes:
        model_key: ``id@revision/backend/dimension``, and ``+t64`` for one with token vectors of 64 numbers: what
            vectors must agree in to be compared.
        dimension: length of a vector.
        max_tokens: content tokens one forward pass sees, special tokens already subtracted.
    """

    model_key: str
    dimension: int
    max_tokens: int

    @property
    def tokenizer(self) -> Tokenizer:
        """Give the model's tokenizer, neither truncating nor padding."""
        ...

    def embed(self, texts: Sequence[str]) -> Floats:
        """Give (n, d) float32, rows L2-normalised, in the order of the texts.

        A blank text has a vector too (of the special tokens alone). What is past ``max_tokens`` is not seen.

        Raises:
            TransientError: the model failed, or answered something that is no number.
        """
        ...


@dataclass(frozen=True, slots=True)
class EmbeddedQuestion:
    """A text with what one pass makes of it.

    Attributes:
        vector: ``(d,) float32, L2-normalised``.
        tokens: ``(t, p) float32, rows L2-normalised``, special tokens left out.
        spans: ``(t, 2) int64``, the characters of each token in the text.
    """

    vector: Floats
    tokens: Floats
    spans: npt.NDArray[np.int64]


@runtime_checkable
class TokenEmbedder(Protocol):
    """An `Embedder` that gives the vectors of tokens too, from the same pass.

    Attributes:
        token_dimension: length of a token's vector.
    """

    token_dimension: int

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[Floats, list[npt.NDArray[np.int8]]]:
        """Give what `Embedder.embed` gives, and each text's token vectors ``(t, p) int8``, unit length times 127.

        Raises:
            TransientError: the model failed, or answered something that is no number.
        """
        ...

    def embed_question(self, text: str) -> EmbeddedQuestion:
        """Embed one text with its tokens and where they stand.

        Raises:
            TransientError: the model failed, or answered something that is no number.
        """
        ...


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json`` with its own truncation and padding switched off.

    Why: the bundled one cuts at 128 tokens and pads to 128, though its model takes 256.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - a native library; loaded where a model is

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def reject_non_numbers(vectors: Floats, model_key: str) -> Floats:
    """Pass the vectors on if each is made of numbers.

    Raises:
        TransientError: one is not; stored, it would compare as unequal to everything for ever.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        n_bad, first = int((~finite).sum()), int(np.argmin(finite))
        raise TransientError(
            f"{model_key} gave NaN or infinity for {n_bad} of {len(vectors)} texts, first for number {first}; "
            "if it happens again, try TURNSTREAM_EMBEDDING__BACKEND=onnx-fp32"
        )
    return vectors
