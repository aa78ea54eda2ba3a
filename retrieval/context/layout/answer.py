"""What a request for context is answered with: the block for the prompt, and why it holds what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, overload

from retrieval.context.protocol import Decision


class Decisions(Sequence[Decision]):
    """A list of decisions that are made when they are looked at.

    Why: most of ten thousand entries are left out, and hardly anybody reads why; writing the reasons would take
    longer than choosing.

    Args:
        n: how many there are.
        decide: gives the decision at a place, 0 or more.
    """

    def __init__(self, n: int, decide: Callable[[int], Decision]) -> None:
        self._n = n
        self._decide = decide

    def __reduce__(self) -> tuple[type[list[Decision]], tuple[list[Decision]]]:
        """Be copied and pickled as the decisions, without what they are made from."""
        return list, (list(self),)

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, place: int) -> Decision: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Decision]: ...

    def __getitem__(self, place: int | slice) -> Decision | Sequence[Decision]:
        places = range(self._n)[place]
        return self._decide(places) if isinstance(places, int) else [self._decide(i) for i in places]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A block for the next prompt, and its trace.

    Args:
        block: fenced text; "" when nothing is remembered, or nothing fits.
        n_tokens: of the block, by the counter it was made with; never more than ``max_tokens``.
        max_tokens: the room there was.
        strategy: what chose.
        taken: what became of each piece that was offered, in the order of the offer.
        left: what was never offered, and why.
        notes: what was done otherwise than asked, such as without the embedding model.
    """

    block: str
    n_tokens: int
    max_tokens: int
    strategy: str
    taken: Sequence[Decision] = ()
    left: Sequence[Decision] = ()
    notes: tuple[str, ...] = ()

    @property
    def trace(self) -> tuple[Decision, ...]:
        """One decision for each piece, then one for each entry that was left out."""
        return tuple(chain(self.taken, self.left))

    def to_json(self) -> str:
        """Write one JSON object; a new field may be added, none is renamed."""
        fields: dict[str, Any] = {
            "block": self.block,
            "n_tokens": self.n_tokens,
            "max_tokens": self.max_tokens,
            "strategy": self.strategy,
            "notes": self.notes,
            "trace": [asdict(decision) for decision in self.trace],
        }
        return json.dumps(fields, ensure_ascii=False)
