"""Telling sessions that a program holds with itself from those a person takes part in.

A session is automated when it says so: its `source` is one of `AUTOMATED_SOURCES`, or `automated` is true. Or when it
goes fast, more than 60 turns an hour over its span, and nothing in it looks like a person. A lively chat runs at
several turns a minute, so speed alone does not decide: a person reads before answering, each time another while. The
pauses before the turns of the role `user` look human when there are at least two, at least half of them last two
seconds or more, and their standard deviation is at least a quarter of their mean; a program's pauses are short or
all alike. Times that an importer made up (`time_from` in a turn's metadata) count as no times.

Source: sources, rate and the factor by which such sessions are demoted: the PraisonAI session recall documentation.
Why whole numbers only: the verdict must not depend on the order in which turns came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

AUTOMATED_SOURCES: Final = frozenset({"scheduled", "automated", "cron", "system", "batch"})
TURNS_PER_HOUR: Final = 60
_FEWEST_TURNS: Final = 4
_HOUR_MS: Final = 3_600_000
_FEWEST_PAUSES: Final = 2
_READING_MS: Final = 2_000


class Pace(NamedTuple):
    """How fast a session goes: its timed turns, and the pauses (milliseconds) before those of a user.

    ``n_long`` counts the pauses a person would need; ``total_ms`` and ``squares`` sum them up and their squares.
    """

    n_turns: int = 0
    first_ms: int = 0
    last_ms: int = 0
    n_pauses: int = 0
    n_long: int = 0
    total_ms: int = 0
    squares: int = 0

    def then(self, time_ms: int, role: str) -> Pace:
        """Add the next turn, in the session's order."""
        n_turns, first_ms, last_ms, n_pauses, n_long, total_ms, squares = self
        if not n_turns:
            return Pace(1, time_ms, time_ms)
        if role == "user":
            pause_ms = min(time_ms - last_ms, _HOUR_MS)  # a night says no more than an hour, and sums stay small
            n_pauses += 1
            n_long += pause_ms >= _READING_MS
            total_ms += pause_ms
            squares += pause_ms**2
        return Pace(n_turns + 1, first_ms, time_ms, n_pauses, n_long, total_ms, squares)

    def is_fast(self) -> bool:
        """Tell whether there are more turns to the hour than a quiet chat has."""
        span_ms = self.last_ms - self.first_ms
        return self.n_turns >= _FEWEST_TURNS and 0 < span_ms * TURNS_PER_HOUR < self.n_turns * _HOUR_MS

    def looks_human(self) -> bool:
        """Tell whether the pauses are those of somebody who reads."""
        if self.n_pauses < _FEWEST_PAUSES or 2 * self.n_long < self.n_pauses:
            return False
        spread = self.n_pauses * self.squares - self.total_ms**2  # the variance times the squared number of pauses
        return 16 * spread >= self.total_ms**2


def is_automated(facts: Mapping[str, Any], pace: Pace) -> bool:
    """Decide by what a session says about itself, then by its pace."""
    if str(facts.get("source", "")).lower() in AUTOMATED_SOURCES or facts.get("automated") is True:
        return True
    return pace.is_fast() and not pace.looks_human()
