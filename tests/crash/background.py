"""Something that goes on beside a test."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """A thread that does something again and again until the block ends; what it raises is raised there."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def step(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except BaseException as error:  # noqa: BLE001 - raised again where the block ends
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
