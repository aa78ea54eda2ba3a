"""Which workers live: each holds a lock on a file of its own for as long as its process runs.

Why: a pid may be reused, and means nothing to a worker in another container; a lock ends with its process, whatever
ends it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from pipeline.shards import make_private_folder


class WorkerToken:
    """This process's proof of life.

    Args:
        data_dir: the data folder that its workers share.
        label: the worker's name in logs; the token adds something unique.
    """

    def __init__(self, data_dir: Path, label: str) -> None:
        self._folder = data_dir / "run" / "workers"
        make_private_folder(self._folder)
        self._sweep()
        self.name = f"{label}-{os.getpid()}-{secrets.token_hex(4)}"
        self._descriptor = os.open(self._folder / self.name, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def is_alive(self, name: str) -> bool:
        """Tell whether the worker of that name still runs."""
        if name == self.name:
            return True
        try:
            descriptor = os.open(self._folder / name, os.O_RDWR)
        except OSError:  # its file was swept after it ended
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def close(self) -> None:
        """End the proof of life."""
        (self._folder / self.name).unlink(missing_ok=True)
        os.close(self._descriptor)

    def _sweep(self) -> None:
        self.name = ""
        for path in self._folder.iterdir():
            if not self.is_alive(path.name):
                path.unlink(missing_ok=True)
