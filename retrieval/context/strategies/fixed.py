"""The last exchanges, shortened, oldest first: what fits a prompt without looking at what is asked.

Source: the session memory of the DelReact documentation.
"""

from __future__ import annotations

from typing import Final

from retrieval.context.layout.answer import Decisions
from retrieval.context.layout.wording import exchange, shorter_exchanges
from retrieval.context.protocol import Asked, Decision, Offer, Piece


class Fixed:
    """Keeps the last exchanges; where there is too little room, the oldest of them go first."""

    name: Final = "fixed"

    def offer(self, asked: Asked) -> Offer:
        """Offer the last exchanges, the newest first to be taken; changes nothing."""
        n = len(asked.entries)
        n_left = max(0, n - asked.settings.n_exchanges)
        return Offer(
            pieces=[_piece(asked, place) for place in range(n - 1, n_left - 1, -1)],
            left=Decisions(n_left, lambda place: _left(asked, place)),
            ends_at_first_left_out=True,
        )


def _piece(asked: Asked, place: int) -> Piece:
    entry, limits = asked.entries[place], asked.settings
    n_newer = len(asked.entries) - 1 - place
    return Piece(
        section="",
        place=(place,),
        text=exchange(
            entry, asked.now_ms, max_result_chars=limits.max_result_chars, n_key_results=limits.n_key_results
        ),
        shorter=shorter_exchanges(
            entry, asked.now_ms, max_result_chars=limits.max_result_chars, n_key_results=limits.n_key_results
        ),
        entry_ids=(entry.entry_id,),
        score=1 / (1 + n_newer),
        why=f"one of the last {limits.n_exchanges} exchanges",
    )


def _left(asked: Asked, place: int) -> Decision:
    why = f"older than the last {asked.settings.n_exchanges} exchanges"
    return Decision(
        entry_ids=(asked.entries[place].entry_id,), is_kept=False, score=1 / (len(asked.entries) - place), why=why
    )
