"""The stream of turns as one reader and its publishers see it; see the package for the key schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import redis
from redis import exceptions as redis_errors

from pipeline.errors import ConfigError
from pipeline.stream import scripts
from pipeline.stream.connection import address, translate, translated
from pipeline.stream.entries import Backlog, Claim, DeadLetter, Entry

FIELD: Final = b"event"
_AT_ONCE: Final = 64
"""Letters in one script: each may hold megabytes, and the server does nothing else meanwhile."""
_COUNTED_AT_ONCE: Final = 1_000
_LOOKED_AT_ONCE: Final = 16
_ACKED_AT_ONCE: Final = 5_000
"""The server does nothing else for some ten milliseconds."""
_LOOKED_AT_AT_ONCE: Final = 100
_ENTRY_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?")

T = TypeVar("T")


class TurnStream:
    """The stream ``name``, read through ``group``, with its dead letters in ``dead_name``.

    A missing group is made again from the first entry on. Every method raises what `translated` lists.
    """

    def __init__(self, client: redis.Redis, *, name: str, dead_name: str, group: str) -> None:
        self.client: Any = client  # the library's types cover its asyncio half too and fit neither
        self.name = name
        self.dead_name = dead_name
        self.group = group
        self._ack = client.register_script(scripts.ACK)
        self._take_up = client.register_script(scripts.TAKE_UP)
        self._dead_letter = client.register_script(scripts.DEAD_LETTER)
        self._replay = client.register_script(scripts.REPLAY)
        self._trim = client.register_script(scripts.TRIM)
        self._remove_idle = client.register_script(scripts.REMOVE_IDLE_CONSUMERS)
        self._count_after = client.register_script(scripts.COUNT_AFTER)
        self._ends = client.register_script(scripts.ENDS)

    # publishing

    def append(self, raw: bytes) -> str:
        """Add one event; as durable on return as the server's ``appendfsync`` makes it. Gives the entry id."""
        with translated(self.client):
            return _text(self.client.xadd(self.name, {FIELD: raw}))

    def append_many(self, raws: Sequence[bytes]) -> list[str]:
        """Add events in order, in one round trip; on an error any part of them may be in the stream."""
        with translated(self.client), self.client.pipeline(transaction=False) as pipe:
            for raw in raws:
                pipe.xadd(self.name, {FIELD: raw})
            replies = pipe.execute(raise_on_error=False)  # raising, the library quotes the command: user text
        for reply in replies:
            if isinstance(reply, redis_errors.RedisError):
                raise translate(reply, address(self.client)) from reply
        return [_text(reply) for reply in replies]

    # reading

    def ensure_group(self) -> None:
        """Make the stream and the group unless they exist; a new group starts at the first entry, never at "$"."""
        with translated(self.client):
            try:
                self.client.xgroup_create(self.name, self.group, id="0", mkstream=True)
            except redis_errors.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    def read(self, consumer: str, *, count: int, block_ms: int) -> list[Entry]:
        """Take entries nobody was given yet, in order; they are pending until acked.

        Args:
            consumer: name of the reader.
            count: most entries.
            block_ms: longest wait for the first; 0 does not wait. At most half the client's reply timeout.
        """
        return self._read(consumer, ">", count=count, block_ms=self._bounded(block_ms))

    def read_own_pending(self, consumer: str, *, count: int, after: str = "0") -> list[Entry]:
        """Read what this consumer was given and did not ack, in order, from past the entry ``after``."""
        return self._read(consumer, after, count=count, block_ms=None)

    def claim(self, consumer: str, *, min_idle_ms: int, count: int) -> Claim:
        """Take over entries pending for at least ``min_idle_ms``; ids gone from the stream stop being pending."""
        entries, deleted, cursor = list[Entry](), list[str](), "0-0"
        while True:
            wanted = count - len(entries)
            reply = self._in_group(
                self.client.xautoclaim, self.name, self.group, consumer, min_idle_ms, start_id=cursor, count=wanted
            )
            cursor = _text(reply[0])
            entries += [_entry(*item) for item in reply[1] if item[0] is not None]
            deleted += [_text(item) for item in reply[2]]
            if cursor == "0-0" or len(entries) >= count:  # the server looks at ten times count, then stops
                return Claim(entries, deleted)

    def take_up_strays(self, consumer: str, *, count: int) -> list[Entry]:
        """Make entries pending again that were pending with a consumer that somebody deleted; gives up to ``count``.

        They are told by being in the stream still, delivered and not pending: an acked one is deleted at once. With
        several groups that does not hold, and none is found.
        """
        taken = self._in_group(self._take_up, [self.name], [self.group, consumer, count])
        return [_entry(id_, dict(zip(fields[::2], fields[1::2], strict=True))) for id_, fields in taken]

    def ack(self, ids: Sequence[str]) -> int:
        """Mark entries as done; what is to be kept of them must be durable before. Gives how many were pending.

        Unless another group reads the stream, they are deleted from it in the same step.
        """
        with translated(self.client):
            return sum(int(self._ack([self.name], [self.group, *some])) for some in _sliced(ids, _ACKED_AT_ONCE))

    # dead letters

    def dead_letter_and_ack(self, letters: Iterable[DeadLetter]) -> int:
        """Set entries aside and ack them, both or neither; one that is not pending any more was done before.

        Gives how many were set aside now. Safe to repeat, and from two consumers at once. Of an entry over
        `MAX_LETTER_BYTES` only the reason is kept.
        """
        n_done = 0
        for some in _sliced(letters, _AT_ONCE):
            arguments: list[str | bytes] = [self.group]
            for letter in some:
                kept = letter.bounded()
                present = "0" if kept.raw is None else "1"
                arguments += [kept.entry_id, kept.reason, kept.field, present, kept.raw or b""]
            n_done += self._in_group(self._dead_letter, [self.name, self.dead_name], arguments)
        return n_done

    def dead_letters(self, *, start: str = "-", count: int = 100) -> list[DeadLetter]:
        """List dead letters, oldest first, from the id ``start`` on; "(" before the id leaves that one out."""
        with translated(self.client):
            found = self.client.xrange(self.dead_name, start if start == "-" else _checked(start), "+", count=count)
        return [
            DeadLetter(
                entry_id=_text(fields.get(b"entry_id", b"")),
                raw=fields.get(FIELD),
                reason=_text(fields.get(b"reason", b"")),
                field=_text(fields.get(b"field", b"")),
                id=_text(id_),
            )
            for id_, fields in found
        ]

    def drop(self, ids: Sequence[str]) -> int:
        """Delete dead letters for good; gives how many there were."""
        if not ids:
            return 0
        with translated(self.client):
            return int(self.client.xdel(self.dead_name, *map(_checked, ids)))

    def replay(self, ids: Iterable[str]) -> list[str]:
        """Move dead letters back to the stream's end, their bytes unchanged; gives the new entry ids.

        An id that is no dead letter, or a letter without an event, is passed over. Safe to repeat.
        """
        added = list[str]()
        with translated(self.client):
            for some in _sliced(map(_checked, ids), _AT_ONCE):
                added += map(_text, self._replay([self.name, self.dead_name], some))
        return added

    # upkeep

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

    def pages(self) -> Iterator[tuple[list[Entry], list[Entry]]]:
        """Yield all entries, some at a time: those read and not pending any more, and those still to be acked.

        Takes nothing. An entry among the first was acked before it was yielded, or its consumer was deleted.
        """
        with translated(self.client):
            group = self._groups().get(self.group)
        delivered = _place(group["last-delivered-id"]) if group else (0, 0)
        start = "-"
        while True:
            with translated(self.client):
                found = [
                    _entry(*item) for item in self.client.xrange(self.name, start, "+", count=_LOOKED_AT_AT_ONCE)
                ]
                if not found:
                    return
                pending = self._pending_ids(found[0].id, found[-1].id) if group else set()
            done = [entry for entry in found if _place(entry.id) <= delivered and entry.id not in pending]
            yield done, [entry for entry in found if _place(entry.id) > delivered or entry.id in pending]
            start = f"({found[-1].id}"

    def unread(self) -> int:
        """Count entries that are not yet in a ledger; cheap enough for publishers."""
        with translated(self.client):
            length, groups = int(self.client.xlen(self.name)), self._groups()
            if self.group not in groups:
                return length
            group = groups[self.group]
            unread = self._undelivered(group, 0) + int(group["pending"])
            return max(unread, length) if len(groups) == 1 else unread

    def n_waiting(self, queue: str) -> int:
        """Count what waits in a list on the same server, such as a queue of doorbells."""
        with translated(self.client):
            return int(self.client.llen(queue))

    def trim(self) -> int:
        """Drop what every one of several groups has read and acked, and nothing else; gives how many entries.

        With one group there is nothing to drop: what it acks is deleted.

        Why: ``MAXLEN`` would drop unread entries without a trace.
        """
        with translated(self.client):
            return int(self._trim([self.name]))

    def ends(self) -> tuple[str | None, str]:
        """Give the id of the first entry, None without one, and the last id ever given out."""
        with translated(self.client):
            first, last = self._ends([self.name])
        return _text(first) or None, _text(last)

    def entries(self, *, up_to: str) -> Iterator[Entry]:
        """Look at the entries from the first on, up to an id, whoever was given them; takes none."""
        start = "-"
        while True:
            with translated(self.client):
                found = self.client.xrange(self.name, start, _checked(up_to), count=_LOOKED_AT_ONCE)
            yield from (_entry(*item) for item in found)
            if len(found) < _LOOKED_AT_ONCE:
                return
            start = f"({_text(found[-1][0])}"

    def remove_idle_consumers(self, min_idle_ms: int) -> list[str]:
        """Forget consumers silent for so long that have nothing pending; gives their names."""
        removed = self._in_group(self._remove_idle, [self.name], [self.group, min_idle_ms])
        return [_text(name) for name in removed]

    # within

    def _read(self, consumer: str, position: str, *, count: int, block_ms: int | None) -> list[Entry]:
        reply = self._in_group(
            self.client.xreadgroup, self.group, consumer, {self.name: position}, count=count, block=block_ms
        )
        return [_entry(*item) for _, items in reply or () for item in items]

    def _in_group(self, command: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with translated(self.client):
            try:
                return command(*args, **options)
            except redis_errors.ResponseError as error:
                if not str(error).startswith(("NOGROUP", "no such key")):  # the latter: the stream is gone as well
                    raise
            self.ensure_group()
            return command(*args, **options)

    def _bounded(self, block_ms: int) -> int | None:
        timeout_s = self.client.connection_pool.connection_kwargs.get("socket_timeout")
        bounded = min(block_ms, int(timeout_s * 500)) if timeout_s else block_ms
        return bounded or None  # Redis takes 0 as for ever

    def _groups(self) -> dict[str, dict[str, Any]]:
        try:
            groups = self.client.xinfo_groups(self.name)
        except redis_errors.ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {}
        return {_text(group["name"]): group for group in groups}

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
            pending |= {_text(item["message_id"]) for item in found}
            start = f"({_text(found[-1]['message_id'])}"
        return pending

    def _oldest_pending_ms(self) -> int:
        first = self.client.xpending_range(self.name, self.group, min="-", max="+", count=1)
        if not first:
            return 0
        seconds, microseconds = self.client.time()
        appended_ms = int(_text(first[0]["message_id"]).partition("-")[0])
        return max(0, int(seconds) * 1000 + int(microseconds) // 1000 - appended_ms)


def _entry(entry_id: bytes, fields: dict[bytes, bytes] | None) -> Entry:
    return Entry(_text(entry_id), (fields or {}).get(FIELD), len(fields or {}))


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _place(entry_id: bytes | str) -> tuple[int, int]:
    """Read an entry id as numbers, which compare as the ids do."""
    ms, _, sequence = _text(entry_id).partition("-")
    return int(ms), int(sequence or 0)


def _checked(entry_id: str) -> str:
    if not _ENTRY_ID.fullmatch(entry_id.removeprefix("(")):
        raise ConfigError(f"{entry_id!r} is no entry id; they look like 1714566600000-0")
    return entry_id


def _sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
