"""A question that one pass of the model has seen: its vector, and its tokens' if the model gives any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.embed.protocol import EmbeddedQuestion, TokenEmbedder
from pipeline.ledger import words
from retrieval.fused.asking import Asking
from retrieval.query_vector import QueryEmbedder


@dataclass(frozen=True, slots=True)
class Asked:
    """A question before the ledger is asked about it."""

    asking: Asking
    embedded: EmbeddedQuestion

    @property
    def sought(self) -> list[str]:
        """The words, as written, by which turns are looked for.

        Why not as they are indexed: the full text stems what it is asked for, and the stem of a stem may be another.
        """
        stems = set(self.asking.search_words)
        text = self.asking.text
        written = (text[start:stop] for start, stop, stem in words.placed_words(text) if stem in stems)
        return list(dict.fromkeys(written))


def ask(text: str, names: list[str], embedder: QueryEmbedder) -> Asked:
    """Read a question that is put to a scope in which these people speak, and embed it."""
    asking = Asking(text, frozenset(names))
    if isinstance(embedder, TokenEmbedder):
        return Asked(asking, embedder.embed_question(asking.embedded_text))
    vector = np.asarray(embedder.embed([asking.embedded_text])[0], dtype=np.float32)
    return Asked(asking, EmbeddedQuestion(vector, np.empty((0, 0), np.float32), np.empty((0, 2), np.int64)))
