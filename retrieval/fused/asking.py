"""Make of a question's text what ranking wants to know of it.

The caller looks up in between: first the text to embed and the words to count, then, with the vectors and the counts,
the question.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.ledger import words as wording
from retrieval.fused import lexical, speakers
from retrieval.fused.passages import Floats, Question

_STOP_TOKEN_WEIGHT: Final = 0.5
_MARK_TOKEN_WEIGHT: Final = 0.2
"""What the token of a stop word, and of a punctuation mark, count in late interaction; others by their word's idf."""
_CAPITALISED: Final = re.compile(r"(?<=[^\W_])[^\w.?!]+([^\W\d_]+)")


class Asking:
    """A question on its way to being ranked for.

    Args:
        text: as it was asked.
        known_speakers: who speaks in the scope, by name.
    """

    def __init__(self, text: str, known_speakers: frozenset[str]) -> None:
        self.text = text
        self.embedded_text = speakers.without_names(text, known_speakers)
        """What to embed: the text without the names of speakers."""
        self._speakers = known_speakers
        self.placed_words = wording.placed_words(text)
        """Its words with the characters ``[start, stop)`` each was made of."""
        self._listed = wording.words(text)
        is_same = self.embedded_text == text
        self._token_words = self.placed_words if is_same else wording.placed_words(self.embedded_text)
        self._name_words = frozenset(word for name in known_speakers - speakers.ROLES for word in wording.words(name))

    @property
    def counted_words(self) -> list[str]:
        """The words whose document frequency in the scope is wanted, stop words left out."""
        listed = {*self._listed, *(word for _, _, word in self._token_words)}
        return sorted(listed - stop_stems())

    @property
    def search_words(self) -> list[str]:
        """The words to look for in the full text: without stop words and, if any other is left, names of speakers."""
        content = [word for word in dict.fromkeys(self._listed) if word not in stop_stems()]
        nameless = [word for word in content if word not in self._name_words]
        return nameless or content

    def question(
        self,
        *,
        vector: Floats,
        token_vectors: Floats,
        token_spans: Sequence[tuple[int, int]],
        document_frequency: Mapping[str, int],
        n_passages: int,
        asked_ms: int | None = None,
    ) -> Question:
        """Give the question.

        Args:
            vector: ``(d,) float32, L2-normalised``, of ``embedded_text``.
            token_vectors: ``(t, p) float32, rows L2-normalised``, of its tokens without the special ones.
            token_spans: the characters of ``embedded_text`` that each token stands for.
            document_frequency: passages (or turns) of the scope that have a word; 0 for a word that is not in it.
            n_passages: how many there are in the scope.
            asked_ms: when it was asked.
        """
        weights = self._weights(self._listed, document_frequency, n_passages)
        return Question(
            text=self.text,
            vector=vector,
            words=wording.ids_of(self._listed),
            weights=weights,
            is_name=np.array([word in self._name_words for word in self._listed], np.bool_),
            token_vectors=token_vectors,
            token_weights=self._token_weights(token_spans, document_frequency, n_passages),
            named=speakers.named_in(self.text, self._speakers),
            names_a_stranger=self._names_a_stranger(document_frequency),
            asked_ms=asked_ms,
        )

    @staticmethod
    def _weights(listed: Sequence[str], document_frequency: Mapping[str, int], n_passages: int) -> Floats:
        weights = lexical.idf(n_passages, [document_frequency.get(word, 0) for word in listed])
        return np.where([word in stop_stems() for word in listed], 0, weights).astype(np.float32)

    def _token_weights(
        self, spans: Sequence[tuple[int, int]], document_frequency: Mapping[str, int], n_passages: int
    ) -> Floats:
        weights = self._weights([word for _, _, word in self._token_words], document_frequency, n_passages)
        by_character = np.full(len(self.embedded_text) + 1, _MARK_TOKEN_WEIGHT, np.float32)
        for (start, stop, _), weight in zip(self._token_words, weights.tolist(), strict=True):
            by_character[start:stop] = weight if weight > 0 else _STOP_TOKEN_WEIGHT
        return by_character[[start for start, _ in spans]]

    def _names_a_stranger(self, document_frequency: Mapping[str, int]) -> bool:
        """Tell whether a capitalised word inside a sentence is nobody who speaks and nothing ever said."""
        capitalised = [found[1] for found in _CAPITALISED.finditer(self.text) if found[1][0].isupper()]
        strangers = [word for word in capitalised if not speakers.named_in(word, self._speakers)]
        return any(
            all(stem not in stop_stems() and not document_frequency.get(stem, 0) for stem in wording.words(word))
            for word in strangers
        )


@functools.cache
def stop_stems() -> frozenset[str]:
    """Give the stop words as the full text indexes them."""
    return frozenset(stem for word in lexical.STOP_WORDS for stem in wording.words(word))
