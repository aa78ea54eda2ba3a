"""Become the embedded server: ``python -m workers.become_server BINARY CONFIG``.

Owns ``server.lock`` beside the configuration. It holds the server's pid and is locked as long as the server lives.

Why: this program takes the lock and then becomes the server (exec keeps pid and lock), so the lock cannot outlive the
server nor the server the lock, whoever started it and whatever was killed.
Why: a server left over by a killed parent is ended (it saves first; one that hangs is killed) and replaced, not
adopted: nobody would notice its death, and it may run an older configuration.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from pipeline.errors import ShardError

_END_WITHIN_S: Final = 10.0
"""It only has to flush what it has written; one that takes longer does not hear us."""
_GIVE_UP_AFTER_S: Final = 60.0
_POLL_S: Final = 0.05
_LEFT_OVER: Final = ("temp-*.aof", "temp-*.rdb")


def become_server(binary: str, config_path: Path) -> None:
    """Take the folder's lock, ending a left-over server, and replace this process by the server.

    Raises:
        ShardError: another server holds the folder and will not go.
    """
    os.umask(0o077)
    lock = os.open(config_path.parent / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    _take(lock, [binary, str(config_path)])
    for name in _LEFT_OVER:  # of a rewrite that a kill cut off: whole copies that nobody would remove
        for path in config_path.parent.rglob(name):
            path.unlink()
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    os.set_inheritable(lock, True)
    os.execv(binary, [binary, str(config_path)])  # noqa: S606 - our own binary, no shell


def _take(lock: int, command: list[str]) -> None:
    start, sent = time.monotonic(), list[signal.Signals]()
    while not _locked(lock):
        pid, waited_s = os.pread(lock, 32, 0).decode(errors="replace"), time.monotonic() - start
        due = [signal.SIGTERM, signal.SIGKILL] if waited_s > _END_WITHIN_S else [signal.SIGTERM]
        if sent != due and _is_server(pid, command):
            os.kill(int(pid), due[-1])
            sent = due
        if waited_s > _GIVE_UP_AFTER_S:
            raise ShardError(f"process {pid or '?'} holds {Path(command[1]).parent} and does not end; end it first")
        time.sleep(_POLL_S)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_server(pid: str, command: list[str]) -> bool:
    """Tell whether the process runs on our very configuration: its pid alone may be another's by now."""
    import psutil  # noqa: PLC0415 - only a left-over costs the start of the server this import

    try:
        return bool(psutil.Process(int(pid)).cmdline()[-1:] == command[-1:])
    except (ValueError, psutil.Error):
        return False


if __name__ == "__main__":
    become_server(sys.argv[1], Path(sys.argv[2]))
