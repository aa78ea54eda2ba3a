"""Windows in this process alone: shared with nobody, and lost with it, but for what the ledger has."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from pipeline.records import Scope
from retrieval.context.backends import record
from retrieval.context.backends.protocol import ForgottenOf, Kept, Limits, SessionKey

_MOST_SESSIONS: Final = 10_000


class InMemoryWindows:
    """Windows in a dictionary, those used longest ago first to go.

    Args:
        limits: what a window holds.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._kept: OrderedDict[SessionKey, tuple[Kept, ...]] = OrderedDict()

    def check(self) -> None:
        """Do nothing: it always answers."""

    def append(self, key: SessionKey, exchange: Kept) -> None:
        """Add an exchange."""
        with self._lock:
            self._kept[key] = record.appended(self._kept.get(key, ()), exchange, self._limits)
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_SESSIONS:
                self._kept.popitem(last=False)

    def recent(self, key: SessionKey) -> tuple[Kept, ...]:
        """Give a session's window."""
        with self._lock:
            return self._kept.get(key, ())

    def forget(self, key: SessionKey) -> None:
        """Remove a session's window."""
        with self._lock:
            self._kept.pop(key, None)

    def purge(self, scope: Scope, forgotten_of: ForgottenOf) -> int:
        """Remove a scope's exchanges that were forgotten."""
        n_removed = 0
        with self._lock:
            for key in [key for key in self._kept if key.scope == scope]:
                before = self._kept[key]
                left = record.remaining(key.session_id, before, forgotten_of(key.session_id))
                n_removed += len(before) - len(left)
                self._kept[key] = left
                if not left:
                    del self._kept[key]
        return n_removed

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
