"""Summaries on disk, one file per distinct text, in a folder that belongs to one scope.

``<key>.json`` is a summary, ``<key>.lock`` is held while one is being made, ``<key>.tmp`` is one being written.
After a crash a summary is there whole or not at all; a leftover ``.tmp`` is overwritten by the next try and a
leftover ``.lock`` is free, because the lock is the kernel's.

Why a checksum: a summary is paid for once and read for years. What cannot be proven whole is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import filelock
import structlog

from pipeline import shards
from pipeline.crash_points import CrashPoint, passing
from pipeline.errors import SummaryError, TransientError

FORMAT: Final = 1
DEFAULT_MAX_TOKENS: Final = 140
_MAX_FILE_BYTES: Final = 16 << 20
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSummary:
    """What one file holds. ``created`` is ISO 8601, UTC; ``session_key`` names the session that asked first."""

    key: str
    text: str
    model_id: str
    template_version: str
    max_tokens: int
    session_key: str
    created: str
    answered_by: str
    tokens_in: int
    tokens_out: int
    format: int = FORMAT


def summary_key(text: str, model_id: str, template_version: str, max_tokens: int = DEFAULT_MAX_TOKENS) -> str:
    """Derive the key of a text's summary: SHA-256, hex, of model, template and stripped text joined by newlines.

    Another length than the default stands behind the template version. Source: the contract of the summariser.
    """
    template = template_version if max_tokens == DEFAULT_MAX_TOKENS else f"{template_version}/{max_tokens}"
    return hashlib.sha256(f"{model_id}\n{template}\n{text.strip()}".encode()).hexdigest()


class SummaryCache:
    """The summaries of one scope.

    Args:
        folder: a folder of this scope alone; made, with mode 0700, when it is missing.
        lock_wait_s: longest wait for another process that is making the same summary.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(self, folder: Path, *, lock_wait_s: float = 600.0) -> None:
        # Only here: a write must not bring back a folder that was removed because its scope is to be forgotten.
        shards.make_private_folder(folder)
        self._folder = folder
        self._lock_wait_s = lock_wait_s

    def read(self, key: str) -> CachedSummary | None:
        """Give the summary, or None when it is absent, damaged, empty or filed under another's key."""
        try:
            summary = _parse(_read_whole(self._path(key)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("summary.cache_damaged", key=key, error=type(error).__name__)
            return None
        return summary if summary.key == key and summary.text.strip() else None

    def write(self, summary: CachedSummary) -> None:
        """Store a summary in place of what was there; whole and durable on return.

        Raises:
            OSError: it could not be written (disk full, read-only); whatever was there before still is.
        """
        temporary = self._folder / f"{summary.key}.tmp"
        try:
            _write_durably(temporary, _serialise(summary))
            temporary.replace(self._path(summary.key))
            shards.fsync_folder(self._folder)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Let one thread of one process at a time make the summary of a key.

        A folder in which no lock file can be made (read-only, disk full) gives no exclusion, only a warning.

        Raises:
            SummaryError: another one has been at it for longer than ``lock_wait_s``.
        """
        path = self._folder / f"{key}.lock"
        lock = filelock.FileLock(path, timeout=self._lock_wait_s, mode=0o600, poll_interval=0.02)
        try:
            self._folder.stat()  # the lock would make a missing folder
            lock.acquire()
        except filelock.Timeout as error:
            raise SummaryError(
                f"another process has been summarising the same text for {self._lock_wait_s:g} s ({path}); "
                "it is tried again later"
            ) from error
        except OSError as error:
            _log.warning("summary.lock_failed", folder=str(self._folder), error=os.strerror(error.errno or 0))
            yield
            return
        try:
            yield
        finally:
            if self._path(key).exists():  # whoever still waits on the old file finds the summary
                with suppress(OSError):
                    path.unlink()
            lock.release()

    def damaged(self) -> list[Path]:
        """List the files that cannot be read, or are filed under another's key."""
        return [
            path for path in sorted(self._folder.glob("*.json")) if self.read(path.stem) is None and path.exists()
        ]

    def forget(self, session_key: str) -> int:
        """Remove what was summarised for a session, and whatever cannot be read; durable on return.

        Returns:
            How many files were removed.
        """
        doomed = list(self._folder.glob("*.tmp"))
        for path in self._folder.glob("*.json"):
            summary = self.read(path.stem)
            if summary is None or summary.session_key == session_key:
                doomed.append(path)
        for path in doomed:
            path.unlink(missing_ok=True)
        shards.fsync_folder(self._folder)
        return len(doomed)

    def keep_only(self, keys: set[str]) -> int:
        """Remove every summary but those of the given keys, and whatever a kill left half written; durable on return.

        Returns:
            How many files were removed.

        Raises:
            TransientError: a summary is being made right now, perhaps of what is to be gone; try again.
        """
        for path in self._folder.glob("*.lock"):
            _remove_free(path)
        doomed = [
            p for p in self._folder.iterdir() if p.suffix == ".tmp" or (p.suffix == ".json" and p.stem not in keys)
        ]
        for path in doomed:
            path.unlink(missing_ok=True)
        shards.fsync_folder(self._folder)
        return len(doomed)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _remove_free(path: Path) -> None:
    """Remove a lock that nobody holds.

    Raises:
        TransientError: somebody holds it.
    """
    lock = filelock.FileLock(path, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise TransientError(f"{path} is held: a summary is being made; it is tried again") from error
    except OSError:  # read-only, or the disk is full: no lock was made here either
        return
    path.unlink(missing_ok=True)
    lock.release()


def _serialise(summary: CachedSummary) -> bytes:
    body = asdict(summary)
    return json.dumps({"sha256": _checksum(body), "summary": body}, ensure_ascii=False, indent=1).encode()


def _parse(raw: bytes) -> CachedSummary:
    """Check and read a file's bytes.

    Raises:
        ValueError: they are no JSON, or their checksum is wrong.
        KeyError: a part is missing.
        TypeError: a part is of another kind.
    """
    outer = json.loads(raw)
    body = outer["summary"]
    if outer["sha256"] != _checksum(body):
        raise ValueError("the checksum does not match")
    return CachedSummary(**body)


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read_whole(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_FILE_BYTES)


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        half = len(content) // 2
        file.write(content[:half])
        file.flush()
        passing(CrashPoint.CACHE_HALF_WRITTEN)
        file.write(content[half:])
        file.flush()
        os.fsync(file.fileno())
