"""Windows that are a view of the scope's ledger: its latest exchanges, whoever published or remembered them.

Keeps nothing of its own. So there is nothing to add, to purge, to set aside or to be away.
"""

from __future__ import annotations

from pipeline.records import Scope
from retrieval.context.backends.protocol import ForgottenOf, Kept, Limits, SessionKey
from retrieval.context.session.session_cache import SessionCache


class SqliteWindows:
    """The ends of sessions in their ledgers.

    Args:
        cache: reads them.
        limits: what a window holds.
    """

    def __init__(self, cache: SessionCache, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits

    def check(self) -> None:
        """Do nothing: the ledger is asked anyway."""

    def append(self, key: SessionKey, exchange: Kept) -> None:
        """Do nothing: it is in the ledger."""

    def recent(self, key: SessionKey) -> tuple[Kept, ...]:
        """Give a session's latest exchanges.

        Raises:
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        entries = self._cache.entries(key.scope, key.session_id).entries
        return tuple(Kept(entry, ()) for entry in entries[-self._limits.n_exchanges :])

    def forget(self, key: SessionKey) -> None:
        """Do nothing: the ledger forgets."""

    def purge(self, scope: Scope, forgotten_of: ForgottenOf) -> int:  # noqa: ARG002 - the protocol's
        """Do nothing: the ledger is purged by itself."""
        return 0

    def close(self) -> None:
        """Do nothing: the connections are the readers'."""
