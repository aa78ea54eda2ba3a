"""How a session goes, and how much of its past is kept for it: conservative, balanced or aggressive.

Each entry gives a verdict, read from it and the few before it:

- *engagement*: the mean of how many entries follow up the one before, how long objectives are, how many come within
  five minutes;
- *complexity*: the most of tools called, tokens, identifiers; one of them is enough to make details matter;
- *topic*: whether the last entry goes on with what the ones before it were about.

`RULES` turns the three into a level. Two equal verdicts in a row settle it: the level of a session is the latest
verdict that was given twice running, so a single odd entry never switches it and neither does a verdict that comes
and goes.

Why nothing is stored: the verdicts follow from the entries, so reading back from the end until two agree gives what
counting from the start would; it takes the last few entries, however long the session.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import fmean
from typing import Final

from pipeline import tokens
from retrieval.context.condensing import protected
from retrieval.context.condensing.compression import MAX_CHARS, telling_words
from retrieval.context.entries.entry import Entry


class Degree(StrEnum):
    """How much of something there is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Topic(StrEnum):
    """Whether an entry goes on with what was talked about."""

    KEPT = "kept"
    CHANGED = "changed"


class Level(StrEnum):
    """How much is kept."""

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"


SHARES: Final[Mapping[Level, float]] = {Level.CONSERVATIVE: 0.8, Level.BALANCED: 0.5, Level.AGGRESSIVE: 0.25}
"""The share of the text that a level keeps."""

_LOW, _MEDIUM, _HIGH = Degree.LOW, Degree.MEDIUM, Degree.HIGH

RULES: Final[Mapping[tuple[Degree, Degree, Topic], Level]] = {
    # engagement, complexity, topic
    (_LOW, _LOW, Topic.KEPT): Level.AGGRESSIVE,
    (_LOW, _LOW, Topic.CHANGED): Level.AGGRESSIVE,
    (_LOW, _MEDIUM, Topic.KEPT): Level.BALANCED,
    (_LOW, _MEDIUM, Topic.CHANGED): Level.AGGRESSIVE,
    (_LOW, _HIGH, Topic.KEPT): Level.BALANCED,
    (_LOW, _HIGH, Topic.CHANGED): Level.BALANCED,
    (_MEDIUM, _LOW, Topic.KEPT): Level.BALANCED,
    (_MEDIUM, _LOW, Topic.CHANGED): Level.AGGRESSIVE,
    (_MEDIUM, _MEDIUM, Topic.KEPT): Level.BALANCED,
    (_MEDIUM, _MEDIUM, Topic.CHANGED): Level.BALANCED,
    (_MEDIUM, _HIGH, Topic.KEPT): Level.CONSERVATIVE,
    (_MEDIUM, _HIGH, Topic.CHANGED): Level.BALANCED,
    (_HIGH, _LOW, Topic.KEPT): Level.BALANCED,
    (_HIGH, _LOW, Topic.CHANGED): Level.BALANCED,
    (_HIGH, _MEDIUM, Topic.KEPT): Level.CONSERVATIVE,
    (_HIGH, _MEDIUM, Topic.CHANGED): Level.BALANCED,
    (_HIGH, _HIGH, Topic.KEPT): Level.CONSERVATIVE,
    (_HIGH, _HIGH, Topic.CHANGED): Level.CONSERVATIVE,
}
"""Detail is kept where people are engaged, where matters are complex, and while the topic lasts."""

INITIAL: Final = Level.BALANCED
"""The level until two verdicts agree."""

