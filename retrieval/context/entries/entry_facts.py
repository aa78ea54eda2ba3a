"""What scorers want to know of a session's entries; made once, and brought up to date entry by entry.

An entry counts as *followed up* by one of the next three that names it, or that asks with two of its telling words or
with half of what it asks with, and says something else. It counts as *referred to* by each later entry that names it
in ``refs`` or quotes an identifier (a path, an address, a ticket, a long number) that was first said in it. Why
identifiers alone: words come back by chance, ``invoice-2231.pdf`` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.ledger import words
from pipeline.ledger.reads import Vectors
from retrieval.context.entries.entry import Entry, Outcome
from retrieval.context.entries.vector_facts import FOLLOWING, VectorFacts
from retrieval.context.entries.words import Identifiers, Numbers, ReadEntry, Scores, WordIndex, terms
from retrieval.fused.asking import stop_stems
from retrieval.fused.lexical import K1, B, idf

_SUCCESS: Final = {Outcome.DONE: 1.0, Outcome.UNKNOWN: 0.5, Outcome.FAILED: 0.2}
_MOST_HOLDERS: Final = 0.05
_LEAST_HOLDERS: Final = 6
"""An identifier in more entries than either allows is an everyday word of the session."""
_MAY_CHANGE: Final = 8
"""Of the last entries, as they are answered; sorted in with all others, they would have all sorted anew."""
_TERM_BYTES: Final = 300
_ENTRY_BYTES: Final = 2_000
"""About what Python needs for a word of an entry, and for an entry without its texts and words."""
_NOTHING_FOLLOWED: Final = np.zeros((0, FOLLOWING), np.bool_)


class EntryFacts:
    """The words of some entries; immutable, to be shared between threads.

    Args:
        entries: the session's, oldest first.
        known: the words of entries that begin in the same way; what they share is not read again.
    """

    def __init__(self, entries: Sequence[Entry], known: EntryFacts | None = None) -> None:
        self.entries = entries
        n_known = _n_shared(entries, known.entries) if known else 0
        read = [ReadEntry(entry) for entry in entries[n_known:]]
        self.read: list[ReadEntry] = [*known.read[:n_known], *read] if known else read
        self._n_terms = np.array([len(one.terms) for one in self.read], np.float32)
        self._lengths = np.array([one.n_words for one in self.read], np.float32)
        self.index: WordIndex
        if known and known.index.covers(n_known, len(entries)):
            self.index = known.index
        else:
            self.index = WordIndex(self.read[: max(0, len(self.read) - _MAY_CHANGE)])
        self.identifiers: Identifiers = Identifiers(self.read, known.identifiers.before(n_known) if known else None)
        self._followed_before = _NOTHING_FOLLOWED
        if known and "followed" in known.__dict__:
            self._followed_before = known.followed[: max(0, n_known - FOLLOWING)]
        self._beside: VectorFacts | None = None
        self._tail = WordIndex(self.read[self.index.n :], first=self.index.n)

    def is_about(self, entries: Sequence[Entry]) -> bool:
        """Tell whether these are the same entries."""
        return len(entries) == len(self.entries) == _n_shared(entries, self.entries)

    def bm25(self, text: str) -> Scores:
        """Score each entry by the words it shares with a text: ``(n,)`` in [0, 1), a share of the most it could be.

        A word that no entry has counts as a rare one that is missing.
        """
        asked = sorted(set(terms(text)) - stop_stems()) or sorted(set(terms(text)))
        scores = np.zeros(len(self.entries), np.float32)
        if not asked or not len(scores):
            return scores
        found = [self._holders(term) for term in words.ids_of(asked)]
        weights = idf(len(scores), [len(owners) for owners, _ in found])
        length = 1 - B + B * self._lengths / max(float(self._lengths.mean()), 1)
        for weight, (owners, times) in zip(weights.tolist(), found, strict=True):
            scores[owners] += weight * times / (times + K1 * length[owners])
        return np.asarray(scores / weights.sum(), np.float32)

    def shared_words(self, place: int) -> Scores:
        """Give the share of its words that each entry has in common with one: ``(n,)``, 1 for the same ones."""
        mine = list(self.read[place].terms)
        both = np.zeros(len(self.read), np.float32)
        for term in words.ids_of(mine):
            both[self._holders(term)[0]] += 1
        either = self._n_terms + len(mine) - both
        return np.asarray(both / either.clip(min=1), np.float32)

    @cached_property
    def followed(self) -> npt.NDArray[np.bool_]:
        """Which of the next entries follow each up, by words or by naming it: ``(n, FOLLOWING)``."""
        followed = np.zeros((len(self.read), FOLLOWING), np.bool_)
        known = self._followed_before
        followed[: len(known)] = known
        for place, one in enumerate(self.read[len(known) :], len(known)):
            for step, later in enumerate(self.read[place + 1 : place + 1 + FOLLOWING]):
                is_named = self.entries[place].entry_id in self.entries[place + 1 + step].refs
                followed[place, step] = is_named or later.follows(one)
        return followed

    def beside(self, vectors: Vectors) -> VectorFacts:
        """Give the facts about these entries' vectors; kept as long as the same ones are asked about."""
        known = self._beside
        if known is None or known.vectors is not vectors:
            known = self._beside = VectorFacts(vectors, len(self.read))
        return known

    def n_follow_ups(self, vectors: Vectors) -> Numbers:
        """Count, of the three entries after each, those that follow it up by words, by naming it, or by meaning."""
        return np.asarray((self.followed | self.beside(vectors).followed).sum(axis=1), np.int64)

    def word_rows(self, places: Numbers) -> Scores:
        """Give rows by which the words of some entries can be compared: ``(m, v), rows L2-normalised``."""
        read = [self.read[place] for place in places.tolist()]
        columns = {term: i for i, term in enumerate(dict.fromkeys(term for one in read for term in one.terms))}
        rows = np.zeros((len(read), len(columns)), np.float32)
        for row, one in zip(rows, read, strict=True):
            row[[columns[term] for term in one.terms if term not in stop_stems()]] = 1
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1), np.float32)

    @cached_property
    def n_refs(self) -> Numbers:
        """How many later entries refer to each: ``(n,)``."""
        n = len(self.read)
        pairs = np.unique(np.concatenate([self._named() @ (n, 1), self._quoted() @ (n, 1)]))
        return np.asarray(np.bincount(pairs // max(n, 1), minlength=n), np.int64)

    @cached_property
    def times_ms(self) -> Numbers:
        """When each was said last: ``(n,)``."""
        return np.array([entry.time_ms for entry in self.entries], np.int64)

    @cached_property
    def is_pinned(self) -> npt.NDArray[np.bool_]:
        """Which are never to be left out: ``(n,)``."""
        return np.array([entry.is_pinned for entry in self.entries], np.bool_)

    @cached_property
    def n_recalls(self) -> Numbers:
        """How often each was brought up again: ``(n,)``."""
        return np.array([entry.recalls for entry in self.entries], np.int64)

    @cached_property
    def n_tools(self) -> Numbers:
        """How many tools each took: ``(n,)``."""
        return np.array([len(entry.tools) for entry in self.entries], np.int64)

    @cached_property
    def n_bytes(self) -> Numbers:
        """About how long the text of each is: ``(n,)``, in UTF-8 bytes."""
        return np.array([one.n_bytes for one in self.read], np.int64)

    @cached_property
    def size_bytes(self) -> int:
        """About what all this takes in memory, the texts of the entries included."""
        return int(2 * self.n_bytes.sum() + _TERM_BYTES * self._n_terms.sum()) + _ENTRY_BYTES * len(self.read)

    @cached_property
    def success(self) -> Scores:
        """How each ended: ``(n,)``, 1 for done, 0.5 for unknown, 0.2 for failed."""
        return np.array([_SUCCESS[entry.outcome] for entry in self.entries], np.float32)

    def _named(self) -> Numbers:
        """Give the pairs of an entry and a later one that names it: ``(p, 2)``."""
        naming = [place for place, entry in enumerate(self.entries) if entry.refs]
        places = {entry.entry_id: place for place, entry in enumerate(self.entries)} if naming else {}
        named = [(places.get(entry_id, n), n) for n in naming for entry_id in self.entries[n].refs]
        return np.array([pair for pair in named if pair[0] < pair[1]], np.int64).reshape(-1, 2)

    def _quoted(self) -> Numbers:
        """Give the pairs of an entry and a later one that quotes an identifier first said in it: ``(p, 2)``."""
        ids, owners = self.identifiers.sorted()
        begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] ^ 1))
        counts = np.diff(begins, append=len(ids))
        firsts, n_holders = np.repeat(owners[begins], counts), np.repeat(counts, counts)
        is_rare = n_holders <= max(_LEAST_HOLDERS, _MOST_HOLDERS * len(self.read))
        return np.stack([firsts, owners], axis=1)[is_rare & (owners > firsts)]

    def _holders(self, term: np.uint32) -> tuple[Numbers, Scores]:
        indexed, tail = self.index.holders(term), self._tail.holders(term)
        return np.concatenate([indexed[0], tail[0]]), np.concatenate([indexed[1], tail[1]])


def _n_shared(entries: Sequence[Entry], known: Sequence[Entry]) -> int:
    """Count the entries at the beginning that are the same; what another host remembered is read anew each time."""
    n = min(len(entries), len(known))
    if list(entries[:n]) == list(known[:n]):  # nearly always, and told by their identity in no time
        return n
    return next(place for place, (one, other) in enumerate(zip(entries, known, strict=False)) if one != other)
