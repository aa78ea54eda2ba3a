"""How a text and the reasons for a hit look on one line of a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LEAST_SHOWN: Final = 0.005
"""A smaller part would be shown as 0.00."""


def shortened(text: str, n_chars: int) -> str:
    """Give a text on one line, cut to a length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= n_chars else f"{flat[: n_chars - 1]}…"


def why(score_parts: Mapping[str, float]) -> str:
    """Name the parts of a score that count, the greatest first."""
    parts = sorted(score_parts.items(), key=lambda part: -part[1])
    return " ".join(f"{name} {value:.2f}" for name, value in parts if abs(value) >= _LEAST_SHOWN)
