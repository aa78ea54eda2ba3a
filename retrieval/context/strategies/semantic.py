"""What was said, by theme: a summary of each group of exchanges, the last four exchanges as they are.

With an objective, themes are looked into: exchanges that help with it are quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from retrieval.context.condensing.themes import SEMANTIC_VERBATIM, Group
from retrieval.context.condensing.tiers import period
from retrieval.context.entries.words import Scores
from retrieval.context.layout.answer import Decisions
from retrieval.context.layout.wording import exchanges_within
from retrieval.context.protocol import Asked, Decision, Offer, Piece, room_of
from retrieval.context.ranking import drilling

THEMES: Final = "Earlier, by theme"
QUOTED: Final = "From earlier, about this"
LATEST: Final = "Latest"
_QUOTED_SHARE: Final = 0.7
"""Of the room, for what is quoted before the last exchanges and the themes have their turn."""


class Semantic:
    """Keeps the last exchanges, and of what was said before the themes."""

    name: Final = "semantic"

    def offer(self, asked: Asked) -> Offer:
        """Offer the last exchanges, themes, and what in them helps with the objective; changes nothing."""
        n = len(asked.entries)
        first_verbatim = max(0, n - SEMANTIC_VERBATIM)
        relevant = drilling.scores(asked)
        groups = asked.condensed.groups(asked.entries, asked.vectors, SEMANTIC_VERBATIM)
        latest = [_latest(asked, place, relevant) for place in range(n - 1, first_verbatim - 1, -1)]
        quoted = list(drilling.quoted(asked, range(first_verbatim), relevant, QUOTED))
        n_first = drilling.within(quoted, _QUOTED_SHARE * room_of(asked)) if quoted else 0
        room = room_of(asked) - drilling.n_tokens([*latest, *quoted[:n_first]])
        ranked = drilling.ranked(groups, relevant, room)
        themes = _themes(asked, ranked, n_summarised=drilling.n_themes(room), n_verbatim=n - first_verbatim)
        is_left = np.arange(n) < first_verbatim
        is_left[[place for _, group in ranked for place in group.places]] = False
        left = np.flatnonzero(is_left)
        return Offer(
            pieces=[*quoted[:n_first], *latest, *themes, *quoted[n_first:]],
            sections=(THEMES, QUOTED, LATEST),
            left=Decisions(len(left), lambda at: _left(asked, int(left[at]), relevant)),
        )


def _latest(asked: Asked, place: int, relevant: Scores) -> Piece:
    entry = asked.entries[place]
    text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
    return Piece(
        section=LATEST,
        place=(place,),
        text=text,
        shorter=tuple(shorter),
        entry_ids=(entry.entry_id,),
        score=1 + float(relevant[place]),
        why=f"one of the last {SEMANTIC_VERBATIM} exchanges",
    )


def _themes(
    asked: Asked, ranked: Sequence[tuple[float, Group]], *, n_summarised: int, n_verbatim: int
) -> list[Piece]:
    summaries = drilling.summaries(asked, ranked[:n_summarised])
    pieces = []
    for score, group in ranked:
        entries = [asked.entries[place] for place in group.places]
        head = f"[{', '.join(group.words) or 'various'}] {period(entries)}, {len(entries)} exchanges"
        if len(entries) == 1:  # there is nothing to summarise
            text, *shorter = exchanges_within(entries[0], asked.now_ms, room_of(asked))
        else:
            summary = summaries.get(group, "")
            text, shorter = (f"{head}: {' '.join(summary.split())}", [head]) if summary else (head, [])
        pieces.append(
            Piece(
                section=THEMES,
                place=(group.places[-1],),
                text=text,
                shorter=tuple(shorter),
                entry_ids=tuple(entry.entry_id for entry in entries),
                score=score,
                why=f"theme of {len(entries)} exchanges before the last {n_verbatim}",
            )
        )
    return pieces


def _left(asked: Asked, place: int, relevant: Scores) -> Decision:
    return Decision(
        entry_ids=(asked.entries[place].entry_id,),
        is_kept=False,
        score=float(relevant[place]),
        why=drilling.LEFT,
    )
