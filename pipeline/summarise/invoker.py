"""What a summary model is to us: a callable that takes two texts and gives one, with its price in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Completion:
    """One summary and what it took: tokens as billed (0 when nothing was), and whether it was already on disk.

    A cached completion carries the tokens it once took; they are not paid again.
    """

    text: str
    tokens_in: int
    tokens_out: int
    model: str
    cached: bool = False


class SummaryInvoker(Protocol):
    """Ask a model once, without retries.

    An invoker raises ``SummaryError`` when asking again may help and ``SummaryRefusedError`` when it does not.
    """

    def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:
        """Answer ``user`` under the instructions ``system`` in at most ``max_tokens`` tokens."""
        ...
