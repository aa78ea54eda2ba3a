"""Publishing: events go into the stream, bounded in time, memory and backlog.

Holds nothing between calls. After a crash, an event whose entry id was returned is in the stream; one whose call had
not returned may be, and publishing it again with the same event id does no harm.

Why: this stage alone reads the settings, since chat platforms construct a `Publisher` themselves, outside of any
entry point of ours.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import stamina
import structlog

from pipeline import contract
from pipeline.errors import Backpressure, PoisonError, PublishError, TransientError
from pipeline.records import (
    Event,
    Scope,
    ScopeDeleted,
    SessionClosed,
    SessionDeleted,
    Turn,
    TurnDeleted,
    to_epoch_ms,
)
from pipeline.settings import load_settings
from pipeline.stream import TurnStream, connect, server_url

SLICE_ENTRIES: Final = 500
SLICE_BYTES: Final = 4 << 20
"""One round trip of a bulk publish, and the most that is held in memory."""

CHECK_EVERY_ENTRIES: Final = 250
"""How many entries may pass before the backlog is measured again."""

_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.0
"""Waits between tries double; the default eight outlast a restart of the embedded server, five (0.8 s) did not."""

T = TypeVar("T")
log = structlog.get_logger()


class Publisher:
    """Publish turns and other events; safe to share between threads.

    Args:
        url: the server; None: from the settings, which also stand for every other None.
        max_backlog_entries: entries not yet in a ledger above which publishing waits.
        backlog_wait_s: longest wait for the backlog to shrink.
        attempts: tries before a publish raises.
        timeout_s: longest wait to connect, and for one reply.
        stream: name of the stream.

    Raises:
        ConfigError: the settings or the URL cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        max_backlog_entries: int | None = None,
        backlog_wait_s: float = 30.0,
        attempts: int | None = None,
        timeout_s: float | None = None,
        stream: str | None = None,
    ) -> None:
        settings = load_settings()
        self._client = connect(
            url or server_url(settings.redis.plain_url, settings.data_dir),
            timeout_s=timeout_s or settings.redis.timeout_s,
        )
        self._stream = TurnStream(
            self._client,
            name=stream or settings.stream.turns,
            dead_name=settings.stream.dead,
            group=settings.stream.group,
        )
        self._attempts = attempts or settings.redis.publish_attempts
        self._max_backlog_entries = max_backlog_entries or settings.redis.max_backlog_entries
        self._backlog_wait_s = backlog_wait_s
        self._n_until_check = 0  # the first publish measures it

    def publish(self, turn: Turn) -> str:
        """Publish one turn; gives its entry id. Raises what `publish_event` raises."""
        return self.publish_event(turn)

    def publish_many(self, turns: Iterable[Turn]) -> list[str]:
        """Publish many turns in order; gives their entry ids. Raises what `publish_events` raises."""
        return self.publish_events(turns)

    def close_session(
        self,
        scope: Scope,
        session_id: str,
        summary: str | None = None,
        *,
        timestamp: datetime | str | float | None = None,
        event_id: str = "",
    ) -> str:
        """Say that a session has ended, so that it is summarised now; ``timestamp`` defaults to now."""
        return self.publish_event(
            SessionClosed(
                scope=scope,
                session_id=session_id,
                summary=summary,
                timestamp_ms=_epoch_ms(timestamp),
                event_id=event_id or uuid.uuid4().hex,
            )
        )

    def forget(
        self,
        scope: Scope,
        session_id: str | None = None,
        turn_id: str | None = None,
        *,
        timestamp: datetime | str | float | None = None,
        event_id: str = "",
    ) -> str:
        """Have a turn, a session, or with neither id the whole scope up to ``timestamp`` (now) forgotten.

        Raises:
            PoisonError: a turn without its session.
        """
        timestamp_ms, event_id = _epoch_ms(timestamp), event_id or uuid.uuid4().hex
        if turn_id is not None and session_id is None:
            raise PoisonError("is needed to forget a turn", field="session_id")
        event: Event
        if session_id is None:
            event = ScopeDeleted(scope=scope, timestamp_ms=timestamp_ms, event_id=event_id)
        elif turn_id is None:
            event = SessionDeleted(scope=scope, session_id=session_id, timestamp_ms=timestamp_ms, event_id=event_id)
        else:
            event = TurnDeleted(
                scope=scope, session_id=session_id, turn_id=turn_id, timestamp_ms=timestamp_ms, event_id=event_id
            )
        return self.publish_event(event)

    def publish_event(self, event: Event) -> str:
        """Publish one event; gives its entry id.

        Raises:
            PoisonError: the event breaks the contract; nothing was sent.
            Backpressure: the server stays full or too far behind; wait before publishing more.
            PublishError: the server cannot be reached or refuses; publish the same event again later.
        """
        raw = contract.encode(event)
        self._wait_for_room(1)
        return self._insistently(partial(self._stream.append, raw))

    def publish_events(self, events: Iterable[Event]) -> list[str]:
        """Publish many events in order, slice by slice; gives their entry ids.

        Raises what `publish_event` raises; the slices before the error are then in the stream.

        Raises:
            PoisonError: what is given holds no events.
        """
        if not isinstance(events, Iterable):
            raise PoisonError(f"is {type(events).__name__}; give a list of them", field="turns")
        ids = list[str]()
        for raws in _sliced(contract.encode(event) for event in events):
            self._wait_for_room(len(raws))
            ids += self._insistently(partial(self._stream.append_many, raws))
        log.info("turns.published", entries=len(ids))
        return ids

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _insistently(self, call: Callable[[], T]) -> T:
        try:
            for attempt in stamina.retry_context(
                on=TransientError,
                attempts=self._attempts,
                timeout=None,
                wait_initial=_FIRST_WAIT_S,
                wait_max=_LONGEST_WAIT_S,
                wait_jitter=_FIRST_WAIT_S,
            ):
                with attempt:
                    return call()
        except PublishError:  # Backpressure: already in the caller's words
            raise
        except TransientError as error:
            raise PublishError(f"not published after {self._attempts} attempts: {error}") from error
        raise AssertionError  # stamina either returns or raises

    def _wait_for_room(self, n_entries: int) -> None:
        self._n_until_check -= n_entries
        if self._n_until_check >= 0:
            return
        deadline, wait_s = time.monotonic() + self._backlog_wait_s, _FIRST_WAIT_S
        while (n_unread := self._insistently(self._stream.unread)) > self._max_backlog_entries:
            if time.monotonic() + wait_s > deadline:
                raise Backpressure(
                    f"{n_unread} events wait to be ingested, more than {self._max_backlog_entries}; "
                    "see that 'turnstream up' is running, then publish again"
                )
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        self._n_until_check = CHECK_EVERY_ENTRIES


def _sliced(raws: Iterable[bytes]) -> Iterator[list[bytes]]:
    some, n_bytes = list[bytes](), 0
    for raw in raws:
        if some and (len(some) == SLICE_ENTRIES or n_bytes + len(raw) > SLICE_BYTES):
            yield some
            some, n_bytes = [], 0
        some.append(raw)
        n_bytes += len(raw)
    if some:
        yield some


def _epoch_ms(timestamp: datetime | str | float | None) -> int:
    return to_epoch_ms(time.time() if timestamp is None else timestamp)
