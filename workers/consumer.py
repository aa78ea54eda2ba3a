"""Celery's consumer as a worker of ours runs it: it beats while idle, comes back soon, and waits for a full server.

Why: idle, a worker is in Celery's event loop, and while its server is away in Celery's retries; both have to show
that it gets on. Celery's own retries grow to half a minute apart; and whatever the server refuses, such as a write
while it is full, ends Celery's worker with a traceback.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Final

import structlog
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown
from redis.exceptions import RedisError

from pipeline.errors import ServerUnreachableError, TransientError
from pipeline.stream.connection import translate
from workers.liveness import Pulse

_BEAT_EVERY_S: Final = 1.0
_LONGEST_WAIT_S: Final = 2.0

log = structlog.get_logger()


class PulsingConsumer(Consumer):  # type: ignore[misc] # Celery has no types
    """The consumer of one worker.

    Args:
        arguments: Celery's.
        pulse: the worker's.
        options: Celery's.
    """

    def __init__(self, *arguments: Any, pulse: Pulse, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pulse = pulse
        self._timer_entry: Any = None

    def start(self) -> None:
        """Run until told to end; a hang-up tells it too.

        Why: Celery would run itself anew. The kernel hangs up on what a killed supervisor leaves behind.
        """
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
        super().start()

    def register_with_event_loop(self, hub: Any) -> None:
        """Beat from the event loop; it stands still while a task runs, and the task beats itself."""
        super().register_with_event_loop(hub)
        self._pulse.beat()
        if self._timer_entry is not None:  # of the connection before
            self._timer_entry.cancel()
        self._timer_entry = hub.call_repeatedly(_BEAT_EVERY_S, self._pulse.beat)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes."""

        def note(error: Exception, _wait_s: float) -> None:
            log.warning("server.lost", reason=str(error))

        def go_on() -> None:
            maybe_shutdown()
            self._pulse.beat()

        go_on()
        conn.ensure_connection(note, interval_start=1, interval_step=1, interval_max=_LONGEST_WAIT_S, callback=go_on)
        self.first_connection_attempt = False
        return conn

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Wait while the server refuses the connection's first steps for a reason that passes.

        Raises:
            ConfigError: it will go on refusing.
        """
        if not self._wait_if_refused(exc):
            super().on_connection_error_before_connected(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Wait while the server refuses for a reason that passes, then connect anew.

        Raises:
            ConfigError: it will go on refusing.
        """
        self._wait_if_refused(exc)
        super().on_connection_error_after_connected(exc)

    def _wait_if_refused(self, exc: Exception) -> bool:
        refusal = next((error for error in (exc, exc.__cause__) if isinstance(error, RedisError)), None)
        if refusal is None:
            return False
        error = translate(refusal, self.conninfo.as_uri())
        if not isinstance(error, TransientError):
            raise error from exc
        if isinstance(error, ServerUnreachableError):
            return False
        log.warning("server.refused", reason=str(error))
        self._pulse.beat()
        time.sleep(_LONGEST_WAIT_S)
        return True
