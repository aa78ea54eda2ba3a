"""How much room entries take, told before they are written: no more of them are than there may be room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.tokens import BYTES_PER_TOKEN
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.words import Scores

ROOMS: Final = 2
"""Of the entries that fill a second room some may do where longer ones do not fit."""
_TOKENS_AROUND: Final = 12


def n_tokens(places: Sequence[int], facts: EntryFacts, room: int) -> Scores:
    """Tell about how many tokens each of some entries takes, ``(m,)``; none is written much longer than the room."""
    n_bytes = facts.n_bytes[np.asarray(places, np.int64)].clip(max=BYTES_PER_TOKEN * room)
    return np.asarray(_TOKENS_AROUND + n_bytes / BYTES_PER_TOKEN, np.float32)


def n_that_fill(places: Sequence[int], facts: EntryFacts, room: int) -> int:
    """Count the entries, from the first on, that there may be room for."""
    before = n_tokens(places, facts, room).cumsum()
    return 1 + int(np.searchsorted(before, ROOMS * room)) if len(places) else 0
