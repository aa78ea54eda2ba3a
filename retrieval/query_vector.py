"""A query on its way into a store: text that is embedded at most once, or a vector as it is."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.ledger.reads import Vectors

_MAX_CHARS: Final = 16_384
"""More than any model here reads; a tokenizer reads all it is given, a megabyte for two seconds."""


class QueryEmbedder(Protocol):
    """What a reader needs of an embedding model."""

    model_key: str
    dimension: int

    def embed(self, texts: list[str], /) -> Vectors:
        """Embed texts as ``(n, d) float32, rows L2-normalised``; longer ones than the model reads are cut."""
        ...


def to_vector(query: str | npt.NDArray[np.floating], embedder: QueryEmbedder) -> Vectors:
    """Give the query as ``(d,) float32, L2-normalised``; a vector of zeros stays one.

    Raises:
        ValueError: the text is blank.
    """
    if isinstance(query, str):
        text = readable(require_words(query))
        return np.asarray(embedder.embed([text])[0], dtype=np.float32)
    vector = np.asarray(query, dtype=np.float32)
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm else vector


def readable(query: str) -> str:
    """Give a query as tokenizers and databases can read it: not longer than models read, "?" for half an emoji."""
    return query.strip()[:_MAX_CHARS].encode(errors="replace").decode()


def require_words(query: str) -> str:
    """Refuse a query that asks nothing.

    Raises:
        ValueError: it is blank.
    """
    if not query.strip():
        raise ValueError("query: is blank; ask with at least one word")
    return query
