"""A user's profile: which of the facts that he stated hold, and which were superseded, and by what.

It follows from the stated facts alone, told in the order in which they were said: it does not matter when they became
known, and with a turn goes whatever it stated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pipeline.condense.facts import MANY, TASTES, folded

_MOST_CONFIDENCE: Final = 0.99


class Evidence(NamedTuple):
    """The turn that states a fact."""

    session_id: str
    turn_id: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stated:
    """A fact as a turn states it; sorted by when it was said.

    Args:
        time_ms: when the turn was said, epoch milliseconds; next, what sorts turns of one time.
        index: of the turn in its session.
        turn_id: of the turn.
        ordinal: of the fact in its turn.
        session_id: of the turn.
        subject: who says it of himself; "" where turns do not name their speaker.
        key: what it is about, such as ``residence``.
        value: what it is.
        confidence: how sure it is, in (0, 1].
    """

    time_ms: int
    index: int
    turn_id: str
    ordinal: int
    session_id: str
    subject: str
    key: str
    value: str
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFact:
    """A fact with its history.

    Args:
        subject: whose it is; "" where turns do not name their speaker.
        key: what it is about.
        value: what it is.
        confidence: how sure it is; grows when it is said again.
        evidence: the turns that state it, first said first.
        valid_from_ms: since when it is known to hold, epoch milliseconds.
        superseded_by: the turn that states what holds instead; None: it holds.
    """

    subject: str
    key: str
    value: str
    confidence: float
    evidence: tuple[Evidence, ...]
    valid_from_ms: int
    superseded_by: Evidence | None = None


def resolve(stated: Iterable[Stated]) -> tuple[ProfileFact, ...]:
    """Tell what holds and what held, oldest first.

    Of one thing the latest value counts, unless several may hold at a time (`MANY`); of a taste, whether it is liked.
    """
    facts: list[ProfileFact] = []
    current: dict[tuple[str, str, str], int] = {}
    for one in sorted(stated):
        slot, evidence = _slot(one), Evidence(one.session_id, one.turn_id)
        known = current.get(slot)
        if known is not None and _is_same(facts[known], one):
            facts[known] = _said_again(facts[known], one, evidence)
            continue
        if known is not None:
            facts[known] = replace(facts[known], superseded_by=evidence)
        current[slot] = len(facts)
        facts.append(
            ProfileFact(
                subject=one.subject,
                key=one.key,
                value=one.value,
                confidence=one.confidence,
                evidence=(evidence,),
                valid_from_ms=one.time_ms,
            )
        )
    return tuple(facts)


def _slot(one: Stated) -> tuple[str, str, str]:
    if one.key in TASTES:
        return one.subject, "taste", folded(one.value)
    return one.subject, one.key, folded(one.value) if one.key in MANY else ""


def _is_same(fact: ProfileFact, one: Stated) -> bool:
    return fact.key == one.key and folded(fact.value) == folded(one.value)


def _said_again(fact: ProfileFact, one: Stated, evidence: Evidence) -> ProfileFact:
    both = 1 - (1 - fact.confidence) * (1 - one.confidence)
    return replace(
        fact,
        confidence=round(min(_MOST_CONFIDENCE, both), 4),
        evidence=tuple(dict.fromkeys((*fact.evidence, evidence))),
    )
