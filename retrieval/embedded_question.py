"""A question that one pass of the model has seen: its vector, and its tokens' if the model gives any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.embed.protocol import EmbeddedQuestion, TokenEmbedder
from retrieval.fused.asking import Asking
from retrieval.query_vector import QueryEmbedder, readable

COMMON: Final = 1 / 10
"""Share of all turns that a common word is in. Measured: from 1/16 to 1 it makes no difference to what is found."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question before the ledger is asked about it."""

    asking: Asking
    embedded: EmbeddedQuestion

    def sought(self, frequencies: Mapping[str, int], n_turns: int) -> list[str]:
        """List the words, as written, by which turns are looked for; common ones only if there is no other.

        Why: a word that every tenth turn has tells little about any of them, and costs by how many have it.
        Why not as they are indexed: the full text stems what it is asked for, and the stem of a stem may be another.

        Args:
            frequencies: the turns that each word, as it is indexed, is in.
            n_turns: turns in the full text.
        """
        known = [stem for stem in self.asking.search_words if frequencies.get(stem, 0)]
        rare = [stem for stem in known if frequencies[stem] <= COMMON * n_turns]
        stems = set(rare or known)
        text = self.asking.text
        written = (text[start:stop] for start, stop, stem in self.asking.placed_words if stem in stems)
        return list(dict.fromkeys(written))


def ask(text: str, names: list[str], embedder: QueryEmbedder) -> Asked:
    """Read a question that is put to a scope in which these people speak, and embed it."""
    asking = Asking(readable(text), frozenset(names))
    if isinstance(embedder, TokenEmbedder):
        return Asked(asking, embedder.embed_question(asking.embedded_text))
    vector = np.asarray(embedder.embed([asking.embedded_text])[0], dtype=np.float32)
    return Asked(asking, EmbeddedQuestion(vector, np.empty((0, 0), np.float32), np.empty((0, 2), np.int64)))
