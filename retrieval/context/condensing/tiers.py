"""The three tiers of a session's exchanges, and what is told of each: every exchange is in exactly one of them.

Told anew from the exchanges each time: there is nothing to move from tier to tier, so nothing that a kill could lose
or double on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.condense.terms import terms
from pipeline.records import from_epoch_ms
from retrieval.context.condensing.themes import IMMEDIATE, SHORT_TERM
from retrieval.context.entries.entry import Entry, Outcome

_TOPICS: Final = 5
_ORDER: Final = (Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN)
_NAMES: Final = {Outcome.DONE: "done", Outcome.FAILED: "failed", Outcome.UNKNOWN: "open"}


@dataclass(frozen=True, slots=True)
class Tiers:
    """The places of a session's exchanges, oldest first: long-term, then short-term, then immediate."""

    long_term: range
    short_term: range
    immediate: range


def tiers(n: int) -> Tiers:
    """Divide ``n`` exchanges: the last 3 are immediate, the 10 before short-term, all others long-term."""
    immediate = max(0, n - IMMEDIATE)
    short_term = max(0, immediate - SHORT_TERM)
    return Tiers(range(short_term), range(short_term, immediate), range(immediate, n))


@dataclass(frozen=True, slots=True)
class ShortTerm:
    """What was at hand lately.

    Args:
        timeframe: first and last day.
        objectives: what was asked for, oldest first.
        outcomes: how each ended.
        topics: words that most of it is about.
    """

    timeframe: str
    objectives: tuple[str, ...]
    outcomes: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LongTerm:
    """A theme of former times.

    Args:
        words: that name it.
        period: first and last day.
        learnings: what came of it, in short.
        progress: how many exchanges ended how.
        status: how the last one did.
    """

    words: tuple[str, ...]
    period: str
    learnings: str
    progress: str
    status: str


def short_term(entries: Sequence[Entry]) -> ShortTerm:
    """Tell what was at hand in some exchanges, oldest first."""
    found = Counter(term for entry in entries for term in terms(f"{entry.objective}\n{entry.conclusion}"))
    shared = sorted(((n, term) for term, n in found.items() if n > 1), key=lambda one: (-one[0], one[1]))
    return ShortTerm(
        timeframe=period(entries),
        objectives=tuple(entry.objective for entry in entries),
        outcomes=tuple(_NAMES[entry.outcome] for entry in entries),
        topics=tuple(term for _, term in shared[:_TOPICS]),
    )


def long_term(words: tuple[str, ...], entries: Sequence[Entry], learnings: str) -> LongTerm:
    """Tell of a theme from its exchanges, oldest first, and what came of them in short."""
    ended = Counter(entry.outcome for entry in entries)
    counted = [f"{ended[outcome]} {_NAMES[outcome]}" for outcome in _ORDER if ended[outcome]]
    is_known = len(ended) > 1 or Outcome.UNKNOWN not in ended
    n_exchanges = f"{len(entries)} exchange{'s' * (len(entries) > 1)}"
    return LongTerm(
        words=words,
        period=period(entries),
        learnings=learnings,
        progress=f"{n_exchanges} ({', '.join(counted)})" if is_known else n_exchanges,
        status=_NAMES[entries[-1].outcome] if is_known else "",
    )


def period(entries: Sequence[Entry]) -> str:
    """Give the first and the last day of some exchanges."""
    times = [entry.time_ms for entry in entries]
    first, last = (from_epoch_ms(time_ms).date().isoformat() for time_ms in (min(times), max(times)))
    return first if first == last else f"{first} to {last}"
