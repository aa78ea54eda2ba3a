"""What is in the stream and among the dead letters, looked at: nothing is taken, acked or made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import redis
from redis import exceptions as redis_errors

from pipeline.errors import ConfigError
from pipeline.stream import scripts
from pipeline.stream.connection import translated
from pipeline.stream.entries import Backlog, DeadLetter, Entry, parsed_id

FIELD: Final = b"event"
_COUNTED_AT_ONCE: Final = 1_000
_LOOKED_AT_ONCE: Final = 16
_ENTRY_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?")


class StreamView:
    """The stream ``name``, as far as the group ``group`` has read it, with its dead letters in ``dead_name``.

    Every method raises what `translated` lists.
    """

    def __init__(self, client: redis.Redis, *, name: str, dead_name: str, group: str) -> None:
        self.client: Any = client  # the library's types cover its asyncio half too and fit neither
        self.name = name
        self.dead_name = dead_name
        self.group = group
        self._count_after = client.register_script(scripts.COUNT_AFTER)
        self._ends = client.register_script(scripts.ENDS)

    def backlog(self) -> Backlog:
        """Measure how far behind the group is; makes nothing."""
        with translated(self.client):
            length, groups = int(self.client.xlen(self.name)), self._groups()
            group = groups.get(self.group)
            pending, undelivered = int(group["pending"]) if group else 0, self._undelivered(group, length)
            return Backlog(
                length=length,
                undelivered=undelivered,
                pending=pending,
                stray=max(0, length - undelivered - pending) if len(groups) == 1 else 0,
                oldest_pending_ms=self._oldest_pending_ms() if pending else 0,
                dead=int(self.client.xlen(self.dead_name)),
            )

    def unread(self) -> int:
        """Count entries that are not yet in a ledger; cheap enough for publishers."""
        with translated(self.client):
            length, groups = int(self.client.xlen(self.name)), self._groups()
            if self.group not in groups:
                return length
            group = groups[self.group]
            unread = self._undelivered(group, 0) + int(group["pending"])
            return max(unread, length) if len(groups) == 1 else unread

    def ends(self) -> tuple[str | None, str]:
        """Give the id of the first entry, None without one, and the last id ever given out."""
        with translated(self.client):
            first, last = self._ends([self.name])
        return text(first) or None, text(last)

    def entries(self, *, after: str | None = None, up_to: str) -> Iterator[Entry]:
        """Yield the entries past an id, or from the first on, up to another, whoever was given them."""
        start = f"({checked(after)}" if after else "-"
        for found in self._walk(start, checked(up_to)):
            yield from found

    def pages(self) -> Iterator[tuple[list[Entry], list[Entry]]]:
        """Yield all entries, some at a time: those read and not pending any more, and those still to be acked.

        An entry among the first was acked before it was yielded, or its consumer was deleted.
        """
        with translated(self.client):
            group = self._groups().get(self.group)
        delivered = parsed_id(text(group["last-delivered-id"])) if group else (0, 0)
        for found in self._walk("-", "+"):
            with translated(self.client):
                pending = self._pending_ids(found[0].id, found[-1].id) if group else set()
            done = [entry for entry in found if parsed_id(entry.id) <= delivered and entry.id not in pending]
            yield done, [entry for entry in found if parsed_id(entry.id) > delivered or entry.id in pending]

    def dead_letters(self, *, start: str = "-", count: int = 100) -> list[DeadLetter]:
        """List dead letters, oldest first, from the id ``start`` on; "(" before the id leaves that one out."""
        with translated(self.client):
            found = self.client.xrange(self.dead_name, start if start == "-" else checked(start), "+", count=count)
        return [
            DeadLetter(
                entry_id=text(fields.get(b"entry_id", b"")),
                raw=fields.get(FIELD),
                reason=text(fields.get(b"reason", b"")),
                field=text(fields.get(b"field", b"")),
                id=text(id_),
            )
            for id_, fields in found
        ]

    def n_waiting(self, queue: str) -> int:
        """Count what waits in a list on the same server, such as a queue of doorbells."""
        with translated(self.client):
            return int(self.client.llen(queue))

    def _walk(self, start: str, end: str) -> Iterator[list[Entry]]:
        while True:
            with translated(self.client):
                found = [entry_of(*item) for item in self.client.xrange(self.name, start, end, count=_LOOKED_AT_ONCE)]
            if not found:
                return
            yield found
            start = f"({found[-1].id}"

    def _groups(self) -> dict[str, dict[str, Any]]:
        try:
            groups = self.client.xinfo_groups(self.name)
        except redis_errors.ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {}
        return {text(group["name"]): group for group in groups}

    def _undelivered(self, group: dict[str, Any] | None, length: int) -> int:
        if group is None:
            return length
        if group.get("lag") is not None:
            return int(group["lag"])
        total, position = 0, group["last-delivered-id"]  # the server lost count: entries were deleted
        while True:
            n_found, position = self._count_after([self.name], [position, _COUNTED_AT_ONCE])
            total += int(n_found)
            if n_found < _COUNTED_AT_ONCE:
                return total

    def _pending_ids(self, first: str, last: str) -> set[str]:
        pending, start = set[str](), first
        while found := self.client.xpending_range(self.name, self.group, min=start, max=last, count=_COUNTED_AT_ONCE):
            pending |= {text(item["message_id"]) for item in found}
            start = f"({text(found[-1]['message_id'])}"
        return pending

    def _oldest_pending_ms(self) -> int:
        first = self.client.xpending_range(self.name, self.group, min="-", max="+", count=1)
        if not first:
            return 0
        seconds, microseconds = self.client.time()
        appended_ms = int(text(first[0]["message_id"]).partition("-")[0])
        return max(0, int(seconds) * 1000 + int(microseconds) // 1000 - appended_ms)


def entry_of(entry_id: bytes, fields: dict[bytes, bytes] | None) -> Entry:
    """Read one entry of a reply."""
    return Entry(text(entry_id), (fields or {}).get(FIELD), len(fields or {}))


def text(value: bytes | str) -> str:
    """Read an id or a name of a reply."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def checked(entry_id: str) -> str:
    """Give an id back that is one, a leading "(" allowed.

    Raises:
        ConfigError: it is none.
    """
    if not _ENTRY_ID.fullmatch(entry_id.removeprefix("(")):
        raise ConfigError(f"{entry_id!r} is no entry id; they look like 1714566600000-0")
    return entry_id
