"""The words of one entry, and an index of those of many.

Words are those of the ledger's full text, so English is stemmed and Chinese comes by the character; beside the
characters stand their pairs, which tell more.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.ledger import words
from pipeline.ledger.words import WordIds
from pipeline.scripts import UNSPACED
from retrieval.context.entries.entry import Entry
from retrieval.fused.asking import stop_stems

Scores = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

_MAX_CHARS: Final = 32_768
"""Of a text; the words of a longer one are those of its beginning."""
_SHARED_WORDS: Final = 2
_SHARED_PART: Final = 0.5
_UNSORTED: Final = 512
_LEAST_IDENTIFIER: Final = 4
_LOOKS_LIKE_ONE: Final = re.compile(r"[A-Za-z0-9][\w./:@#\\-]{2,255}", re.ASCII)
_IDENTIFIER: Final = re.compile(
    r"[A-Za-z][\w.-]{0,64}\d|\d[\w.-]{0,64}[A-Za-z]|\w[/\\_@:#]\w|[a-z][A-Z]|\d{5}|\w\.[A-Za-z]{2,5}$", re.ASCII
)
_IS_UNSPACED: Final = re.compile(UNSPACED)


class ReadEntry:
    """The words of one entry."""

    __slots__ = ("asked", "counts", "digest", "identifiers", "n_bytes", "n_words", "terms")

    def __init__(self, entry: Entry) -> None:
        asked = terms(entry.objective)
        text = "\n".join(entry.texts)
        listed = asked + terms(text[len(entry.objective) :])
        self.n_bytes = len(text.encode(errors="replace"))
        self.n_words = len(listed)
        self.counts = Counter(listed)
        self.terms = frozenset(self.counts)
        self.digest = hashlib.blake2b("\n".join(listed).encode(), digest_size=16).digest()
        """The same for entries that say the same, but for case, marks and endings."""
        self.asked = frozenset(_telling(asked))
        self.identifiers = frozenset(identifiers(text))

    def follows(self, earlier: ReadEntry) -> bool:
        """Tell whether it asks about what an earlier one says, and is not just the same again."""
        n_shared = len(self.asked & earlier.terms)
        is_about = n_shared >= _SHARED_WORDS or (n_shared > 0 and n_shared >= _SHARED_PART * len(self.asked))
        return is_about and self.terms != earlier.terms


class WordIndex:
    """For each word the entries that hold it, sorted by the word."""

    def __init__(self, read: Sequence[ReadEntry], first: int = 0) -> None:
        self.n = first + len(read)
        flat = [term for one in read for term in one.counts]
        ids = words.ids_of(flat)
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        owners = np.repeat(np.arange(first, self.n), [len(one.counts) for one in read])
        self._owners = owners[order].astype(np.int64)
        self._times = np.array([n for one in read for n in one.counts.values()], np.float32)[order]

    def covers(self, n_known: int, n: int) -> bool:
        """Tell whether it may be kept: nothing it holds has changed, and what it lacks is little."""
        return self.n <= n_known and n - self.n <= max(_UNSORTED, n // 8)

    def holders(self, term: np.uint32) -> tuple[Numbers, Scores]:
        """Give the entries that hold a word, and how often."""
        begin, end = np.searchsorted(self._ids, term, "left"), np.searchsorted(self._ids, term, "right")
        return self._owners[begin:end], self._times[begin:end]


class Identifiers:
    """What entries quote, as numbers.

    Args:
        read: all entries.
        known: those of the first of them.
    """

    def __init__(self, read: Sequence[ReadEntry], known: Identifiers | None = None) -> None:
        first: int = known.n if known else 0
        new = read[first:]
        self.n: int = len(read)
        self._ids = words.ids_of([one for entry in new for one in entry.identifiers])
        self._owners = np.repeat(np.arange(first, self.n), [len(entry.identifiers) for entry in new])
        if known:
            self._ids = np.concatenate([known._ids, self._ids])  # noqa: SLF001 - of its own class
            self._owners = np.concatenate([known._owners, self._owners])  # noqa: SLF001 - the same

    def before(self, n: int) -> Identifiers:
        """Give those of the first ``n`` entries."""
        kept = Identifiers(())
        kept.n, n_kept = n, int(np.searchsorted(self._owners, n))
        kept._ids, kept._owners = self._ids[:n_kept], self._owners[:n_kept]
        return kept

    def sorted(self) -> tuple[WordIds, Numbers]:
        """Give each identifier with each entry that holds it, sorted by both."""
        order = np.argsort(self._ids, kind="stable")
        return self._ids[order], np.asarray(self._owners[order], np.int64)


def terms(text: str) -> list[str]:
    """List a text's words in order, and with each character of a script without spaces the pair it begins."""
    listed = words.words(text[:_MAX_CHARS].encode(errors="replace").decode())
    if not _IS_UNSPACED.search(text):
        return listed
    pairs = [a + b for a, b in pairwise(listed) if _is_unspaced(a) and _is_unspaced(b)]
    return listed + pairs


def identifiers(text: str) -> set[str]:
    """Find what names one thing: paths, addresses, ticket numbers, names in code, long numbers."""
    listed = _LOOKS_LIKE_ONE.findall(text[:_MAX_CHARS])
    unusual = (one for one in listed if not (one.isalpha() and one[1:].islower()))  # most words are plain
    found = (one.rstrip(".:/-#@") for one in unusual)
    return {one.lower() for one in found if len(one) >= _LEAST_IDENTIFIER and _IDENTIFIER.search(one)}


def _telling(listed: Sequence[str]) -> list[str]:
    return [term for term in listed if term not in stop_stems() and not _is_unspaced(term)]


@functools.lru_cache(maxsize=8_192)
def _is_unspaced(term: str) -> bool:
    return len(term) == 1 and _IS_UNSPACED.match(term) is not None
