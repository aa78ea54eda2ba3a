"""Whether a block tells what a turn said, by one strict rule for every way to make a block.

A turn is *told* when one item of the block, as it will be sent, holds at least 80 % of the turn's different words
that say something (stemmed as the full text does, without stop words). So a turn that is quoted counts, one that was
shortened counts while little is missing, and words that stand together in no item do not add up. A turn is *quoted*
when its words stand in one item in their order, none left out.

A turn of somewhere else is a leak when six of its words in a row, at its beginning, stand in the block, and nowhere
in what belongs there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pipeline.ledger import words
from retrieval.fused.asking import stop_stems

LEAST_TOLD: Final = 0.8
"""Share of a turn's telling words that an item must hold."""
_KNOWN_BY: Final = 6
"""Words in a row that nobody says by chance."""
_ITEM: Final = re.compile(r"^- ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a block, read."""

    telling: frozenset[str]
    in_order: str

    def tells(self, turn: TurnWords) -> bool:
        """Tell whether it says what a turn said."""
        return len(turn.telling & self.telling) >= LEAST_TOLD * len(turn.telling)

    def quotes(self, turn: TurnWords) -> bool:
        """Tell whether it holds a turn word for word."""
        return turn.in_order in self.in_order


@dataclass(frozen=True, slots=True)
class TurnWords:
    """The words of a turn."""

    telling: frozenset[str]
    in_order: str


def items(block: str) -> list[Item]:
    """Read the items of a block."""
    return [Item(*_read(text)) for text in _ITEM.split(block)[1:]]


def turn_words(content: str) -> TurnWords:
    """Read a turn."""
    return TurnWords(*_read(content))


def share_told(block: Sequence[Item], turns: Collection[TurnWords]) -> float:
    """Give the share of turns that a block tells."""
    return sum(any(item.tells(turn) for item in block) for turn in turns) / len(turns)


def share_quoted(block: Sequence[Item], turns: Collection[TurnWords]) -> float:
    """Give the share of turns that a block quotes."""
    return sum(any(item.quotes(turn) for item in block) for turn in turns) / len(turns)


class Foreign:
    """What was said elsewhere, known by how each turn begins.

    Args:
        elsewhere: the turns of other sessions or scopes.
        own: the turns that belong in the block; how one of them goes is no leak.
    """

    def __init__(self, elsewhere: Iterable[TurnWords], own: Iterable[TurnWords]) -> None:
        known = {run for turn in own for run in _runs(turn.in_order)}
        self._beginnings = {run for turn in elsewhere for run in _runs(turn.in_order)[:1]} - known

    def n_in(self, block: Iterable[Item]) -> int:
        """Count the turns of elsewhere that a block holds."""
        return len({run for item in block for run in _runs(item.in_order)} & self._beginnings)


def _runs(in_order: str) -> list[str]:
    listed = in_order.split()
    return [" ".join(listed[i : i + _KNOWN_BY]) for i in range(len(listed) - _KNOWN_BY + 1)]


@lru_cache(maxsize=20_000)
def _read(text: str) -> tuple[frozenset[str], str]:
    listed = words.words(text)
    telling = frozenset(listed) - stop_stems()
    return telling or frozenset(listed), f" {' '.join(listed)} "
