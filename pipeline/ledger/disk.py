"""Making commits survive a power cut: one flush for a whole batch, before its entries are acknowledged.

Why: SQLite's own ``synchronous=FULL`` waits for the disk at each commit, and a batch of a busy platform commits to a
thousand ledgers. ``synchronous=NORMAL`` keeps each of them consistent; only this flush decides whether they last.

Why only the WAL and the folders: what is in the main file was flushed by SQLite, or by `pipeline.database`. And to
close any descriptor of the main file drops this process's locks on it (POSIX), SQLite's included: the next program to
look in would take itself for the last user, and remove the WAL under us.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.errors import TransientError
from pipeline.ledger.ledger import Ledger

_FEW = 8
"""Up to so many ledgers are flushed one by one: flushing the file system may wait for other programs' writes."""


def flush(ledgers: Sequence[Ledger]) -> None:
    """Make everything committed to these ledgers durable.

    Raises:
        TransientError: the disk refused; nothing may be acknowledged.
    """
    if not ledgers:
        return
    try:
        sync_file_system = _sync_file_system()
        if sync_file_system and len(ledgers) > _FEW:
            sync_file_system(ledgers[0].path.parent)
        else:
            for ledger in ledgers:
                _flush_one(ledger)
    except OSError as error:
        raise TransientError(
            f"the disk refused to flush {ledgers[0].path.parent}: {error.strerror}; retry"
        ) from error
    for ledger in ledgers:
        ledger.note_flushed()


def _flush_one(ledger: Ledger) -> None:
    paths = [ledger.path.with_name(ledger.path.name + "-wal")]
    if not ledger.has_entry_on_disk:
        paths += list(ledger.path.parents)[:4]
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@functools.lru_cache(maxsize=1)
def _sync_file_system() -> Callable[[Path], None] | None:
    """Give Linux's syncfs, which waits for all of a file system's writes and reports their errors; None elsewhere."""
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None

    descriptors: dict[int, int] = {}  # one per file system, kept: a fresh one misses write errors already reported

    def sync(path: Path) -> None:
        device = path.stat().st_dev
        if device not in descriptors:
            descriptors[device] = os.open(path, os.O_RDONLY)
        if syncfs(descriptors[device]) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return sync
