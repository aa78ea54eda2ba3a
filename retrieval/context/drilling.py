"""Level by level from themes to exchanges: themes are ranked by the best of what is in them, and that is quoted.

Shared by the strategies that group what was said. Source: TaciTree's search, from the root of a topic to its leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from retrieval.context import tokens
from retrieval.context.entry_words import Scores
from retrieval.context.relevance import relevance
from retrieval.context.strategies.protocol import Asked, Piece, room_of
from retrieval.context.themes import Group
from retrieval.context.wording import LEAST_TOKENS, exchanges_within

MOST_THEMES: Final = 48
_MOST_QUOTED: Final = 64
_RECENT_SHARE: Final = 0.1


def scores(asked: Asked) -> Scores:
    """Score the exchanges by what is asked next, ``(n,)``; all 0 when the session knows nothing about it."""
    found = relevance(asked)
    return np.where(found.is_relevant, found.scores, 0).astype(np.float32)


def ranked(groups: Sequence[Group], relevant: Scores) -> list[tuple[float, Group]]:
    """Rank groups: by their most relevant exchange, and a little by how late they were spoken of; at most 48."""
    n = max(1, len(relevant))
    scored = [
        (float(relevant[list(group.places)].max()) + _RECENT_SHARE * (group.places[-1] + 1) / n, group)
        for group in groups
    ]
    scored.sort(key=lambda one: (-one[0], one[1].places[-1]))
    return scored[:MOST_THEMES]


def quoted(asked: Asked, places: Sequence[int], relevant: Scores, section: str) -> Iterator[Piece]:
    """Offer the relevant ones of some exchanges as they are, the most relevant first, while there may be room."""
    most = min(_MOST_QUOTED, room_of(asked) // LEAST_TOKENS + 1)
    best = sorted((place for place in places if relevant[place] > 0), key=lambda place: (-relevant[place], -place))
    for place in best[:most]:
        entry = asked.entries[place]
        text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
        yield Piece(
            section=section,
            place=(place, 1),
            text=text,
            shorter=tuple(shorter),
            entry_ids=(entry.entry_id,),
            score=float(relevant[place]),
            why=f"relevance {relevant[place]:.2f}, found in its theme",
        )


def within(pieces: Sequence[Piece], n_tokens: float) -> int:
    """Count the pieces, from the first on, that take about so many tokens together; at least one."""
    used, n = 0.0, 0
    for piece in pieces:
        used += tokens.count(piece.text)
        if n and used > n_tokens:
            break
        n += 1
    return n
