"""The moments at which a kill is worth a test, by name: ``TURNSTREAM_CRASH_AT=<point>:<n>`` ends the process there.

A passing does nothing unless an entry point has armed one; then the n-th passing of that point is SIGKILL, which runs
no handler and flushes nothing. ``tests/crash/test_crash_points.py`` walks every point.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import StrEnum

from pipeline.errors import ConfigError


class CrashPoint(StrEnum):
    """Every point, in the order in which a turn meets them."""

    AFTER_READ = "after-read"
    AFTER_DEAD_LETTER = "after-dead-letter"
    BEFORE_BEGIN = "before-begin"
    AFTER_INSERT = "after-insert"
    AFTER_COMMIT = "after-commit"
    AFTER_FLUSH = "after-flush"
    AFTER_MARK = "after-mark"
    AFTER_ACK = "after-ack"
    BEFORE_RING = "before-ring"
    AFTER_RING = "after-ring"
    BEFORE_TRIM = "before-trim"
    AFTER_TRIM = "after-trim"
    TASK_START = "task-start"
    AFTER_ATTEMPT = "after-attempt"
    AFTER_EMBED = "after-embed"
    MID_ROWS = "mid-rows"
    AFTER_TRACES = "after-traces"
    BEFORE_SETTLE = "before-settle"
    CACHE_HALF_WRITTEN = "cache-half-written"
    BEFORE_SUMMARY = "before-summary"
    AFTER_SUMMARY = "after-summary"
    BEFORE_FACTS = "before-facts"
    AFTER_FACTS = "after-facts"
    BEFORE_THEMES = "before-themes"
    AFTER_THEMES = "after-themes"
    SNAPSHOT_OPEN = "snapshot-open"
    SNAPSHOT_HALF_WRITTEN = "snapshot-half-written"
    SNAPSHOT_FSYNCED = "snapshot-fsynced"
    SNAPSHOT_REPLACED = "snapshot-replaced"
    MANIFEST_OPEN = "manifest-open"
    MANIFEST_REPLACED = "manifest-replaced"
    OLD_GENERATION_REMOVED = "old-generation-removed"
    BEFORE_CHECKPOINT = "before-checkpoint"
    AFTER_CHECKPOINT = "after-checkpoint"


class _Armed:
    """The one point at which this process is to end, and the passings left until then."""

    def __init__(self) -> None:
        self.point: CrashPoint | None = None
        self.passings_left = 0
        self.lock = threading.Lock()


_armed = _Armed()


def arm(crash_at: str | None) -> None:
    """Have this process end at the n-th passing of a point, given as ``<point>:<n>``; None: never.

    Raises:
        ConfigError: see `parsed`.
    """
    _armed.point, _armed.passings_left = (None, 0) if crash_at is None else parsed(crash_at)


def parsed(crash_at: str) -> tuple[CrashPoint, int]:
    """Read ``<point>:<n>``.

    Raises:
        ConfigError: there is no such point, or n is no number from 1 on.
    """
    name, _, number = crash_at.partition(":")
    try:
        point, passings = CrashPoint(name), int(number or 1)
    except ValueError as error:
        raise ConfigError(
            f"TURNSTREAM_CRASH_AT is {crash_at!r}; give <point>:<n> with one of: {', '.join(CrashPoint)}"
        ) from error
    if passings < 1:
        raise ConfigError(f"TURNSTREAM_CRASH_AT is {crash_at!r}; passings are counted from 1")
    return point, passings


def passing(point: CrashPoint) -> None:
    """Note that execution stands at a point; ends the process when it is the armed passing."""
    if _armed.point is not point:
        return
    with _armed.lock:
        _armed.passings_left -= 1
        if not _armed.passings_left:
            os.kill(os.getpid(), signal.SIGKILL)
