"""What Celery and its kin log, in our words: which library, how bad, and what kind of error; never what they quote.

Why: they quote the whole body of a message they refuse, and the text and traceback of an exception, which may repeat
what somebody said. Their templates are constant; the values for them are left out.
"""

from __future__ import annotations

import logging

import structlog

_log = structlog.get_logger()


class _WithoutQuotes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        kind = record.exc_info[0] if record.exc_info else None
        facts = {"library": record.name, "error": kind.__name__ if kind else ""}
        if record.args:
            facts["template"] = str(record.msg).partition("\n")[0]
        if record.levelno >= logging.ERROR:
            _log.error("library.reported", **facts)
        else:
            _log.warning("library.reported", **facts)


def install() -> None:
    """Have all libraries of this process log so, from warnings on. Celery leaves a logger that has a handler."""
    handler = _WithoutQuotes(logging.WARNING)
    logging.getLogger().handlers = [handler]
