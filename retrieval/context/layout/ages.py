"""How long ago something was, in words."""

from __future__ import annotations

from typing import Final

_MINUTE_MS: Final = 60_000
_UNITS: Final = ((24 * 60 * _MINUTE_MS, "day"), (60 * _MINUTE_MS, "hour"), (_MINUTE_MS, "minute"))


def age(time_ms: int, now_ms: int) -> str:
    """Say how long ago a time was, in whole units begun and ended; one in the future is "just now"."""
    for unit_ms, unit in _UNITS:
        n = (now_ms - time_ms) // unit_ms
        if n > 0:
            return f"{n} {unit}{'' if n == 1 else 's'} ago"
    return "just now"
