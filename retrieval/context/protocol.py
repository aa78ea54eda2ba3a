"""What a condensation strategy is given, and what it answers with.

A strategy reads entries and offers pieces of text, best first. It never counts tokens and never writes: `budget`
takes what fits, `block` lays it out and fences it. So every strategy keeps within its budget in the same way, and
the same entries, objective and clock always give the same block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.settings import ContextSettings
from retrieval.context.condensing.condensed import Condensed
from retrieval.context.condensing.themes import FloatRows
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.words import Scores


@dataclass(frozen=True, slots=True)
class Compared:
    """The entries beside an objective, each array ``(n,)``.

    Args:
        by_words: BM25 as a share of the most that was possible.
        by_meaning: cosine; 0 where there is no vector.
        chances: how likely each entry is to answer, in [0, 1]; None: not known. See `answering`.
    """

    by_words: Scores
    by_meaning: Scores
    chances: Scores | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request for context.

    Args:
        entries: the session's, oldest first, all of them.
        vectors: ``(n, d) float32``, a row per entry, L2-normalised; a row of zeros: not embedded yet.
        objective: what is to be done next; None: not told.
        objective_vector: ``(d,) float32``, L2-normalised; None: no objective, or no model.
        compared: the entries with the objective; None: not done yet. See `relevance.compared`.
        now_ms: the time, epoch milliseconds.
        settings: limits and weights.
        max_tokens: of the whole block, for a strategy that says less of each entry where there is little room; None:
            as many as the settings say.
        facts: of these entries, or of earlier ones; None: not at hand. See `facts_of`.
        condensed: what is known in short of the session and its scope; by default made of the entries alone.
    """

    entries: Sequence[Entry]
    vectors: FloatRows
    objective: str | None
    objective_vector: npt.NDArray[np.float32] | None
    now_ms: int
    settings: ContextSettings
    max_tokens: int | None = None
    compared: Compared | None = None
    facts: EntryFacts | None = None
    condensed: Condensed = field(default_factory=Condensed)


def facts_of(asked: Asked) -> EntryFacts:
    """Give the facts about the entries: those the caller keeps, or made now."""
    known = asked.facts
    return known if known is not None and known.entries is asked.entries else EntryFacts(asked.entries, known)


def room_of(asked: Asked) -> int:
    """Give the tokens that a block may have."""
    return asked.settings.max_tokens_for_context if asked.max_tokens is None else asked.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some text that may stand in the block.

    Args:
        section: the heading it stands under; "" for none. Sections stand in the order of `Offer.sections`.
        place: pieces of a section are sorted by it.
        text: what is written, as data: it is fenced and may hold anything.
        entry_ids: the entries it is made from.
        score: how much the strategy wants it, on the strategy's own scale.
        why: the reason, for people.
        shorter: texts tried instead, longest first, when it does not fit.
        n_held_back: so many of its texts, the longest, are tried only when every piece has had its turn.
    """

    section: str
    place: tuple[float, ...]
    text: str
    entry_ids: tuple[str, ...]
    score: float
    why: str
    shorter: tuple[str, ...] = ()
    n_held_back: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of an entry, or of something made from several, and why."""

    entry_ids: tuple[str, ...]
    is_kept: bool
    score: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a strategy would put into the block.

    Args:
        pieces: in the order in which they are taken while there is room.
        left: entries that it leaves out whatever the room, and why.
        sections: headings in the order of the block.
        shares: of the room, by section; what one leaves unused flows on to the next. Empty: first come, first served.
        ends_at_first_left_out: what comes after a piece that does not fit is not taken either.
        n_first: so many pieces, the first ones, are taken before all others, whatever the shares; see `pinned`.
    """

    pieces: Sequence[Piece]
    left: Sequence[Decision] = ()
    sections: Sequence[str] = ("",)
    shares: Mapping[str, float] = field(default_factory=dict)
    ends_at_first_left_out: bool = False
    n_first: int = 0


class Strategy(Protocol):
    """Chooses what of a session's past goes into a prompt."""

    @property
    def name(self) -> str:
        """Name it as in the settings."""
        ...

    def offer(self, asked: Asked) -> Offer:
        """Offer pieces for a block; changes nothing.

        Raises:
            ValueError: a setting that this strategy cannot work with; the message names it.
        """
        ...


CountTokens = Callable[[str], int]
"""Counts the tokens of a text; must not shrink when text is added."""
