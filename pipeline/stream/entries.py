"""What is in the stream and among the dead letters, as it is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MAX_LETTER_BYTES: Final = 8 << 20
"""An event has 2 MiB at most; what is much larger is no event that somebody will mend."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as read; ``n_fields`` is 0 when it was deleted from the stream but is still pending.

    Args:
        id: as in Redis, ``milliseconds-sequence``.
        raw: bytes of the field ``event``, or None when there is no such field.
        n_fields: fields of the entry; a well-formed one has one.
    """

    id: str
    raw: bytes | None
    n_fields: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Entries taken over from consumers that went silent, and ids that were pending but no longer exist."""

    entries: list[Entry]
    deleted: list[str]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry set aside for good; ``id`` is its place among the dead letters, "" before it has one."""

    entry_id: str
    raw: bytes | None
    reason: str
    field: str = ""
    id: str = ""

    def bounded(self) -> DeadLetter:
        """Give the letter as it is kept."""
        if self.raw is None or len(self.raw) <= MAX_LETTER_BYTES:
            return self
        reason = f"{self.reason}; {len(self.raw)} bytes, more than {MAX_LETTER_BYTES}, and so not kept"
        return replace(self, raw=None, reason=reason)


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far behind the group is.

    Args:
        length: entries in the stream; with several groups, read ones that are not yet trimmed included.
        undelivered: entries no consumer of the group was given yet.
        pending: entries given to a consumer and not acked.
        stray: entries that are neither, because their consumer was deleted; the ingesters take them up again.
        oldest_pending_ms: age of the oldest pending entry by the server's clock; 0 when none is pending.
        dead: dead letters.
    """

    length: int
    undelivered: int
    pending: int
    stray: int
    oldest_pending_ms: int
    dead: int

    @property
    def unread(self) -> int:
        """Entries that are not yet in a ledger."""
        return self.undelivered + self.pending + self.stray
