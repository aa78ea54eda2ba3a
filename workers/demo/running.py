"""The demo's own pipeline: a temporary folder, and `turnstream up` in it as a child process.

Whatever ends the demo (its end, an error, Ctrl-C, SIGTERM, SIGHUP), the child is ended first and the folder removed
after it. A SIGKILL leaves the folder; on Linux the child is then ended by the kernel.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import platformdirs
import psutil

from pipeline.errors import TransientError, TurnstreamError
from pipeline.settings import PREFIX
from pipeline.stream import TurnStream
from pipeline.stream.connection import socket_path
from workers.supervisor import die_with_parent

LOG_FILE: Final = "up.log"
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_WITHIN_S: Final = 45.0
_SERVER_WITHIN_S: Final = 60.0
_LINES_SHOWN: Final = 15
_KEPT: Final = f"{PREFIX}EMBEDDING__"
_CACHE_DIR: Final = f"{_KEPT}CACHE_DIR"
_SETTINGS: Final = {
    "INDEX__MIN_TAIL": "32",  # so few traces would do without a snapshot; the demo is to have some
    "WORKERS__SWEEP_EVERY_S": "0.5",
    "SUMMARY__SETTLE_S": "0.1",
}


@contextmanager
def temporary_folder(*, keep: bool) -> Iterator[Path]:
    """Make a private folder, and remove it in the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="turnstream-demo-"))
    try:
        yield folder
    finally:
        with _undisturbed():
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
            sockets = socket_path(folder).parent
            if folder.resolve() not in sockets.parents:  # moved out, because the folder's path is too long for it
                shutil.rmtree(sockets, ignore_errors=True)


def settle_environment(data_dir: Path) -> None:
    """Have this process and its children see the demo's settings; of the caller's, those of the embedding stay.

    The exported model is kept between runs, unless the user's cache folder cannot be written.
    """
    for name in [name for name in os.environ if name.upper().startswith(PREFIX)]:
        if not name.upper().startswith(_KEPT):
            del os.environ[name]
    os.environ |= {f"{PREFIX}{name}": value for name, value in _SETTINGS.items()}
    os.environ[f"{PREFIX}DATA_DIR"] = str(data_dir)
    if _CACHE_DIR not in os.environ:
        cache = Path(platformdirs.user_cache_dir("turnstream", appauthor=False)) / "models"
        os.environ[_CACHE_DIR] = str(cache if _can_be_made(cache) else data_dir / "models")


@contextmanager
def running_pipeline(data_dir: Path) -> Iterator[Pipeline]:
    """Run `turnstream up` on the folder, and end it with everything it started."""
    descriptor = os.open(data_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-P", "-m", "workers.cli", "up", "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C on the terminal reaches the demo alone
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - this process has one thread yet
        )
        try:
            yield Pipeline(process, data_dir / LOG_FILE)
        finally:
            with _undisturbed():
                _end(process)


class Pipeline:
    """`turnstream up` as a child, its log in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    def require_running(self) -> None:
        """Check that it has not ended.

        Raises:
            TurnstreamError: it has; with the last lines of its log.
        """
        if (code := self._process.poll()) is not None:
            raise TurnstreamError(f"'turnstream up' ended with exit code {code}; the end of its log:\n{self._tail()}")

    def give_up(self, why: str) -> NoReturn:
        """Say what did not happen, with the last lines of the log.

        Raises:
            TurnstreamError: always.
        """
        raise TurnstreamError(f"{why}; the end of the log of 'turnstream up':\n{self._tail()}")

    def wait_for_server(self, stream: TurnStream) -> None:
        """Wait until the stream's server answers.

        Raises:
            TurnstreamError: it does not, or the pipeline ended.
        """
        deadline = time.monotonic() + _SERVER_WITHIN_S
        while True:
            self.require_running()
            try:
                stream.unread()
            except TransientError:
                if time.monotonic() > deadline:
                    self.give_up(f"the server does not answer after {_SERVER_WITHIN_S:g} s")
                time.sleep(0.05)
            else:
                return

    def _tail(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LINES_SHOWN:]) or "(it is empty)"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        for left in [*psutil.Process(process.pid).children(recursive=True), process]:
            left.kill()
        process.wait()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP unwind the stack, as Ctrl-C does."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    heeded = [
        number for number in _STOP_SIGNALS if signal.getsignal(number) is signal.SIG_DFL
    ]  # SIGHUP: not by nohup
    former = {number: signal.signal(number, leave) for number in heeded}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Tidy up to the end, whatever signal comes now."""
    former = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _can_be_made(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
