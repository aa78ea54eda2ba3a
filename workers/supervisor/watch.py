"""How the supervisor tells a child that gets on from one that merely lives.

Nothing here waits: one child that hangs must not keep the supervisor from the others.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from workers.liveness import promise_of

_START_S: Final = 120.0
"""Imports on a slow disk, or a server that waits for its predecessor to save, before the first word of a child."""
_PING_EVERY_S: Final = 1.0


class Watch(Protocol):
    """Tells by when a child should have shown that it gets on."""

    def due_s(self, pid: int, started_s: float, now_s: float) -> float:
        """Give that monotonic time; a child is stalled once it is long past.

        Args:
            pid: the child's.
            started_s: monotonic time of its start.
            now_s: monotonic time.
        """
        ...


class PulseWatch:
    """Watches a child that beats.

    Args:
        path: its pulse, see `workers.liveness`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def due_s(self, pid: int, started_s: float, now_s: float) -> float:  # noqa: ARG002 - a `Watch`
        """Give what the child promised; before its first beat, the time a start may take."""
        promise = promise_of(self._path)
        return promise[1] if promise and promise[0] == pid else started_s + _START_S


class ServerWatch:
    """Watches a server by asking it to answer, without waiting for the answer.

    Args:
        path: its socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = -1
        self._due_s = self._asked_s = 0.0
        self._socket: socket.socket | None = None
        self._is_waiting = self._is_ready = False

    def due_s(self, pid: int, started_s: float, now_s: float) -> float:
        """Give when the server was last heard, or asked since; before it was, the time a start may take."""
        if pid != self._pid:
            self._hang_up()
            self._pid, self._due_s = pid, started_s + _START_S
        try:
            self._listen(now_s)
        except OSError:  # it does not listen yet, or no more
            self._hang_up()
        return self._due_s

    def is_ready(self) -> bool:
        """Tell whether its last answer was that it serves; while it loads its data, it answers that."""
        return self._is_ready

    def _listen(self, now_s: float) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(str(self._path))
        with suppress(BlockingIOError):
            answer = self._socket.recv(4_096)
            self._is_ready = answer.endswith(b"+PONG\r\n")
            if not answer:
                self._hang_up()
                return
            self._due_s, self._is_waiting = now_s, False
        if not self._is_waiting and (not self._is_ready or now_s - self._asked_s >= _PING_EVERY_S):
            self._socket.send(b"PING\r\n")
            self._due_s = self._asked_s = now_s
            self._is_waiting = True

    def _hang_up(self) -> None:
        self._is_waiting = self._is_ready = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None
