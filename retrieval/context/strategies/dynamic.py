"""What helps with the objective at hand: relevant exchanges whatever their age, and no two that say the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.words import Scores
from retrieval.context.layout.answer import Decisions
from retrieval.context.layout.wording import LEAST_TOKENS, exchanges_within
from retrieval.context.protocol import Asked, Decision, Offer, Piece, facts_of, room_of
from retrieval.context.ranking import diversity
from retrieval.context.ranking.relevance import Relevance, is_on_last_topic, relevance

_RELEVANCE: Final = 0.55
_TOPIC: Final = 0.15
_RECENCY: Final = 0.15
_MILESTONE: Final = 0.15
_LEFT_OF_AN_HOUR: Final = 0.995
"""Weights and decay are those of the specification."""
_HOUR_MS: Final = 3_600_000
_MILESTONE_REFS: Final = 2
_FEWEST_COMPARED: Final = 64
_MOST_COMPARED: Final = 384
_FAINT_COSINE: Final = 0.1
"""Where something is relevant, what is this near may be as well; below it, a likeness is chance."""


class Dynamic:
    """Keeps what is relevant, on the topic of the last exchange, recent, or a milestone; in the order of time.

    With an objective that the session knows nothing about, only the latest exchange is kept. Without one, the latest
    exchange stands for it: what a session goes on with is mostly what it was about.
    """

    name: Final = "dynamic"

    def offer(self, asked: Asked) -> Offer:
        """Offer exchanges by what each adds for its length; changes nothing."""
        if not asked.entries:
            return Offer(pieces=())
        scored = _scored(asked)
        tried, repeats = scored.candidates(room_of(asked))
        order, likeness = diversity.in_order(tried, scored.scores, scored.facts, asked.vectors, room_of(asked))
        pieces = [scored.piece(asked, place, float(alike)) for place, alike in zip(order, likeness, strict=True)]
        is_left = np.ones(len(asked.entries), np.bool_)
        is_left[order] = False
        left = np.flatnonzero(is_left)
        return Offer(pieces=pieces, left=Decisions(len(left), lambda i: scored.left(asked, int(left[i]), repeats)))


@dataclass(frozen=True, slots=True)
class _Scored:
    """The entries' scores and what they are made of, each array ``(n,)``."""

    scores: Scores
    facts: EntryFacts
    found: Relevance
    on_topic: npt.NDArray[np.bool_]
    hours: Scores
    is_milestone: npt.NDArray[np.bool_]
    is_useful: npt.NDArray[np.bool_]

    def candidates(self, room: int) -> tuple[list[int], dict[int, int]]:
        """Give the entries that may be of use, best first, and of those that repeat another, which."""
        by_score = np.lexsort((-np.arange(len(self.scores)), -self.scores))
        useful = by_score[self.is_useful[by_score]]
        most = min(max(room // LEAST_TOKENS, _FEWEST_COMPARED), _MOST_COMPARED)
        kept: dict[bytes, int] = {}
        repeats: dict[int, int] = {}
        for place in useful.tolist():
            first = kept.setdefault(self.facts.read[place].digest, place)
            if first != place:
                repeats[place] = first
            elif len(kept) >= most:
                break
        return list(kept.values()), repeats

    def piece(self, asked: Asked, place: int, alike: float) -> Piece:
        """Offer one."""
        entry = asked.entries[place]
        text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
        return Piece(
            section="",
            place=(place,),
            text=text,
            shorter=tuple(shorter),
            entry_ids=(entry.entry_id,),
            score=float(self.scores[place]),
            why=f"{self._why(place)}; {alike:.2f} like what is there",
        )

    def left(self, asked: Asked, place: int, repeats: dict[int, int]) -> Decision:
        """Say why one is not offered."""
        if place in repeats:
            why = f"says the same as {asked.entries[repeats[place]].entry_id}"
        elif not self.is_useful[place]:
            why = f"has nothing to do with the objective: {self._why(place)}"
        else:
            why = f"others help more for their length: {self._why(place)}"
        return Decision(
            entry_ids=(asked.entries[place].entry_id,), is_kept=False, score=float(self.scores[place]), why=why
        )

    def _why(self, place: int) -> str:
        found = self.found
        sources = f"words {found.by_words[place]:.2f}, meaning {found.by_meaning[place]:.2f}"
        reasons = [f"relevance {found.scores[place]:.2f} ({sources})"]
        reasons += ["on the last topic"] * bool(self.on_topic[place])
        reasons += [f"{self.hours[place]:.0f} h old"]
        reasons += ["milestone"] * bool(self.is_milestone[place])
        return ", ".join(reasons)


def _scored(asked: Asked) -> _Scored:
    facts = facts_of(asked)
    found = relevance(asked if asked.objective is not None else _going_on(asked), facts)
    on_topic = np.zeros(len(asked.entries), np.bool_)
    if asked.settings.enable_semantic_clustering:
        on_topic = is_on_last_topic(asked, facts)
    hours = np.asarray((asked.now_ms - facts.times_ms).clip(min=0) / _HOUR_MS, np.float32)
    milestone = is_milestone(facts)
    scores = _RELEVANCE * found.scores + _TOPIC * on_topic + _RECENCY * _LEFT_OF_AN_HOUR**hours
    return _Scored(
        np.asarray(scores + _MILESTONE * milestone, np.float32),
        facts,
        found,
        on_topic,
        hours,
        milestone,
        _is_useful(asked, facts, found),
    )


def _going_on(asked: Asked) -> Asked:
    last = asked.entries[-1]
    vector = asked.vectors[-1] if len(asked.vectors) == len(asked.entries) else None
    return replace(asked, objective=f"{last.objective}\n{last.conclusion}", objective_vector=vector)


def is_milestone(facts: EntryFacts) -> npt.NDArray[np.bool_]:
    """Tell which entries later ones build on: pinned, or referred to more than once; ``(n,)``."""
    return facts.is_pinned | (facts.n_refs >= _MILESTONE_REFS)


def _is_useful(asked: Asked, facts: EntryFacts, found: Relevance) -> npt.NDArray[np.bool_]:
    n = len(asked.entries)
    if asked.objective is None:
        return np.ones(n, np.bool_)
    is_last = np.zeros(n, np.bool_)
    is_last[-1] = True
    if not found.is_any_relevant:
        return is_last
    has_something = (found.by_words > 0) | (found.by_meaning > _FAINT_COSINE)
    return np.asarray(has_something | is_last | facts.is_pinned | _is_unread(asked, facts), np.bool_)


def _is_unread(asked: Asked, facts: EntryFacts) -> npt.NDArray[np.bool_]:
    """Tell which entries are not embedded yet where others are: nothing speaks against them."""
    n = len(asked.entries)
    if asked.objective_vector is None or len(asked.vectors) != n:
        return np.zeros(n, np.bool_)
    return ~facts.beside(asked.vectors).is_embedded
