"""How tests wait for other processes: until something holds, and never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pipeline.errors import TransientError

PATIENCE_S = 60.0
"""Longer than anything takes on a machine that is busy; only a test that fails waits so long."""


def eventually(
    holds: Callable[[], Any], what: str | Callable[[], str] = "it holds", *, within_s: float = PATIENCE_S
) -> Any:
    """Wait until something holds; gives it.

    Args:
        holds: asked again and again; a server that is away meanwhile does not answer, and is asked again.
        what: is said not to have come about.
        within_s: other than the usual patience where the time is what is tested.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            if value := holds():
                return value
        except TransientError:
            pass
        assert time.monotonic() < deadline, f"never came about: {what() if callable(what) else what}"
        time.sleep(0.02)
