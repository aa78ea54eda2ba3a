"""Ranking profile `keyword`: a session's score is the sum over its turns of what they hold of the query.

A turn scores 2 when it holds the whole query, stripped and in lower case, and 1 for each of the query's words that it
holds, be it in the middle of another word. A word that the query has twice counts twice. Lower case is Python's
``str.lower`` on both sides: ß stays ß, and é is found only as it was written, composed or not.

Source: the scoring of the PraisonAI cross-session recall documentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import apsw
import numpy as np

from retrieval.search.cards import Cards
from retrieval.search.index import Part, State
from retrieval.search.protocol import Limits
from retrieval.search.segment import Flags, Numbers, Segment
from retrieval.search.tail import Tail

WHOLE: Final = 2
DEMOTION: Final = 0.25
"""What an automated session's score is multiplied by."""
_SORTED_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Scored:
    """Some turns of a scope with what each scores, ``(n,)``, 0 for most."""

    turns: Segment | Tail
    scores: Numbers


def scored(connection: apsw.Connection, state: State, query: str, limits: Limits) -> list[Scored]:
    """Score the turns of a scope by what they hold of a query; parts where none does are left out."""
    needle = query.strip().lower()
    terms = Counter(needle.split())
    found = []
    for part in state.parts:
        scores = _scores(connection, part.turns, needle, terms) if len(part.turns) else None
        if scores is not None:
            is_allowed = allowed(part, limits, state.cards)
            found.append(Scored(part.turns, scores if is_allowed is None else scores * is_allowed))
    return found


def ranked(found: list[Scored], cards: Cards) -> Iterator[tuple[int, float]]:
    """Yield the sessions that score, with their score: highest first, then latest, then by id."""
    sums = np.zeros(len(cards.ranks))
    for part in found:
        sums += np.bincount(part.turns.sessions, weights=part.scores, minlength=len(sums))
    numbers = np.flatnonzero(sums)
    return in_order(numbers, sums[numbers] * np.where(cards.is_automated[numbers], DEMOTION, 1.0), cards)


def in_order(numbers: Numbers, scores: Numbers, cards: Cards) -> Iterator[tuple[int, float]]:
    """Yield sessions: highest score first, then latest, then by id; sorted as far as they are asked for."""
    is_left = np.ones(len(numbers), dtype=np.bool_)
    if len(numbers) > 2 * _SORTED_AT_ONCE:
        least = np.partition(scores, len(scores) - _SORTED_AT_ONCE)[len(scores) - _SORTED_AT_ONCE]
        is_left = scores < least
        yield from _sorted(numbers[~is_left], scores[~is_left], cards)
    yield from _sorted(numbers[is_left], scores[is_left], cards)


def _sorted(numbers: Numbers, scores: Numbers, cards: Cards) -> Iterator[tuple[int, float]]:
    order = np.lexsort((cards.ranks[numbers], -scores))
    return zip(numbers[order].tolist(), scores[order].tolist(), strict=True)


def best_of(found: list[Scored], session_no: int) -> Numbers:
    """List the offsets of a session's turns with its highest score."""
    offsets, scores = [], []
    for part in found:
        mine = part.turns.rows_of(session_no)
        offsets.append(part.turns.offsets[mine])
        scores.append(part.scores[mine])
    all_scores = np.concatenate(scores)
    return np.asarray(np.concatenate(offsets)[all_scores == all_scores.max()])


def allowed(part: Part, limits: Limits, cards: Cards) -> Flags | None:
    """Tell which turns count, ``(n,)``; None when all do."""
    turns, filters = part.turns, []
    if part.is_alive is not None:
        filters.append(part.is_alive)
    if limits.after_ms is not None:
        filters.append(turns.times_ms >= limits.after_ms)
    if limits.before_ms is not None:
        filters.append(turns.times_ms <= limits.before_ms)
    if limits.roles:
        filters.append(np.logical_or.reduce([turns.with_role(role) for role in limits.roles]))
    excluded = [cards.numbers[name] for name in limits.excluded if name in cards.numbers]
    if excluded:
        filters.append(np.isin(turns.sessions, excluded, invert=True))
    return np.logical_and.reduce(filters) if filters else None


def _scores(connection: apsw.Connection, turns: Segment | Tail, needle: str, terms: Counter[str]) -> Numbers | None:
    """Score turns, ``(n,) uint16``; None when no turn scores."""
    weights = [(term, times + (WHOLE if term == needle else 0)) for term, times in terms.items()]
    held = [(turns.holding(term, connection), weight) for term, weight in weights]
    if needle not in terms and all(flags is not None for flags, _ in held):
        held.append((turns.holding(needle, connection) if needle else None, WHOLE))
    scores: Numbers | None = None
    for flags, weight in held:
        if flags is not None:
            weighed = flags * np.uint16(weight)
            scores = weighed if scores is None else np.add(scores, weighed, out=scores)
    return scores