_WINDOW: Final = 4
_MOST_VERDICTS: Final = 200
"""Verdicts looked at; in a session that went to and fro for longer, the level is `INITIAL`."""
_SOON_MS: Final = 5 * 60_000
_LONG_OBJECTIVE_WORDS, _MANY_TOKENS, _MANY_IDENTIFIERS = 25, 300, 4
_MANY_TOOLS_LOG2: Final = 4
_SHARED_WORDS: Final = 0.2
_IDENTIFIERS: Final = frozenset({"code", "address", "id"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an entry says about how much to keep."""

    engagement: Degree
    complexity: Degree
    topic: Topic

    @property
    def level(self) -> Level:
        """The level by the rules."""
        return RULES[self.engagement, self.complexity, self.topic]

    def __str__(self) -> str:
        return f"engagement {self.engagement}, complexity {self.complexity}, topic {self.topic}"


def level_of(entries: Sequence[Entry]) -> Level:
    """Tell the level a session has settled on, its entries oldest first."""
    ends = range(len(entries), max(len(entries) - _MOST_VERDICTS, 0), -1)
    return settled(verdict(entries[max(0, end - _WINDOW - 1) : end]).level for end in ends)


def settled(newest_first: Iterable[Level]) -> Level:
    """Give the latest level that two verdicts in a row agree on; `INITIAL` when none did yet."""
    return next((later for later, earlier in itertools.pairwise(newest_first) if later == earlier), INITIAL)


def verdict(entries: Sequence[Entry]) -> Verdict:
    """Judge the last of some entries, oldest first; only the last few are looked at."""
    before = entries[-_WINDOW - 1 : -1]
    window = entries[-_WINDOW:]
    pairs = list(itertools.pairwise(entries[-_WINDOW - 1 :]))
    return Verdict(_degree(_engagement(window, pairs)), _degree(_complexity(window)), _topic(entries[-1], before))


def _engagement(window: Sequence[Entry], pairs: Sequence[tuple[Entry, Entry]]) -> float:
    follow_ups = _share(_goes_on_with(later, [earlier]) for earlier, later in pairs)
    length = min(1.0, fmean(_reading(entry).n_objective_words for entry in window) / _LONG_OBJECTIVE_WORDS)
    pace = _share(later.time_ms - earlier.time_ms <= _SOON_MS for earlier, later in pairs)
    return fmean((follow_ups, length, pace))


def _complexity(window: Sequence[Entry]) -> float:
    tools = math.log2(1 + fmean(len(entry.tools) for entry in window)) / _MANY_TOOLS_LOG2
    size = fmean(_reading(entry).n_tokens for entry in window) / _MANY_TOKENS
    identifiers = fmean(_reading(entry).n_identifiers for entry in window) / _MANY_IDENTIFIERS
    return min(1.0, max(tools, size, identifiers))


def _topic(last: Entry, before: Sequence[Entry]) -> Topic:
    return Topic.KEPT if not before or _goes_on_with(last, before) else Topic.CHANGED


def _goes_on_with(entry: Entry, before: Sequence[Entry]) -> bool:
    """Tell whether an entry refers to earlier ones or shares words with them; "why?" alone always goes on."""
    if any(earlier.entry_id in entry.refs for earlier in before):
        return True
    asked = _reading(entry).objective_words
    known = frozenset().union(*(_reading(earlier).words for earlier in before))
    return not asked or len(asked & known) >= _SHARED_WORDS * min(len(asked), len(known))


def _degree(value: float) -> Degree:
    return Degree.LOW if value < 1 / 3 else Degree.MEDIUM if value < 2 / 3 else Degree.HIGH


def _share(claims: Iterable[bool]) -> float:
    listed = list(claims)
    return fmean(listed) if listed else 0.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is counted of one entry."""

    words: frozenset[str]
    objective_words: frozenset[str]
    n_objective_words: int
    n_tokens: int
    n_identifiers: int


@lru_cache(maxsize=512)
def _reading(entry: Entry) -> _Reading:
    whole = "\n".join(entry.texts)
    return _Reading(
        words=frozenset(telling_words(whole)),
        objective_words=frozenset(telling_words(entry.objective)),
        n_objective_words=len(entry.objective.split()),
        n_tokens=tokens.count(whole),
        n_identifiers=sum(span.kind in _IDENTIFIERS for span in protected.spans(whole[:MAX_CHARS])),
    )
