"""What session memory is made of: exchanges, each an objective and what came of it.

An exchange is a user's turn with the turns that answer it, or what an agent remembered itself; both are turns in the
scope's ledger, so an entry is found, edited and forgotten as turns are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How an exchange ended."""

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One exchange of a session.

    Args:
        entry_id: the id of its first turn; unique in its session.
        session_id: the session it is of.
        time_ms: when its last turn was said, epoch milliseconds.
        objective: what was asked for.
        conclusion: what came of it; "" while it is not answered.
        key_results: findings worth keeping, most important first.
        tools: names of the tools that were called, in order, once for each call.
        n_errors: of those calls, how many failed.
        outcome: how it ended.
        recalls: how often it was brought up again, as its publisher counts.
        refs: ids of earlier entries of the session that it refers to.
        is_pinned: never to be left out while there is room.
        turn_offsets: its turns in the ledger, in their order.
    """

    entry_id: str
    session_id: str
    time_ms: int
    objective: str
    conclusion: str
    key_results: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    n_errors: int = 0
    outcome: Outcome = Outcome.UNKNOWN
    recalls: int = 0
    refs: tuple[str, ...] = ()
    is_pinned: bool = False
    turn_offsets: tuple[int, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All that was said: the objective, the conclusion, the key results."""
        return (self.objective, self.conclusion, *self.key_results)
