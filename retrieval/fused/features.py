"""What speaks for a candidate: a few named numbers, each computed from what is at hand, never from the whole scope.

A feature called ``<name>_standing`` tells where a candidate stands in ``<name>`` among the candidates: how many
standard deviations above their mean.

Why not over the whole scope: it would have to be read for every question, and it ranks no better (R@10 84.3 against
84.5 over all passages of a conversation, before the features that add nothing were left out).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from pipeline.ledger.words import Mark, word_ids
from retrieval.fused import dates, late_interaction, lexical, speakers
from retrieval.fused.passages import Floats, Passages, Question, WordIds

MEANINGS: Final[Mapping[str, str]] = {
    "speaker": "1 when the one speaker named in the question says it, 0 when another does, 0.5 when none is named",
    "of_self": "1 when the one speaker named in the question says it of himself: with I, me, my, we, our, …",
    "asks": "1 when it holds a question mark: questions are rarely evidence",
    "tells_when": "1 when the question asks when or how long, and it has a word of time",
    "day": "how near it is to a day the question names: 1 from a day before to two after, then less, up to a month",
    "month": "1 inside the month, season or other span of days the question names, 0.4 up to 15 days after",
    "year": "1 inside the year the question names",
    "dense": "cosine of its vector with the question's",
    "dense_with_summary": "cosine of the question's vector with its own plus half of its session's summary's",
    "summary": "cosine of its session's summary with the question; 0 when there is none",
    "bm25": "BM25 of the question's words without speakers' names",
    "bm25_wide": "BM25 of the question's words without speakers' names, over it and two passages on either side",
    "maxsim": "for each token of the question the cosine of its nearest token, on average",
    "maxsim_rare": "for each token of the question the cosine of its nearest token, weighted by rarity in the scope",
    "maxsim_with_previous": "for each token of the question the nearest in it or the passage before, on average",
    "maxsim_rare_wide": "for each token of the question the nearest in a window of five passages, weighted by rarity",
    "maxsim_rare_far": "for each token of the question the nearest at hand within ten passages, weighted by rarity",
    "session_words": "share of the question's words, by rarity, that its session's passages at hand have together",
}
STANDING: Final = "_standing"

_WHEN: Final = re.compile(
    r"\bwhen\b|\bhow (?:long|recently)\b|\b(?:what|which) (?:date|day|month|year|time)\b"
    r"|什么时候|几月|哪天|哪年|多久",
    re.IGNORECASE,
)
_SUMMARY_SHARE: Final = np.float32(0.5)
_WIDE: Final = (-2, -1, 1, 2)
_FAR: Final = 10
_OF_SELF: Final = "I me my mine we us our ours 我"


def known_features() -> frozenset[str]:
    """Name all features."""
    return frozenset(MEANINGS) | {name + STANDING for name in MEANINGS}


def needs_tokens(name: str) -> bool:
    """Tell whether a feature compares token vectors."""
    return "maxsim" in name


def needs_summaries(name: str) -> bool:
    """Tell whether a feature looks at the summaries of sessions."""
    return "summary" in name


def meaning_of(name: str) -> str:
    """Say what a feature tells."""
    base = MEANINGS[name.removesuffix(STANDING)]
    return base if name in MEANINGS else f"standard deviations above the mean of the candidates: {base}"


def matrix(question: Question, passages: Passages, names: Sequence[str], *, mean_words: float) -> Floats:
    """Compute features of the candidates.

    Args:
        question: what is asked.
        passages: the candidates and their neighbours.
        names: the features wanted.
        mean_words: words of a passage, on average over the scope.

    Returns:
        ``(c, f) float32``, a row for each candidate, columns in the order of the names.
    """
    evidence = Evidence(question, passages, mean_words=mean_words)
    columns = np.empty((len(passages.candidates), len(names)), np.float32)
    for place, name in enumerate(names):
        values = getattr(evidence, name.removesuffix(STANDING))[passages.candidates]
        columns[:, place] = _standing(values) if name.endswith(STANDING) else values
    return columns


class Evidence:
    """Features of all passages at hand by name, ``(n,) float32``; each computed once, when it is first asked for.

    What each tells stands in ``MEANINGS``.
    """

    def __init__(self, question: Question, passages: Passages, *, mean_words: float) -> None:
        self._question = question
        self._passages = passages
        self._mean_words = mean_words

    @cached_property
    def speaker(self) -> Floats:
        """Who says it."""
        return speakers.match(self._passages.speaker, self._question.named)

    @cached_property
    def of_self(self) -> Floats:
        """Whether the one whom the question names says it of himself."""
        if len(self._question.named) != 1:
            return np.zeros(self._passages.n, np.float32)
        return np.asarray(self.speaker * self._passages.with_any(_of_self_ids()), np.float32)

    @cached_property
    def asks(self) -> Floats:
        """Whether it asks."""
        return self._marked(Mark.ASKS)

    @cached_property
    def tells_when(self) -> Floats:
        """Whether it may answer when."""
        if not _WHEN.search(self._question.text):
            return np.zeros(self._passages.n, np.float32)
        return self._marked(Mark.TELLS_TIME)

    @cached_property
    def day(self) -> Floats:
        """Fit to a named day."""
        return dates.match(self._spans, self._passages.time_ms, dates.Grain.DAY)

    @cached_property
    def month(self) -> Floats:
        """Fit to a named month or other span."""
        return dates.match(self._spans, self._passages.time_ms, dates.Grain.MONTH)

    @cached_property
    def year(self) -> Floats:
        """Fit to a named year."""
        return dates.match(self._spans, self._passages.time_ms, dates.Grain.YEAR)

    @cached_property
    def dense(self) -> Floats:
        """Likeness of meaning."""
        return np.asarray(self._passages.vectors @ self._question.vector, np.float32)

    @cached_property
    def dense_with_summary(self) -> Floats:
        """Likeness of meaning, of it within its session."""
        summaries = self._passages.summary_rows
        together = self._passages.vectors + _SUMMARY_SHARE * summaries
        norms = np.sqrt(np.einsum("nd,nd->n", together, together)).clip(min=1e-6)
        return np.asarray(together @ self._question.vector / norms, np.float32)

    @cached_property
    def summary(self) -> Floats:
        """Likeness of meaning, of its session."""
        return np.asarray(self._passages.summary_rows @ self._question.vector, np.float32)

    @cached_property
    def bm25(self) -> Floats:
        """Words in it."""
        return lexical.bm25(self._counts, self._passages.n_words, self._weights, self._mean_words)

    @cached_property
    def bm25_wide(self) -> Floats:
        """Words in a window of five."""
        passages = self._passages
        return lexical.bm25(
            passages.summed(self._counts, _WIDE),
            passages.summed(passages.n_words, _WIDE),
            self._weights,
            self._mean_words * (1 + len(_WIDE)),
        )

    @cached_property
    def maxsim(self) -> Floats:
        """Tokens, all alike."""
        return late_interaction.weighted_mean(self._nearest, np.ones(self._nearest.shape[1]))

    @cached_property
    def maxsim_rare(self) -> Floats:
        """Tokens by rarity."""
        return late_interaction.weighted_mean(self._nearest, self._question.token_weights)

    @cached_property
    def maxsim_with_previous(self) -> Floats:
        """Tokens, of it as an answer to what was said before."""
        both = self._passages.best_near(self._nearest, (-1,))
        return late_interaction.weighted_mean(both, np.ones(both.shape[1]))

    @cached_property
    def maxsim_rare_wide(self) -> Floats:
        """Tokens by rarity, in a window of five; of passages two away, those whose tokens are at hand."""
        wide = self._passages.best_near(self._nearest, _WIDE)
        return late_interaction.weighted_mean(wide, self._question.token_weights)

    @cached_property
    def maxsim_rare_far(self) -> Floats:
        """Tokens by rarity, in what is talked about around it, as far as that is at hand."""
        far = self._passages.best_within(self._nearest, _FAR)
        return late_interaction.weighted_mean(far, self._question.token_weights)

    @cached_property
    def session_words(self) -> Floats:
        """Words, of the session."""
        rows = self._passages.session_rows
        if not len(rows):
            return np.zeros(0, np.float32)
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        together = np.add.reduceat(self._counts, starts, axis=0)
        return lexical.coverage(together, self._weights)[rows]

    @cached_property
    def _spans(self) -> list[dates.Span]:
        return dates.spans_in(self._question.text, self._question.asked_ms)

    @cached_property
    def _terms(self) -> tuple[WordIds, Floats]:
        """The question's distinct words that count, with their weights; names only if there are no others."""
        words, first = np.unique(self._question.words, return_index=True)
        nameless = np.where(self._question.is_name, 0, self._question.weights)
        weights = (nameless if nameless.any() else self._question.weights)[first].astype(np.float32)
        return words[weights > 0], weights[weights > 0]

    @property
    def _weights(self) -> Floats:
        return self._terms[1]

    @cached_property
    def _counts(self) -> Floats:
        return lexical.counts(self._passages, self._terms[0])

    @cached_property
    def _nearest(self) -> Floats:
        return late_interaction.nearest_tokens(self._question.token_vectors, self._passages)

    def _marked(self, mark: Mark) -> Floats:
        return (self._passages.marks & mark > 0).astype(np.float32)


@functools.cache
def _of_self_ids() -> WordIds:
    return word_ids(_OF_SELF)


def _standing(values: Floats) -> Floats:
    spread = float(values.std()) if len(values) else 0.0
    return np.asarray((values - values.mean()) / spread, np.float32) if spread > 0 else np.zeros_like(values)
