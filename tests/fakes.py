"""Stand-ins for what is slow, paid or random in tests; each does the real thing in a small way."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.embed import EmbeddedQuestion
from pipeline.summarise import Completion


class FakeEmbedder:
    """Embeds a text as its bag of words: texts that share words are near. Counts the texts it was given."""

    def __init__(self, *, model_key: str = "fake@1/words/64", dimension: int = 64) -> None:
        self.model_key = model_key
        self.dimension = dimension
        self.max_tokens = 256
        self.n_embedded = 0

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed texts as ``(n, d) float32, rows L2-normalised``."""
        self.n_embedded += len(texts)
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                vectors[row, int.from_bytes(digest) % self.dimension] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


class FakeTokenEmbedder(FakeEmbedder):
    """Gives each word of a text a vector of its own, too, the same wherever it stands."""

    token_dimension = 16

    def __init__(self) -> None:
        super().__init__(model_key="fake@1/words/64+t16")

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], list[npt.NDArray[np.int8]]]:
        """Embed texts, and their words as ``(t, p) int8``."""
        words = [text.lower().split() for text in texts]
        return self.embed(texts), [np.rint(127 * self._words(of_text)).astype(np.int8) for of_text in words]

    def embed_question(self, text: str) -> EmbeddedQuestion:
        """Embed one text, its words, and where they stand."""
        found = list(re.finditer(r"\S+", text))
        spans = np.array([match.span() for match in found], np.int64).reshape(-1, 2)
        return EmbeddedQuestion(self.embed([text])[0], self._words([match[0].lower() for match in found]), spans)

    def _words(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        digests = [
            hashlib.blake2b(word.strip(".,?!").encode(), digest_size=self.token_dimension).digest() for word in words
        ]
        vectors = np.frombuffer(b"".join(digests), np.int8).reshape(-1, self.token_dimension).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-9)


class CountingInvoker:
    """Summarises by keeping the first words; counts its calls and can be told what to answer or raise first.

    An exception in ``first`` is raised, a text is answered, once each in their order.
    """

    def __init__(self, *first: str | Exception, n_words: int = 12) -> None:
        self.first = list(first)
        self.n_words = n_words
        self.texts: list[str] = []
        self.lengths: list[int] = []
        self._lock = threading.Lock()

    @property
    def n_calls(self) -> int:
        """How often it was asked."""
        return len(self.texts)

    def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:  # noqa: ARG002 - the protocol's
        """Answer as scripted, then with the text's first words; ten tokens in, three out."""
        with self._lock:
            self.texts.append(user)
            self.lengths.append(max_tokens)
            scripted = self.first.pop(0) if self.first else None
        if isinstance(scripted, Exception):
            raise scripted
        answer = " ".join(user.split()[: self.n_words]) if scripted is None else scripted
        return Completion(answer, 10, 3, "counting-1")
