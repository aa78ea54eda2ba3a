"""A user's profile: which of the facts that he stated hold, and which were superseded, and by what.

It follows from the stated facts alone, told in the order in which they were said: it does not matter when they became
known, and with a turn goes whatever it stated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple

from pipeline.condense.english import ENDED
from pipeline.condense.facts import MANY, folded
from pipeline.condense.values import TASTES

_MOST_CONFIDENCE: Final = 0.99
_SAID: Final = attrgetter(
    "time_ms", "index", "turn_id", "ordinal", "session_id", "subject", "key", "value", "confidence"
)
"""What statements are sorted by, ten times faster than by comparing them."""


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
    What is said to hold no longer is superseded by that, and nothing takes its place.
    """
    return tuple(fact for _, fact in _histories(stated))


class GrowingProfile:
    """What `resolve` tells of statements that come and go; only what they are about is told anew."""

    def __init__(self) -> None:
        self.facts: tuple[ProfileFact, ...] = ()
        self._stated: defaultdict[tuple[str, str, str], list[Stated]] = defaultdict(list)
        self._histories: dict[tuple[str, str, str], list[tuple[Stated, ProfileFact]]] = {}

    def change(self, gone: Iterable[Stated], new: Iterable[Stated]) -> None:
        """Take statements away, then add some: an edit may state the same again."""
        all_gone = set(gone)
        touched = {_slot(one) for one in all_gone}
        for slot in touched:
            self._stated[slot] = [one for one in self._stated[slot] if one not in all_gone]
        for one in new:
            touched.add(slot := _slot(one))
            self._stated[slot].append(one)
        for slot in touched:
            self._histories[slot] = _histories(self._stated[slot])
            if not self._stated[slot]:
                del self._stated[slot], self._histories[slot]
        if touched:
            found = [begun for histories in self._histories.values() for begun in histories]
            self.facts = tuple(fact for _, fact in sorted(found, key=lambda begun: _SAID(begun[0])))


def _histories(stated: Iterable[Stated]) -> list[tuple[Stated, ProfileFact]]:
    """Give each fact with the statement it begins with, in that order."""
    begun: list[Stated] = []
    facts: list[ProfileFact] = []
    said: list[dict[Evidence, None]] = []
    current: dict[tuple[str, str, str], int] = {}
    for one in sorted(stated, key=_SAID):
        slot, evidence = _slot(one), Evidence(one.session_id, one.turn_id)
        known = current.get(slot)
        if one.key.startswith(ENDED):
            if known is not None and folded(facts[known].value) == folded(one.value):
                facts[known] = replace(facts[current.pop(slot)], superseded_by=evidence)
            continue
        if known is not None and _is_same(facts[known], one):
            facts[known] = _said_again(facts[known], one)
            said[known][evidence] = None
            continue
        if known is not None:
            facts[known] = replace(facts[known], superseded_by=evidence)
        current[slot] = len(facts)
        begun.append(one)
        said.append({evidence: None})
        facts.append(
            ProfileFact(
                subject=one.subject,
                key=one.key,
                value=one.value,
                confidence=one.confidence,
                evidence=(),
                valid_from_ms=one.time_ms,
            )
        )
    told = [replace(fact, evidence=tuple(turns)) for fact, turns in zip(facts, said, strict=True)]
    return list(zip(begun, told, strict=True))


def _slot(one: Stated) -> tuple[str, str, str]:
    key = one.key.removeprefix(ENDED)
    if key in TASTES:
        return one.subject, "taste", folded(one.value)
    return one.subject, key, folded(one.value) if key in MANY else ""


def _is_same(fact: ProfileFact, one: Stated) -> bool:
    return fact.key == one.key and folded(fact.value) == folded(one.value)


def _said_again(fact: ProfileFact, one: Stated) -> ProfileFact:
    both = 1 - (1 - fact.confidence) * (1 - one.confidence)
    return replace(fact, confidence=round(min(_MOST_CONFIDENCE, both), 4))
