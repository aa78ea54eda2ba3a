"""A question of a data set, and what would answer it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.records import Scope


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with its evidence.

    Args:
        id: names it within the data set.
        scope: where it is asked.
        text: the question.
        category: as the data set has it.
        turns: ids of the turns that hold the answer.
        sessions: ids of the sessions those are in.
        asked_at: when it was asked, as ISO 8601; None: the data set does not say.
        is_counted: whether it is in the mean over the turn-level measures.
    """

    id: str
    scope: Scope
    text: str
    category: str
    turns: frozenset[str]
    sessions: frozenset[str]
    asked_at: str | None = None
    is_counted: bool = True
