"""How much each entry of a session has to do with what is asked next; the scorer that all strategies share.

Words and meaning are scored apart, each as a share of its best, and added: an entry that quotes the question's rare
word is found by the one, one that says the same otherwise by the other. Where one of the two finds nothing, the other
decides alone. Where the ranking model has read the likeliest entries (`answering`), its chances decide most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.words import Scores
from retrieval.context.protocol import Asked, Compared, facts_of

LEAST_COSINE: Final = 0.3
"""Below it two texts are about different things."""
_LEAST_WORDS: Final = 0.08
"""Share of what the question's words weigh, below which an entry has them by chance."""
_LEAST_CHANCE: Final = 0.05
"""The chance below which profile `fused` says that nothing answers."""
_WORDS: Final = 0.5
_LIKELY: Final = 0.85
_ROOT: Final = 0.4
"""What the chances count, and the power they are taken to, so that the fifth best is not as good as nothing. Measured
on every sixth question of LoCoMo's conversations 1-5, evidence told by `dynamic` in 256 and 512 tokens: at 0.7 and
0.25 44 and 67 %, at 0.85 and 0.35 48 and 70 %, at 1.0 and 0.5 50 and 69 %, at 0.85 and 1.0 47 and 66 %."""
SAME_TOPIC: Final = 0.6
_SAME_TOPIC_BY_WORDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Relevance:
    """The entries' scores, each array ``(n,)``.

    Args:
        scores: words and meaning together, in [0, 1]; the best has about 1 when anything is relevant at all.
        by_words: BM25 as a share of the most that was possible.
        by_meaning: cosine; 0 where there is no vector.
        is_relevant: whether an entry, by itself, is about what was asked.
    """

    scores: Scores
    by_words: Scores
    by_meaning: Scores
    is_relevant: npt.NDArray[np.bool_]

    @property
    def is_any_relevant(self) -> bool:
        """Tell whether the session knows anything about it."""
        return bool(self.is_relevant.any())


def relevance(asked: Asked, facts: EntryFacts | None = None) -> Relevance:
    """Score the entries; without an objective every score is 0."""
    n = len(asked.entries)
    nothing = np.zeros(n, np.float32)
    if asked.objective is None or not n:
        return Relevance(nothing, nothing, nothing, nothing.astype(np.bool_))
    known = asked.compared or compared(asked, facts or facts_of(asked))
    by_words, by_meaning, chances = known.by_words, known.by_meaning, known.chances
    # Where meaning cannot speak against it, one telling word in common is enough.
    least_words = np.where(by_meaning != 0, _LEAST_WORDS, np.float32(1e-6))
    is_relevant = (by_words >= least_words) | (by_meaning >= LEAST_COSINE)
    if chances is not None:
        is_relevant |= chances >= _LEAST_CHANCE
    words, meaning = _as_share(by_words), _as_share(by_meaning)
    scores = words + meaning if not meaning.any() or not words.any() else _WORDS * words + (1 - _WORDS) * meaning
    if chances is not None:
        scores = _LIKELY * _as_share(chances**_ROOT) + (1 - _LIKELY) * scores
    scores = np.asarray(scores, np.float32)
    return Relevance(scores, by_words, by_meaning, is_relevant)


def compared(asked: Asked, facts: EntryFacts) -> Compared:
    """Compare the entries with the objective, by words and by meaning; by nothing where there is none."""
    return Compared(facts.bm25(asked.objective or ""), _cosines(asked))


def _cosines(asked: Asked) -> Scores:
    if asked.objective_vector is None or asked.vectors.shape != (len(asked.entries), len(asked.objective_vector)):
        return np.zeros(len(asked.entries), np.float32)
    return np.asarray(asked.vectors @ asked.objective_vector, np.float32)


def is_on_last_topic(asked: Asked, facts: EntryFacts) -> npt.NDArray[np.bool_]:
    """Tell which entries are in the cluster of the last one: those near enough to join it as their leader."""
    near = facts.beside(asked.vectors).cosines_with_last
    if near is not None:
        return np.asarray(near >= SAME_TOPIC, np.bool_)
    n = len(asked.entries)
    return facts.shared_words(n - 1) >= _SAME_TOPIC_BY_WORDS if n else np.zeros(0, np.bool_)


def _as_share(scores: Scores) -> Scores:
    positive = scores.clip(min=0)
    best = float(positive.max(initial=0))
    return np.asarray(positive / best, np.float32) if best > 0 else positive
