"""Texts grouped by what they are about, one after the other: each joins the nearest group, or leads a new one.

Leader clustering. How alike a text and a group are is told by their meaning and by their words: what is 0.3 alike in
one and 0.2 in the other is 1 - 0.7 * 0.8 = 0.44 alike. A text joins the group it is most alike to if that is enough;
its group, whose mean has moved, may then merge with another. A full group takes no more: a theme that goes on and on
is told in parts. Where a text is put depends on what came before it, never on what comes after: one more text changes
the groups it touches and no other, and whoever starts anew ends in the same groups.

Why meaning is compared beyond what all texts of a session have in common: two people's chat has one tone, and raw
cosines of 0.5 whatever it is about (LoCoMo, all-MiniLM-L6-v2), while exchanges about one task are 0.5 alike and
those about two tasks 0.03. Why a square root: with raw cosines of 0.6 to the mean, 24 exchanges about three things
fell into 16 groups; on this scale into three. Why words as well: a text that is not embedded has nothing else.
Source: Hartigan 1975 (leader); Grootendorst 2022 (class TF-IDF, as BERTopic names groups).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

JOINS_AT: Final = 0.6
"""How alike a text and a group must be."""
_MERGES_AT: Final = 0.71
_JOINS_AT_BY_WORDS: Final = 0.27
"""Where only words can be compared: of its words a text shares a smaller part with its like than of its meaning."""
MOST_MEMBERS: Final = 32
_BLOCK: Final = 64
_NEAREST: Final = 3
_LEAST_ALIKE: Final = 0.15
"""Words are looked at in so many groups, those nearest in meaning, if they are near at all."""
_TELLING_GROUPS: Final = 64
"""Where there is no meaning to go by, a word that more groups have tells none of them from the others."""
_COMPARED_BY_WORDS: Final = 4
"""Groups whose words are looked at as a whole: those that share most of a text's telling ones."""
_CANDIDATES: Final = 48
_DECIMALS: Final = 5
_FIRST_ROWS: Final = 4
_COMMON: Final = 0.3
"""Quantile of the cosines between texts that is taken for what all have in common."""
_MOST_COMMON: Final = 0.5
"""What is more alike than that is about one thing, even if nothing else was ever said."""
_COMPARED: Final = 32
_PRIOR: Final = 50
"""Cosines of 0 assumed before any is known: the first texts may all be about one thing."""


