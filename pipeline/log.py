"""Logging for every process: constant event names, fixed keys, no user text; always on stderr.

info: a durable state changed · warning: will be retried · error: an operator must act.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import stamina
import structlog


def configure(level: str = "info", style: Literal["auto", "console", "json"] = "auto", **bound: str) -> None:
    """Send structlog to stderr; ``bound`` values stand in every line of this process."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # Whatever stderr is when a line is written. A line and its end are one write: several processes share
        # the file, and with PYTHONUNBUFFERED print() writes them apart, so that two lines run into one.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # The library's own retry lines quote calls and errors of other libraries, and with them user text.
    stamina.instrumentation.set_on_retry_hooks([])
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
