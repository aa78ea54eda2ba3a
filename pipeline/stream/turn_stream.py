"""The stream of turns as one reader and its publishers change it; see the package for the key schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import redis
from redis import exceptions as redis_errors

from pipeline.stream import scripts
from pipeline.stream.connection import address, translate, translated
from pipeline.stream.entries import Claim, DeadLetter, Entry
from pipeline.stream.stream_view import FIELD, StreamView, checked, entry_of, text

_AT_ONCE: Final = 64
"""Letters in one script: each may hold megabytes, and the server does nothing else meanwhile."""
_ACKED_AT_ONCE: Final = 5_000
"""The server does nothing else for some ten milliseconds."""
_PASSED_AT_ONCE: Final = 500
"""Pending entries in one script that looks for strays: some milliseconds."""
_STRAY_CALLS: Final = 20
"""A walk past a hundred thousand pending entries is spread over several calls."""

T = TypeVar("T")


class TurnStream(StreamView):
    """The stream ``name``, read through ``group``, with its dead letters in ``dead_name``.

    A missing group is made again from the first entry on. Every method raises what `translated` lists.
    """

    def __init__(self, client: redis.Redis, *, name: str, dead_name: str, group: str) -> None:
        super().__init__(client, name=name, dead_name=dead_name, group=group)
        self._ack = client.register_script(scripts.ACK)
        self._take_up = client.register_script(scripts.TAKE_UP)
        self._dead_letter = client.register_script(scripts.DEAD_LETTER)
        self._replay = client.register_script(scripts.REPLAY)
        self._trim = client.register_script(scripts.TRIM)
        self._remove_idle = client.register_script(scripts.REMOVE_IDLE_CONSUMERS)
        self._strays_from = "-"

    # publishing

    def append(self, raw: bytes) -> str:
        """Add one event; as durable on return as the server's ``appendfsync`` makes it. Gives the entry id."""
        with translated(self.client):
            return text(self.client.xadd(self.name, {FIELD: raw}))

    def append_many(self, raws: Sequence[bytes]) -> list[str]:
        """Add events in order, in one round trip; on an error any part of them may be in the stream."""
        with translated(self.client), self.client.pipeline(transaction=False) as pipe:
            for raw in raws:
                pipe.xadd(self.name, {FIELD: raw})
            replies = pipe.execute(raise_on_error=False)  # raising, the library quotes the command: user text
        for reply in replies:
            if isinstance(reply, redis_errors.RedisError):
                raise translate(reply, address(self.client)) from reply
        return [text(reply) for reply in replies]

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
            cursor = text(reply[0])
            entries += [entry_of(*item) for item in reply[1] if item[0] is not None]
            deleted += [text(item) for item in reply[2]]
            if cursor == "0-0" or len(entries) >= count:  # the server looks at ten times count, then stops
                return Claim(entries, deleted)

    def take_up_strays(self, consumer: str, *, count: int) -> list[Entry]:
        """Make entries pending again that were pending with a consumer that somebody deleted; gives up to ``count``.

        They are told by being in the stream still, delivered and not pending: an acked one is deleted at once. With
        several groups that does not hold, and none is found. Past many pending entries, the next call goes on.
        """
        for _ in range(_STRAY_CALLS):
            arguments = [self.group, consumer, count, self._strays_from, _PASSED_AT_ONCE]
            start, taken = self._in_group(self._take_up, [self.name], arguments)
            self._strays_from = text(start)
            if taken or self._strays_from == "-":
                break
        return [entry_of(id_, dict(zip(fields[::2], fields[1::2], strict=True))) for id_, fields in taken]

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

    def drop(self, ids: Sequence[str]) -> int:
        """Delete dead letters for good; gives how many there were."""
        if not ids:
            return 0
        with translated(self.client):
            return int(self.client.xdel(self.dead_name, *map(checked, ids)))

    def replay(self, ids: Iterable[str]) -> list[str]:
        """Move dead letters back to the stream's end, their bytes unchanged; gives the new entry ids.

        An id that is no dead letter, or a letter without an event, is passed over. Safe to repeat.
        """
        added = list[str]()
        with translated(self.client):
            for some in _sliced(map(checked, ids), _AT_ONCE):
                added += map(text, self._replay([self.name, self.dead_name], some))
        return added

    # upkeep

    def trim(self) -> int:
        """Drop what every one of several groups has read and acked, and nothing else; gives how many entries.

        With one group there is nothing to drop: what it acks is deleted.

        Why: ``MAXLEN`` would drop unread entries without a trace.
        """
        with translated(self.client):
            return int(self._trim([self.name], [self.group]))

    def remove_idle_consumers(self, min_idle_ms: int) -> list[str]:
        """Forget consumers silent for so long that have nothing pending; gives their names."""
        removed = self._in_group(self._remove_idle, [self.name], [self.group, min_idle_ms])
        return [text(name) for name in removed]

    # within

    def _read(self, consumer: str, position: str, *, count: int, block_ms: int | None) -> list[Entry]:
        reply = self._in_group(
            self.client.xreadgroup, self.group, consumer, {self.name: position}, count=count, block=block_ms
        )
        return [entry_of(*item) for _, items in reply or () for item in items]

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


def _sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
