"""Embed without a model: every word is hashed to a dimension and a sign.

For load tests and for tests of everything around the model: texts that share words are near each other, equal texts
are equal, and the same text has the same vector on every machine.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.embed.pooling import normalise
from pipeline.embed.protocol import Floats, load_tokenizer
from pipeline.embed.source import bundled_folder

DIMENSION: Final = 384
MODEL_KEY: Final = f"hashing@1/hashing/{DIMENSION}"
_N_SLOTS: Final = 2 * DIMENSION
_MAX_TOKENS: Final = 254
_MAX_CACHED_WORDS: Final = 200_000
_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """An `Embedder` made of words alone; the tokenizer, which only chunking uses, is the bundled model's."""

    def __init__(self) -> None:
        self.model_key = MODEL_KEY
        self.dimension = DIMENSION
        self.max_tokens = _MAX_TOKENS
        self.tokenizer = load_tokenizer(bundled_folder() / "tokenizer.json")
        self._slots = _Slots()

    def embed(self, texts: Sequence[str]) -> Floats:
        """Give (n, d) float32, rows L2-normalised, in the order of the texts; without words, a vector of its own."""
        if len(self._slots) > _MAX_CACHED_WORDS:
            self._slots = _Slots()
        words = [_WORD.findall(text.lower()) or [""] for text in texts]
        slots = np.fromiter(map(self._slots.__getitem__, itertools.chain.from_iterable(words)), np.int64)
        rows = np.repeat(np.arange(len(texts)), [len(found) for found in words])
        counts = np.bincount(rows * _N_SLOTS + slots, minlength=len(texts) * _N_SLOTS)
        halves = counts.reshape(len(texts), 2, DIMENSION).astype(np.float32)
        vectors = halves[:, 0] - halves[:, 1]
        vectors[~vectors.any(axis=1), 0] = 1.0  # words that cancel each other out leave nothing to normalise
        return normalise(vectors)


class _Slots(dict[str, int]):
    """Each word's dimension, plus ``DIMENSION`` when its sign is negative; worked out when first asked for."""

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
        self[word] = slot = int.from_bytes(digest, "little") % _N_SLOTS
        return slot
