"""How the stream and its server are: a handful of quick commands that change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.stream.connection import check_server, translated
from pipeline.stream.entries import Backlog
from pipeline.stream.stream_view import StreamView


@dataclass(frozen=True, slots=True)
class Oldest:
    """An entry that is not yet in a ledger, and has waited longest.

    Args:
        id: the entry's.
        age_s: since it was accepted, by the server's clock.
        consumer: who was given it; None: nobody yet.
    """

    id: str
    age_s: float
    consumer: str | None


@dataclass(frozen=True, slots=True)
class StreamVitals:
    """What there is to know of the stream without reading it.

    Args:
        backlog: how far behind the group is.
        pending: the oldest entry that a consumer was given and has not acked.
        undelivered: the oldest that nobody was given.
        memory_ratio: the server's memory in use, as a share of what it may use; None: it has no limit.
        unfit: what makes the server unfit to hold events.
    """

    backlog: Backlog
    pending: Oldest | None
    undelivered: Oldest | None
    memory_ratio: float | None
    unfit: list[str]


def look(stream: StreamView) -> StreamVitals:
    """Look once.

    Raises:
        TransientError: the server does not answer, or not now.
        ConfigError: the server refuses.
    """
    client = stream.client
    backlog = stream.backlog()
    with translated(client):
        seconds, microseconds = client.time()
        memory: dict[str, Any] = client.info("memory")
        now_s = int(seconds) + int(microseconds) / 1e6
        pending = _pending(stream, now_s) if backlog.pending else None
        undelivered = _undelivered(stream, now_s) if backlog.undelivered else None
    limit = int(memory.get("maxmemory", 0))
    return StreamVitals(
        backlog=backlog,
        pending=pending,
        undelivered=undelivered,
        memory_ratio=int(memory["used_memory"]) / limit if limit else None,
        unfit=check_server(client),
    )


def _pending(stream: StreamView, now_s: float) -> Oldest | None:
    found = stream.client.xpending_range(stream.name, stream.group, min="-", max="+", count=1)
    return _oldest(found[0]["message_id"], now_s, found[0]["consumer"]) if found else None


def _undelivered(stream: StreamView, now_s: float) -> Oldest | None:
    groups = {bytes(group["name"]).decode(): group for group in stream.client.xinfo_groups(stream.name)}
    group = groups.get(stream.group)
    start = f"({bytes(group['last-delivered-id']).decode()}" if group else "-"
    found = stream.client.xrange(stream.name, start, "+", count=1)
    return _oldest(found[0][0], now_s, None) if found else None


def _oldest(entry_id: bytes, now_s: float, consumer: bytes | None) -> Oldest:
    text = entry_id.decode()
    age_s = max(0.0, now_s - int(text.partition("-")[0]) / 1000)
    return Oldest(text, age_s, None if consumer is None else consumer.decode(errors="replace"))
