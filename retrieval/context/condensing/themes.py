"""The themes of a session: groups of its exchanges, but for the last few, which are shown as they are.

Readers and workers ask here, so that both find the same groups, name them alike and know their summaries by the same
digests. Owns no file. What a reader found out is kept in this process, and goes on from there when exchanges follow.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.condense import summaries
from pipeline.condense.clustering import Clustering
from pipeline.condense.summaries import Member
from pipeline.condense.terms import terms
from pipeline.records import Scope
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.words import Numbers

FloatRows = npt.NDArray[np.float32]
NO_VECTORS: Final[FloatRows] = np.zeros((0, 0), dtype=np.float32)
LookUp = Callable[[Sequence[bytes]], Mapping[bytes, str]]
"""Gives those of the summaries, by digest, that are stored and may be used."""

Beat = Callable[[], None]

SEMANTIC_VERBATIM: Final = 4
"""The last exchanges that strategy `semantic` shows as they are. Source: its specification."""
IMMEDIATE: Final = 3
SHORT_TERM: Final = 10
"""The last exchanges of `hierarchical` that are shown as they are, and those before that are listed."""
VERBATIM: Final = (IMMEDIATE + SHORT_TERM, SEMANTIC_VERBATIM)
"""How many of the last exchanges are in no group, for each strategy; the most first."""
_FINGERPRINT: Final = 4
_SUMMARIES_KEPT: Final = 4_096
_BETWEEN_BEATS: Final = 64
_MOST_KEPT: Final = 512


def _unheard() -> None:
    """Beat for nobody."""


@dataclass(frozen=True, slots=True)
class Group:
    """Exchanges about one thing.

    Args:
        places: of its exchanges in the session, ascending.
        words: that name what it is about, the most telling first.
        digest: its summary is known by.
    """

    places: tuple[int, ...]
    words: tuple[str, ...]
    digest: bytes


@dataclass(frozen=True)
class Groups:
    """Groups that no exchange is twice in."""

    groups: tuple[Group, ...] = ()

    @cached_property
    def places(self) -> Numbers:
        """The places of all of them, group after group: ``(n,)``."""
        return np.array([place for group in self.groups for place in group.places], np.int64)

    @cached_property
    def starts(self) -> Numbers:
        """Where in `places` each one's begin: ``(m,)``."""
        lengths = np.array([len(group.places) for group in self.groups], np.int64)
        return np.asarray(np.cumsum(lengths) - lengths, np.int64)

    @cached_property
    def last(self) -> Numbers:
        """The last place of each: ``(m,)``."""
        return np.array([group.places[-1] for group in self.groups], np.int64)


class Grouping:
    """The groups of a session's first exchanges, as many as it was given; for one thread at a time."""

    def __init__(self) -> None:
        self._clustering = Clustering(0)
        self._entries: list[Entry] = []
        self._fingerprint: FloatRows = np.zeros((0, 0), dtype=np.float32)
        self._groups: dict[int, tuple[int, Group]] = {}
        self._found = Groups()

    def groups(self, entries: Sequence[Entry], vectors: FloatRows, beat: Beat = _unheard) -> Groups:
        """Group exchanges, in the order in which the groups were last spoken of.

        Args:
            entries: oldest first.
            vectors: ``(n, d) float32``, a row per entry, L2-normalised; zeros, or none at all: not embedded.
            beat: called now and then; what it raises ends the work, and the next call starts anew.
        """
        if len(vectors) != len(entries):
            vectors = np.zeros((len(entries), 0), dtype=np.float32)
        fingerprint = np.array(vectors[:, :_FINGERPRINT])
        n_known = len(self._entries)
        if not self._is_continued(entries, fingerprint):
            self._clustering, self._groups, n_known = Clustering(vectors.shape[1]), {}, 0
        elif n_known == len(entries):
            return self._found
        self._entries = []
        for start in range(n_known, len(entries), _BETWEEN_BEATS):
            beat()
            block = slice(start, start + _BETWEEN_BEATS)
            self._clustering.add(vectors[block], [terms("\n".join(entry.texts)) for entry in entries[block]])
        self._entries, self._fingerprint = list(entries), fingerprint
        found = [self._group(number, members) for number, members in self._clustering.members.items()]
        self._found = Groups(tuple(sorted(found, key=lambda group: group.places[-1])))
        return self._found

    def _is_continued(self, entries: Sequence[Entry], fingerprint: FloatRows) -> bool:
        n_known = len(self._entries)
        if not n_known or len(entries) < n_known or fingerprint.shape[1] != self._fingerprint.shape[1]:
            return False
        is_same = self._entries == list(entries[:n_known])  # told by their identity in no time
        return is_same and bool((fingerprint[:n_known] == self._fingerprint).all())

    def _group(self, number: int, members: list[int]) -> Group:
        known = self._groups.get(number)
        if known is not None and known[0] == len(members):
            return known[1]
        entries = [self._entries[place] for place in members]
        group = Group(tuple(members), _as_written(self._clustering.theme(number), entries), digest_of(entries))
        self._groups[number] = len(members), group
        return group


