"""A question on its way to being answered: its words, whom it names, and what one pass of the model makes of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.embed.protocol import EmbeddedQuestion, TokenEmbedder
from pipeline.ledger import words as ledger_words
from pipeline.ledger.fulltext import index_form
from retrieval.fused import lexical, speakers
from retrieval.fused.passages import Floats, Question
from retrieval.query_vector import QueryEmbedder

_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a question: as written, as the full text has it, and whether it is a stop word or names a speaker."""

    written: str
    stem: str
    is_stop_word: bool
    is_name: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A question before the ledger is asked about it.

    Attributes:
        text: as it was asked.
        nameless: the text that is embedded: without the names of speakers.
        words: of the text, in order.
        named: the speakers it names.
        embedded: what the model made of the nameless text.
    """

    text: str
    nameless: str
    words: tuple[Word, ...]
    named: frozenset[str]
    embedded: EmbeddedQuestion

    @property
    def sought(self) -> list[str]:
        """The words, as written, by which turns are looked for: not those that any turn may have, nor names.

        A question of nothing else is looked for by what it has.
        """
        for wanted in (
            [word for word in self.words if not word.is_stop_word and not word.is_name],
            [word for word in self.words if not word.is_stop_word],
        ):
            if wanted:
                return list(dict.fromkeys(word.written for word in wanted))
        return []

    @property
    def stems(self) -> list[str]:
        """The words whose frequency counts."""
        return list(dict.fromkeys(word.stem for word in self.words if not word.is_stop_word))

    def question(self, frequencies: Mapping[str, int], n_turns: int, asked_ms: int | None) -> Question:
        """Give the question as ranking sees it.

        Args:
            frequencies: the turns that each stem is in.
            n_turns: turns in the full text.
            asked_ms: the time of asking.
        """
        stems = [word.stem for word in self.words]
        idf = lexical.idf(n_turns, [frequencies.get(stem, 0) for stem in stems]) if stems else np.empty(0, np.float32)
        counts = np.array([not word.is_stop_word for word in self.words], np.bool_)
        weights = np.where(counts, idf, 0).astype(np.float32)
        return Question(
            text=self.text,
            vector=self.embedded.vector,
            words=ledger_words.ids_of(stems),
            weights=weights,
            is_name=np.array([word.is_name for word in self.words], np.bool_),
            token_vectors=self.embedded.tokens,
            token_weights=self._token_weights(dict(zip(stems, weights.tolist(), strict=True))),
            named=self.named,
            asked_ms=asked_ms,
        )

    def _token_weights(self, weight_of: Mapping[str, float]) -> Floats:
        """Give each token the weight of the word it is a part of; 0 to what is part of none."""
        weights = np.zeros(len(self.embedded.tokens), np.float32)
        starts = self.embedded.spans[:, 0]
        for found, stem in _stems(self.nameless):
            weights[(starts >= found.start()) & (starts < found.end())] = weight_of.get(stem, 0.0)
        return weights


def asked(text: str, names: Collection[str], embedder: QueryEmbedder) -> Asked:
    """Read a question that is put to a scope with these speakers, and embed it."""
    nameless = speakers.without_names(text, names)
    named = speakers.named_in(text, names)
    return Asked(text, nameless, _words(text, nameless), named, _embedded(nameless, embedder))


def _words(text: str, nameless: str) -> tuple[Word, ...]:
    left = [found[0] for found, _ in _stems(nameless)]
    listed = []
    for found, stem in _stems(text):
        written = found[0]
        is_name = written not in left
        if not is_name:
            left.remove(written)
        listed.append(Word(written, stem, _is_stop_word(written, stem), is_name))
    return tuple(listed)


def _is_stop_word(written: str, stem: str) -> bool:
    return written.casefold() in lexical.STOP_WORDS or stem in lexical.STOP_WORDS


def _stems(text: str) -> Sequence[tuple[re.Match[str], str]]:
    """Give the words of a text with their places, and as the full text has them."""
    found = []
    for run in _WORD.finditer(text):
        parts = index_form(run[0]).split()
        if len(parts) == 1:
            found += [(run, stem) for stem in ledger_words.words(run[0])]
            continue
        at = run.start()
        for part in parts:  # of a script without spaces
            place = re.compile(re.escape(part)).search(text, at)
            assert place is not None
            at = place.end()
            found += [(place, stem) for stem in ledger_words.words(part)]
    return found


def _embedded(text: str, embedder: QueryEmbedder) -> EmbeddedQuestion:
    if isinstance(embedder, TokenEmbedder):
        return embedder.embed_question(text)
    vector: npt.NDArray[np.float32] = np.asarray(embedder.embed([text])[0], dtype=np.float32)
    return EmbeddedQuestion(vector, np.empty((0, 0), np.float32), np.empty((0, 2), np.int64))