class Clustering:
    """Groups of the texts added so far, numbered in the order in which they began; merged ones leave a gap.

    Args:
        dimension: of the texts' vectors; 0: there are none.
    """

    def __init__(self, dimension: int) -> None:
        self.members: dict[int, list[int]] = {}
        """The texts of each group, ascending."""
        self._means = _Means(dimension)
        self._counts: list[Counter[str]] = []
        self._without_mean: set[int] = set()
        self._holders: dict[str, dict[int, int]] = {}
        """In how many texts of which groups a word is."""
        self._places: dict[str, list[int]] = {}
        self._n_terms: list[int] = [0]
        self._n_groups: list[int] = [0]

    def __len__(self) -> int:
        """Count the texts."""
        return len(self._n_terms) - 1

    @property
    def labels(self) -> list[int]:
        """The group of each text."""
        found = [0] * len(self)
        for group, members in self.members.items():
            for member in members:
                found[member] = group
        return found

    def add(self, vectors: Vectors, terms: Sequence[tuple[str, ...]]) -> None:
        """Group some more texts.

        Args:
            vectors: ``(n, d) float32``, a row per text, L2-normalised; a row of zeros: compared by words alone.
            terms: their telling words (`terms`).
        """
        for start in range(0, len(terms), _BLOCK):
            self._add_block(vectors[start : start + _BLOCK], terms[start : start + _BLOCK])

    def theme(self, group: int, *, n_words: int = 4) -> tuple[str, ...]:
        """Name what a group is about: words that its texts have, and others have not.

        What came after its last text does not count: a group that nothing joins keeps its name.
        """
        as_of = self.members[group][-1] + 1
        mean_terms = self._n_terms[as_of] / self._n_groups[as_of]
        candidates = sorted(((n, term) for term, n in self._counts[group].items()), key=lambda c: (-c[0], c[1]))
        weights = {
            term: n * math.log(1 + mean_terms / bisect_right(self._places[term], as_of - 1))
            for n, term in candidates[:_CANDIDATES]
        }
        return tuple(sorted(weights, key=lambda term: (-weights[term], term))[:n_words])

    def _add_block(self, vectors: Vectors, terms: Sequence[tuple[str, ...]]) -> None:
        dots = self._means.dots(vectors, len(terms))
        for row, (vector, of_text) in enumerate(zip(vectors, terms, strict=True)):
            for term in of_text:
                self._places.setdefault(term, []).append(len(self))
            has_vector = bool(vector.any())
            alike = None
            if has_vector:
                self._means.note(vector)
                alike = self._means.alike(dots[: len(self._counts), row], 1.0)
            changed = self._put(alike, vector, of_text)
            if row + 1 < len(terms):
                for group in changed:
                    dots[group, row + 1 :] = vectors[row + 1 :] @ self._means.rows[group]

    def _put(self, alike: Vectors | None, vector: Vectors, terms: tuple[str, ...]) -> set[int]:
        """Put a text into a group, or a new one; gives the groups whose mean that changed."""
        number = len(self)
        sharing = self._sharing(terms) if alike is None or self._without_mean else []
        group = self._most_alike(alike, Counter(terms), 1, sharing)
        if group is None:
            group = self._begin()
        self.members[group].append(number)
        self._means.add(group, vector)
        self._count(group, Counter(terms))
        changed = {group}
        while (other := self._most_alike_group(group, sharing)) is not None:
            group, gone = sorted((group, other))
            self._merge(group, gone)
            changed |= {group, gone}
        self._n_terms.append(self._n_terms[-1] + len(terms))
        self._n_groups.append(len(self.members))
        return changed

    def _most_alike_group(self, group: int, sharing: Sequence[int]) -> int | None:
        alike = None
        if self._means.n[group]:
            alike = self._means.alike_group(group, len(self._counts))
        return self._most_alike(alike, self._counts[group], len(self.members[group]), sharing, but=group)

    def _most_alike(
        self, alike: Vectors | None, counts: Counter[str], n: int, sharing: Sequence[int], *, but: int | None = None
    ) -> int | None:
        """Find the group that a text, or a group of ``n``, is most alike to, if enough; the oldest of equals.

        By words alone it is looked for among those that share some with the text that came last: to others, a group
        that it joined became no more alike.
        """
        found: list[tuple[float, int]] = []
        at = JOINS_AT if but is None else _MERGES_AT
        if alike is not None:
            for group in self._nearest(alike):
                if self._has_room(group, n, but):
                    share = 1 - (1 - min(1.0, float(alike[group]))) * (1 - self._by_words(group, counts, n))
                    found.append((round(math.sqrt(share), _DECIMALS) / at, -group))
        for group in sharing:
            if (alike is None or group in self._without_mean) and self._has_room(group, n, but):
                share = self._by_words(group, counts, n)
                found.append((round(math.sqrt(share), _DECIMALS) * JOINS_AT / (at * _JOINS_AT_BY_WORDS), -group))
        best, group = max(found, default=(0.0, 0))
        return -group if best >= 1 else None

    @staticmethod
    def _nearest(alike: Vectors) -> list[int]:
        places = np.flatnonzero(alike > _LEAST_ALIKE)
        return [int(place) for place in places[np.argsort(-alike[places], kind="stable")[:_NEAREST]]]

    def _has_room(self, group: int, n: int, but: int | None) -> bool:
        return group != but and group in self.members and len(self.members[group]) + n <= MOST_MEMBERS

    def _sharing(self, terms: Iterable[str]) -> list[int]:
        """List the groups whose texts share most telling words with a text, a bounded number of them."""
        shares: dict[int, float] = {}
        n_texts, members = len(self) + 2, self.members
        for term in terms:
            holders = self._holders.get(term, {})
            if len(holders) <= _TELLING_GROUPS:
                weight = math.log1p(n_texts / (1 + len(self._places[term])))
                for group, times in holders.items():
                    shares[group] = shares.get(group, 0.0) + weight * times / len(members[group])
        open_ones = [(-share, group) for group, share in shares.items() if len(members[group]) < MOST_MEMBERS]
        return [group for _, group in heapq.nsmallest(_COMPARED_BY_WORDS, open_ones)]

    def _by_words(self, group: int, counts: Counter[str], n: int) -> float:
        """Tell which part of what the words of the smaller of two weigh the other has too; rare words weigh more."""
        ours, n_ours = self._counts[group], len(self.members[group])
        if n_ours < n:
            ours, n_ours, counts, n = counts, n, ours, n_ours
        whole = shared = 0.0
        n_texts, places, log = len(self) + 2, self._places, math.log1p
        for term, times in counts.items():
            weight = times * log(n_texts / (1 + len(places[term])))
            whole += weight
            if term in ours:
                shared += weight * ours[term] / n_ours
        return shared / whole if whole else 0.0

    def _begin(self) -> int:
        group = len(self._counts)
        self._means.begin(group)
        self.members[group] = []
        self._counts.append(Counter())
        return group

    def _merge(self, group: int, gone: int) -> None:
        self.members[group] = sorted(self.members[group] + self.members.pop(gone))
        counts, self._counts[gone] = self._counts[gone], Counter()
        for term in counts:
            del self._holders[term][gone]
        self._count(group, counts)
        self._means.merge(group, gone)
        self._without_mean.discard(gone)

    def _count(self, group: int, more: Counter[str]) -> None:
        self._counts[group].update(more)
        for term, times in more.items():
            holders = self._holders.setdefault(term, {})
            holders[group] = holders.get(group, 0) + times
        (self._without_mean.discard if self._means.n[group] else self._without_mean.add)(group)


