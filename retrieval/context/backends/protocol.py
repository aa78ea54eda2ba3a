"""What a store of windows is: the latest exchanges of each session, as hosts may share them.

The ledger stays the truth: what it has of a session counts, and what it has forgotten does not come out of a window
again. A window adds what other hosts remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from pipeline.ledger.forgetting import Tombstones
from pipeline.records import Scope
from retrieval.context.entries.entry import Entry

_DIGEST_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose window it is. Stores know it by digests: ids may hold anything, and look-alikes share nothing."""

    scope: Scope
    session_id: str

    @property
    def digest(self) -> bytes:
        """Name the session among all of all scopes."""
        return _digest(self.scope.kind, self.scope.id, self.session_id)

    @property
    def scope_digest(self) -> bytes:
        """Name the scope."""
        return scope_digest(self.scope)


@dataclass(frozen=True, slots=True)
class Kept:
    """An exchange in a window, and the ids of its turns, by which the ledger knows whether it was forgotten."""

    entry: Entry
    turn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a window holds.

    Args:
        n_exchanges: the latest so many, by (time, id).
        ttl_ms: silence after which what was said before it counts as none; None: never.
    """

    n_exchanges: int
    ttl_ms: int | None = None


ForgottenOf = Callable[[str], Tombstones]
"""Tells what a ledger has forgotten of a session, by its id."""


class Windows(Protocol):
    """Keeps windows; safe to share between threads, and after a fork.

    Each call is atomic, whatever other threads, processes and hosts do at the same time.
    """

    def check(self) -> None:
        """Find out whether the store answers.

        Raises:
            TransientError: it does not; try again.
            ConfigError: it refuses us.
        """
        ...

    def append(self, key: SessionKey, exchange: Kept) -> None:
        """Add an exchange and drop what is beyond the limits.

        One whose id is there already, or that was forgotten here, changes nothing.

        Raises:
            TransientError: the store does not answer; it may have been added, and may be added again.
            ConfigError: it refuses us.
        """
        ...

    def recent(self, key: SessionKey) -> tuple[Kept, ...]:
        """Give a session's window, oldest first; a record that cannot be read is set aside and counts as none.

        Raises:
            TransientError: the store does not answer; try again.
            ConfigError: it refuses us.
        """
        ...

    def forget(self, key: SessionKey) -> None:
        """Remove a session's window; nothing of the session is taken again.

        Raises:
            TransientError: the store does not answer; try again.
            ConfigError: it refuses us.
        """
        ...

    def purge(self, scope: Scope, forgotten_of: ForgottenOf) -> int:
        """Remove a scope's exchanges that were forgotten, and whatever of it cannot be read; gives how many.

        A store that hosts share does not take them again from a host whose ledger still has them, nor what was
        forgotten and is no longer in the window: a purge makes room for it. It notes that for each session with a
        window; of one without, or whose window ended in silence, it knows no id, and what is told again is taken.

        Raises:
            TransientError: the store does not answer; try again.
            ConfigError: it refuses us.
        """
        ...

    def close(self) -> None:
        """Close its connections; a later call opens them again."""
        ...


def scope_digest(scope: Scope) -> bytes:
    """Name a scope in a store."""
    return _digest(scope.kind, scope.id)


def _digest(*parts: str) -> bytes:
    text = "\x00".join(parts).encode()  # no id holds a NUL
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, person=b"turnstream-wind").digest()
