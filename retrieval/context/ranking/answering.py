"""How likely each entry of a session answers the objective, by the ranking model of profile `fused`.

The entries that share most words with it, and those nearest in meaning, are read again with what stands around them:
their tokens, speakers, dates. Only this session's turns are candidates. An entry that was not read, or that no ledger
of this host has, has no chance of its own; see `relevance` for what decides then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.ledger.reads import Located
from retrieval import passage_chances, passage_search
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.words import Scores
from retrieval.context.protocol import Compared
from retrieval.embedded_question import Asked
from retrieval.fused.model import Models
from retrieval.passage_search import Sought
from retrieval.reader import View
from retrieval.trace_search import Nearest

_N_READ: Final = 30
"""Entries by words, and as many by meaning."""


def chances(
    view: View,
    asked: Asked,
    entries: Sequence[Entry],
    compared: Compared,
    *,
    models: Models,
    asked_ms: int,
) -> Scores | None:
    """Tell how likely each entry is to answer, ``(n,)`` in [0, 1]; None where no candidate is embedded.

    Args:
        view: the scope.
        asked: the objective.
        entries: the session's.
        compared: with the objective.
        models: those of profile `fused`.
        asked_ms: when it is asked.

    Raises:
        ShardError: the ledger is damaged.
    """
    places = sorted({*_best(compared.by_words), *_best(compared.by_meaning)})
    offsets = [offset for place in places for offset in entries[place].turn_offsets]
    if not offsets:
        return None
    nothing_near: Nearest[Located] = Nearest([], np.empty(0, np.float32))
    found = passage_search.find(
        view,
        asked,
        asked_ms=asked_ms,
        sought=Sought(nothing_near, offsets),
        with_summaries=models.needs_summaries,
    )
    if not len(found.passages.candidates):
        return None
    place_of = _places_around(entries, places)
    likely = np.zeros(len(entries), np.float32)
    each = passage_chances.chances(found, models).tolist()
    for row, chance in zip(found.passages.candidates.tolist(), each, strict=True):
        place = place_of.get(found.places[row].turn.turn_offset)
        if place is not None:
            likely[place] = max(likely[place], chance)
    return likely


def _places_around(entries: Sequence[Entry], places: Sequence[int]) -> dict[int, int]:
    """Map the turns of some entries, and of those beside them, to their entries: a candidate is no farther away."""
    near = {place + step for place in places for step in (-1, 0, 1) if 0 <= place + step < len(entries)}
    return {offset: place for place in near for offset in entries[place].turn_offsets}


def _best(scores: Scores) -> list[int]:
    first = np.argpartition(-scores, _N_READ)[:_N_READ] if len(scores) > _N_READ else np.arange(len(scores))
    return [int(place) for place in first[scores[first] > 0]]
