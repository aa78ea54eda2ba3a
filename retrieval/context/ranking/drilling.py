"""Level by level from themes to exchanges: themes are ranked by the best of what is in them, and that is quoted.

Shared by the strategies that group what was said. Source: TaciTree's search, from the root of a topic to its leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from pipeline import tokens
from retrieval.context.condensing.themes import Group, Groups
from retrieval.context.entries.words import Scores
from retrieval.context.layout.wording import exchanges_within
from retrieval.context.protocol import Asked, Piece, facts_of, room_of
from retrieval.context.ranking import lengths
from retrieval.context.ranking.relevance import relevance

LEFT: Final = "its theme comes after those that there may be room for"
_THEME_TOKENS: Final = 30
_FEWEST_THEMES: Final = 2
_MOST_QUOTED: Final = 64
_RECENT_SHARE: Final = 0.1


def scores(asked: Asked) -> Scores:
    """Score the exchanges by what is asked next, ``(n,)``; all 0 when the session knows nothing about it."""
    found = relevance(asked)
    return np.where(found.is_relevant, found.scores, 0).astype(np.float32)


def ranked(groups: Groups, relevant: Scores, room: float) -> list[tuple[float, Group]]:
    """Rank groups: by their most relevant exchange, and a little by how late they were spoken of.

    Args:
        groups: all of them.
        relevant: scores of the session's exchanges.
        room: tokens that there may be for themes: few more of them are given than could fit.
    """
    if not groups.groups:
        return []
    best = np.maximum.reduceat(relevant[groups.places], groups.starts)
    scored = best + _RECENT_SHARE * (groups.last + 1) / len(relevant)
    order = np.lexsort((groups.last, -scored))[: _FEWEST_THEMES + n_themes(room)]
    return [(float(scored[at]), groups.groups[at]) for at in order.tolist()]


def n_themes(room: float) -> int:
    """Count the themes that so many tokens may have room for, each with its summary; for others a line has to do."""
    return max(0, int(room // _THEME_TOKENS))


def summaries(asked: Asked, ranked: Sequence[tuple[float, Group]]) -> dict[Group, str]:
    """Summarise those of some groups that have more than one exchange."""
    many = [group for _, group in ranked if len(group.places) > 1]
    return dict(zip(many, asked.condensed.summaries(many, asked.entries), strict=True))


def quoted(asked: Asked, places: Sequence[int], relevant: Scores, section: str) -> Iterator[Piece]:
    """Offer the relevant ones of some exchanges as they are, the most relevant first, while there may be room."""
    wanted = np.asarray(places, dtype=np.int64)
    wanted = wanted[relevant[wanted] > 0]
    best_first = wanted[np.lexsort((-wanted, -relevant[wanted]))][:_MOST_QUOTED].tolist()
    for place in best_first[: lengths.n_that_fill(best_first, facts_of(asked), room_of(asked))]:
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


def n_tokens(pieces: Iterable[Piece]) -> int:
    """Count about how many tokens pieces take together, without the texts that are held back."""
    return sum(tokens.count((piece.text, *piece.shorter)[piece.n_held_back]) for piece in pieces)


def within(pieces: Sequence[Piece], n_tokens: float) -> int:
    """Count the pieces, from the first on, that take about so many tokens together; at least one."""
    used, n = 0.0, 0
    for piece in pieces:
        used += tokens.count(piece.text)
        if n and used > n_tokens:
            break
        n += 1
    return n
