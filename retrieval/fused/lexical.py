"""Word search over passages that are at hand: BM25 over a passage or any window around it.

Source: k1 and b are those of SQLite's FTS5, which finds the candidates; the inverse document frequency is Lucene's,
which is never negative.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from retrieval.fused.passages import Floats, Passages, WordIds

K1: Final = 1.2
B: Final = 0.75

_ENGLISH: Final = (
    "a an the and or but if of to in on at by for with from as than then so no not is are was were be been being am"
    " do does did doing have has had having can could will would shall should may might must"
    " i you he she it we they me him her us them my your his its our their mine yours hers ours theirs"
    " this that these those there here what which who whom whose when where why how any some all"
    " about into over up down out off just also very too s t d m ll re ve"
    " don didn doesn isn wasn aren weren hasn haven hadn won wouldn couldn shouldn"
)
_CHINESE: Final = "的了在是我你他她它们和有就不也都吗呢吧什么谁哪怎这那"
STOP_WORDS: Final = frozenset((*_ENGLISH.split(), *_CHINESE))
"""Words that any turn may have. Source: written for this; English, and the commonest characters of Chinese."""


def idf(n_passages: int, document_frequency: npt.ArrayLike) -> Floats:
    """Weigh words by how few of ``n_passages`` hold them."""
    df = np.asarray(document_frequency, np.float32)
    return np.asarray(np.log1p((max(n_passages, 1) - df + 0.5) / (df + 0.5)).clip(min=0), np.float32)


def counts(passages: Passages, words: WordIds) -> Floats:
    """Count how often each passage has each of the words: ``(n, q) float32``."""
    found = np.zeros((passages.n, len(words)), np.float32)
    if not len(words) or not len(passages.words):
        return found
    for place, word in enumerate(words):  # few: each looked for in all of them is quicker than a search for each
        owners = np.searchsorted(passages.word_ends, np.flatnonzero(passages.words == word), side="right")
        found[:, place] = np.bincount(owners, minlength=passages.n)
    return found


def bm25(counted: Floats, lengths: Floats, weights: Floats, mean_length: float) -> Floats:
    """Score texts by the words they share with a question, as a share of the most they could reach.

    Args:
        counted: ``(n, q)``, how often each text has each word.
        lengths: ``(n,)``, words of each text.
        weights: ``(q,)``, each word's inverse document frequency; 0 leaves it out.
        mean_length: words of a text on average.

    Returns:
        ``(n,) float32`` in [0, 1): 0 without a common word; 0 for all when no word counts.
    """
    most = float(weights.sum()) * (K1 + 1)
    if most <= 0 or mean_length <= 0:
        return np.zeros(len(counted), np.float32)
    norm = K1 * (1 - B + B * lengths / np.float32(mean_length))
    return np.asarray((counted * (K1 + 1) / (counted + norm[:, None])) @ weights / np.float32(most), np.float32)


def coverage(counted: Floats, weights: Floats) -> Floats:
    """Tell which share of the question's words, by weight, each text has: ``(n,) float32`` in [0, 1]."""
    return np.asarray((counted > 0) @ weights / max(float(weights.sum()), 1e-9), np.float32)