class KeptGroupings:
    """The groupings of the sessions asked about lately; safe to share between threads.

    Args:
        max_entries: exchanges in all of them together, at most, but always those of the last.
        max_kept: groupings, at most.
    """

    def __init__(self, max_entries: int, max_kept: int = _MOST_KEPT) -> None:
        self._max_entries = max_entries
        self._max_kept = max_kept
        self._n_entries = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Scope, str, int], _Kept] = OrderedDict()

    def groups(
        self, key: tuple[Scope, str, int], entries: Sequence[Entry], vectors: FloatRows, beat: Beat = _unheard
    ) -> Groups:
        """Group exchanges, going on from those grouped before under this key."""
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._n_entries -= kept.n_entries
            if not entries:
                return Groups()
            kept = self._kept[key] = kept or _Kept()
            kept.n_entries = len(entries)
            self._n_entries += kept.n_entries
            while len(self._kept) > self._max_kept or (len(self._kept) > 1 and self._n_entries > self._max_entries):
                self._n_entries -= self._kept.popitem(last=False)[1].n_entries
        with kept.lock:
            return kept.grouping.groups(entries, vectors, beat)


class _Kept:
    """A grouping that is kept, and who works on it."""

    def __init__(self) -> None:
        self.grouping = Grouping()
        self.lock = threading.Lock()
        self.n_entries = 0


class Summaries:
    """Summaries of groups: those stored, else made here, each once; safe to share between threads."""

    def __init__(self) -> None:
        self._made: dict[bytes, str] = {}
        self._lock = threading.Lock()

    def of(self, groups: Sequence[Group], entries: Sequence[Entry], stored: LookUp) -> list[str]:
        """Give a summary of each group; "" where none can be as short as it has to."""
        found = stored([group.digest for group in groups])
        return [found[group.digest] if group.digest in found else self._extracted(group, entries) for group in groups]

    def _extracted(self, group: Group, entries: Sequence[Entry]) -> str:
        with self._lock:
            known = self._made.get(group.digest)
        if known is not None:
            return known
        made = extracted(summaries.source([member_of(entries[place]) for place in group.places]))
        with self._lock:
            if len(self._made) >= _SUMMARIES_KEPT:
                del self._made[next(iter(self._made))]
            self._made[group.digest] = made
        return made


def extracted(text: str) -> str:
    """Summarise the exchanges of a group without a model: their most telling sentences, word for word."""
    from pipeline.summarise.extractive import ExtractiveInvoker  # noqa: PLC0415 - a tenth of a second for most readers

    invoker = ExtractiveInvoker()
    return summaries.shortened(text, lambda told, n: invoker("", told, max_tokens=n).text) if text.strip() else ""


def digest_of(entries: Sequence[Entry]) -> bytes:
    """Give what a summary of some exchanges of a session is known by."""
    return summaries.digest(entries[0].session_id, [member_of(entry) for entry in entries])


def member_of(entry: Entry) -> Member:
    """Give an exchange as a summary tells it."""
    lines = [("user", entry.objective), ("assistant", entry.conclusion)]
    lines += [("assistant", text) for text in entry.key_results]
    return Member(entry.entry_id, tuple(lines), entry.turn_offsets)


def is_current(model_id: str) -> bool:
    """Tell whether a stored summary is one that would be made today: another release chose other sentences."""
    from pipeline.summarise.extractive import MODEL  # noqa: PLC0415 - as above

    return model_id == MODEL or not model_id.startswith(MODEL.rpartition("-")[0])


def _as_written(words: Sequence[str], entries: Sequence[Entry]) -> tuple[str, ...]:
    """Give words as they stand in some exchanges, where they do so in the plural alone."""
    text = "\n".join(text for entry in entries for text in entry.texts).casefold()
    found = [
        re.search(rf"\b{re.escape(word)}\b", text) or re.search(rf"\b{re.escape(word)}e?s\b", text) for word in words
    ]
    return tuple(match[0] if match else word for match, word in zip(found, words, strict=True))
