"""A group's texts as one that is much shorter: whoever writes it, at most a third of them, and nothing invented.

A summary is known by the digest of what it was made from. So it is made once, is never of other texts than the
group's, and one that is stored is as good as one made now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline import tokens
from pipeline.condense.faithful import is_faithful

MOST_SHARE: Final = 0.35
"""Of the tokens of its members, what a summary may have."""
MOST_TOKENS: Final = 120
_ROUNDS: Final = 5
_FEWEST_TOKENS: Final = 4
_FIRST_ASKED: Final = 0.7
"""Of the tokens there may be: summarisers count fewer tokens than three bytes each, and asking twice takes time."""

Summarise = Callable[[str, int], str]
"""Summarises a text in at most so many tokens, as the summariser counts."""


@dataclass(frozen=True, slots=True)
class Member:
    """One exchange of a group: who said what, in order, and the turns it is told from."""

    entry_id: str
    lines: tuple[tuple[str, str], ...]
    turn_offsets: tuple[int, ...]

    @property
    def text(self) -> str:
        """It as a text, one line for each who spoke."""
        return "\n".join(f"{who}: {' '.join(said.split())}" for who, said in self.lines if said.strip())


def digest(session_id: str, members: Sequence[Member]) -> bytes:
    """Give what a summary of these members is known by."""
    state = hashlib.blake2b(digest_size=16, person=b"turnstream-theme")
    for part in (session_id, *(part for member in members for part in (member.entry_id, member.text))):
        encoded = part.encode("utf-8", "surrogatepass")
        state.update(len(encoded).to_bytes(8, "big") + encoded)
    return state.digest()


def source(members: Sequence[Member]) -> str:
    """Give the members as one text."""
    return "\n".join(member.text for member in members)


def most_tokens(text: str) -> int:
    """Give how long a summary of a text may be, by `tokens.count`."""
    return min(int(MOST_SHARE * tokens.count(text)), MOST_TOKENS)


def shortened(text: str, summarise: Summarise) -> str:
    """Have a text summarised within its share, asking for less as long as the answer is too long; "" if it never is.

    Args:
        text: the members, as `source` gives them.
        summarise: keeps what it says of its length by another count, so that it may have to be asked again.
    """
    limit = most_tokens(text)
    asked = round(_FIRST_ASKED * limit)
    for _ in range(_ROUNDS):
        if asked < _FEWEST_TOKENS:
            return ""
        summary = summarise(text, asked).strip()
        if tokens.count(summary) <= limit:
            return summary
        asked = min(asked - 1, asked * limit // tokens.count(summary))
    return ""


def is_acceptable(summary: str, text: str) -> bool:
    """Tell whether somebody's summary of a text is short enough, and states nothing that the text does not."""
    return 0 < tokens.count(summary) <= most_tokens(text) and is_faithful(summary, text)
