"""At most one `up` on a data folder, and nothing left over from the last one.

Owns ``<data_dir>/run/up.lock``, locked as long as one `up` runs on the folder; the kernel frees it when that dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog

from pipeline.errors import ConfigError
from workers import liveness

_POLL_S: Final = 0.05

log = structlog.get_logger()


class DataFolderLock:
    """At most one `up` on a data folder; a context manager.

    Raises:
        ConfigError: on entering, when another process holds the folder; says which and since when.
    """

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "run" / "up.lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)  # closed on exec: children do not hold it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise ConfigError(
                f"{self.path.parent.parent} is already in use by {holder}; end that first, or set another "
                "TURNSTREAM_DATA_DIR"
            ) from error
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": datetime.now(UTC).isoformat("T", "seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def end_leftovers(data_dir: Path, names: Iterable[tuple[str, str]], *, within_s: float) -> None:
    """End processes of these kinds and names that a killed `up` left behind; call it with the folder locked.

    The kernel has asked them to end already (Linux), but one that hangs or was stopped does not hear it: it would
    hold its claims for ever.

    Args:
        data_dir: the data folder.
        names: kind and name of each process that will be started.
        within_s: how long they may take to finish what they are at.
    """
    import psutil  # noqa: PLC0415 - costs the start of everybody else 20 ms

    left: list[tuple[str, psutil.Process]] = []
    wanted = {(kind, liveness.pulse_path(data_dir, kind, name).name) for kind, name in names}
    for sign in liveness.signs(data_dir):
        if sign.lives and (sign.kind, f"{sign.kind}.{sign.name}") in wanted:
            with suppress(psutil.Error):
                process = psutil.Process(sign.pid)
                if sign.kind in process.cmdline():  # the pid may be another's, or of another container
                    process.terminate()
                    left.append((sign.name, process))
    deadline = time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [(name, process) for name, process in left if _runs(process)]
    for name, process in left:
        log.warning("child.killed", child=name, pid=process.pid)
        with suppress(psutil.Error):
            process.kill()


def _runs(process: Any) -> bool:
    import psutil  # noqa: PLC0415 - the same

    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _holder(raw: bytes) -> str:
    try:
        owner: dict[str, Any] = json.loads(raw)
        return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
    except (ValueError, KeyError, TypeError):  # between taking the lock and writing its name
        return "another process"