class _Means:
    """Where the groups lie, and what all texts have in common."""

    def __init__(self, dimension: int) -> None:
        self.rows: Vectors = np.zeros((0, dimension), dtype=np.float32)
        """Their means, not normalised."""
        self.n = np.zeros(0, dtype=np.int64)
        """How many vectors each is the mean of."""
        self._squares = np.ones(0, dtype=np.float32)
        self._recent: Vectors = np.zeros((0, dimension), dtype=np.float32)
        self._n_noted = 0
        self._cosines = np.zeros(101, dtype=np.int64)
        self._cosines[0] = _PRIOR
        self._common = 0.0

    def note(self, vector: Vectors) -> None:
        """Learn from one more text what all have in common."""
        if self._n_noted:
            cosines = np.rint(100 * (self._recent[: self._n_noted] @ vector)).clip(0, 100).astype(np.int64)
            self._cosines += np.bincount(cosines, minlength=len(self._cosines))
            sums = self._cosines.cumsum()
            self._common = min(_MOST_COMMON, float(sums.searchsorted(_COMMON * sums[-1])) / 100)
        if self._n_noted < _COMPARED:
            self._recent = np.concatenate([self._recent, vector[None]])
        else:
            self._recent[self._n_noted % _COMPARED] = vector
        self._n_noted += 1

    def dots(self, vectors: Vectors, n_more: int) -> Vectors:
        """Multiply all means with some vectors, with room for ``n_more`` groups: ``(m, n)``."""
        found = np.zeros((len(self.n) + n_more, len(vectors)), dtype=np.float32)
        found[: len(self.n)] = self.rows @ vectors.T
        return found

    def alike(self, dots: Vectors, square: float) -> Vectors:
        """Turn products with groups into likenesses beyond what all have in common; -1 where a group has no mean."""
        known = slice(len(dots))
        spread = np.maximum(self._squares[known] - self._common, 1e-3) * max(square - self._common, 1e-3)
        return np.where(self.n[known] > 0, (dots - self._common) / np.sqrt(spread), -1.0).astype(np.float32)

    def alike_group(self, group: int, n: int) -> Vectors:
        """Compare a group with the first ``n``."""
        return self.alike(self.rows[:n] @ self.rows[group], float(self._squares[group]))

    def begin(self, group: int) -> None:
        """Make room for a group."""
        if group == len(self.n):
            more = max(_FIRST_ROWS, group)
            self.rows = np.concatenate([self.rows, np.zeros((more, self.rows.shape[1]), np.float32)])
            self.n = np.concatenate([self.n, np.zeros(more, np.int64)])
            self._squares = np.concatenate([self._squares, np.ones(more, np.float32)])

    def add(self, group: int, vector: Vectors) -> None:
        """Add a vector to a group, unless it is one of zeros."""
        if vector.any():
            self._set(group, self.rows[group] * self.n[group] + vector, int(self.n[group]) + 1)

    def merge(self, group: int, gone: int) -> None:
        """Put one group into another."""
        total = self.rows[group] * self.n[group] + self.rows[gone] * self.n[gone]
        self._set(group, total, int(self.n[group] + self.n[gone]))
        self._set(gone, 0 * total, 0)

    def _set(self, group: int, total: Vectors, n: int) -> None:
        self.n[group] = n
        self.rows[group] = total / max(n, 1)
        self._squares[group] = float(self.rows[group] @ self.rows[group])
