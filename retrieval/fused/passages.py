"""What ranking looks at: the question, and the passages of one scope that may answer it, as plain arrays.

A passage is a trace: a chunk of a turn. Its neighbours are the passages just before and after it in its session. The
candidates' neighbours are among the passages, so that a candidate can be judged by what stands around it.

Nothing here knows how passages are stored or found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
WordIds = npt.NDArray[np.uint32]

REACH = 2
"""How far from a candidate its neighbours count; passages further away need not be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question as ranking sees it.

    Attributes:
        text: as it was asked.
        vector: ``(d,) float32, L2-normalised``, of the text without the names of speakers.
        words: ``(q,) uint32``, its words in order, stop words and names too.
        weights: ``(q,) float32``, each word's inverse document frequency in the scope; 0 for a stop word.
        is_name: ``(q,) bool``, which words name a speaker.
        token_vectors: ``(t, p) float32, rows L2-normalised``; no rows when the model gives none.
        token_weights: ``(t,) float32``, what each token counts: its word's weight.
        named: speakers it names.
        names_a_stranger: whether it has a name that no passage of the scope mentions.
        asked_ms: when it was asked; what "last May" is seen from.
    """

    text: str
    vector: Floats
    words: WordIds
    weights: Floats
    is_name: Bools
    token_vectors: Floats
    token_weights: Floats
    named: frozenset[str] = frozenset()
    names_a_stranger: bool = False
    asked_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Passages:
    """Passages in session order: sessions one after the other, each one's passages ascending by place.

    Attributes:
        session: ``(n,) int64``, a number for each session.
        place: ``(n,) int64``, counts the session's passages; neighbours differ by one.
        speaker: who said it; the role when nobody is named.
        time_ms: ``(n,) int64``.
        marks: ``(n,) int64``, bits of `pipeline.ledger.words.Mark`.
        vectors_of: gives the vectors of some candidates by row, ``(k,) int64`` to ``(k, d) float32, rows
            L2-normalised``, of zeros where unknown; it reads them, so it counts as long as the view they are from.
        words: all words one after the other.
        word_ends: ``(n,) int64``, where each passage's words end.
        tokens: ``(m, p) int8``, all token vectors one after the other, times 127.
        token_ends: ``(n,) int64``, where each passage's tokens end.
        candidates: ``(c,) int64``, the rows to be ranked; others are their neighbours.
        summaries: ``(s, d) float32, rows L2-normalised``, of each session's summary, in the order of the rows; zeros
            for a session without one; None when nobody wants them.
    """

    session: Ints
    place: Ints
    speaker: Sequence[str]
    time_ms: Ints
    marks: Ints
    vectors_of: Callable[[Ints], Floats]
    words: WordIds
    word_ends: Ints
    tokens: npt.NDArray[np.int8]
    token_ends: Ints
    candidates: Ints
    summaries: Floats | None = None

    @property
    def n(self) -> int:
        """How many passages there are."""
        return len(self.session)

    @cached_property
    def vectors(self) -> Floats:
        """All candidates' vectors: ``(n, d) float32``; zeros for their neighbours."""
        known = self.vectors_of(self.candidates)
        vectors = np.zeros((self.n, known.shape[1]), np.float32)
        vectors[self.candidates] = known
        return vectors

    def read(self) -> Passages:
        """Read what is not read yet, for whoever keeps them longer than the view."""
        vectors = self.vectors
        return replace(self, vectors_of=lambda rows: vectors[rows])

    @cached_property
    def n_words(self) -> Floats:
        """How many words each has: ``(n,) float32``."""
        return np.diff(self.word_ends, prepend=0).astype(np.float32)

    def words_of(self, row: int) -> WordIds:
        """Give a passage's words in order."""
        return self.words[int(self.word_ends[row - 1]) if row else 0 : int(self.word_ends[row])]

    def with_any(self, words: WordIds) -> Bools:
        """Tell which have one of the words: ``(n,) bool``."""
        so_far = np.concatenate(([0], np.cumsum(np.isin(self.words, words))))
        return np.asarray(np.diff(so_far[self.word_ends], prepend=0) > 0, np.bool_)

    @cached_property
    def session_rows(self) -> Ints:
        """Number the sessions from 0 in the order of the rows: ``(n,) int64``."""
        if not self.n:
            return np.empty(0, np.int64)
        return np.concatenate(([0], np.cumsum(self.session[1:] != self.session[:-1]))).astype(np.int64)

    @property
    def summary_rows(self) -> Floats:
        """Each passage's session's summary: ``(n, d) float32``; zeros where there is none."""
        return np.zeros_like(self.vectors) if self.summaries is None else self.summaries[self.session_rows]

    def has_neighbour(self, offset: int) -> Bools:
        """Tell which passages have one at this distance, behind (negative) or ahead: ``(n,) bool``."""
        found = np.zeros(self.n, np.bool_)
        near, far = _pair(self.n, offset)
        found[near] = (self.session[near] == self.session[far]) & (self.place[near] + offset == self.place[far])
        return found

    @cached_property
    def has(self) -> dict[int, Bools]:
        """By distance, which passages have a neighbour there."""
        return {offset: self.has_neighbour(offset) for offset in (-2, -1, 1, 2)}

    def summed(self, values: Floats, offsets: Sequence[int]) -> Floats:
        """Add to each passage's values those of its neighbours at these distances: ``(n, …) float32``."""
        total = values.copy()
        for offset in offsets:
            near, far = _pair(self.n, offset)
            has = self.has[offset][near]
            total[near] += values[far] * has.reshape(-1, *[1] * (values.ndim - 1))
        return total

    def best_near(self, values: Floats, offsets: Sequence[int]) -> Floats:
        """Give to each passage the greatest of its own value and its neighbours' at these distances: ``(n, …)``."""
        best = values.copy()
        for offset in offsets:
            rows = np.flatnonzero(self.has[offset])
            best[rows] = np.maximum(best[rows], values[rows + offset])
        return best

    def best_within(self, values: Floats, reach: int) -> Floats:
        """Give to each passage the greatest of its own value and those at hand up to ``reach`` places away."""
        if not self.n:
            return values
        along = self.session_rows * (int(self.place.max()) + 2 * reach + 1) + self.place  # sessions are out of reach
        starts = np.searchsorted(along, along - reach)
        stops = np.searchsorted(along, along + reach, side="right")
        ended = np.concatenate((values, values[-1:]))  # a slice may stop at the last row, and has to name one
        return np.asarray(np.maximum.reduceat(ended, np.ravel((starts, stops), order="F"), axis=0)[::2], np.float32)


def _pair(n: int, offset: int) -> tuple[slice, slice]:
    """Give the rows that may have a neighbour, and those neighbours."""
    if offset < 0:
        return slice(min(-offset, n), n), slice(0, max(n + offset, 0))
    return slice(0, max(n - offset, 0)), slice(min(offset, n), n)
