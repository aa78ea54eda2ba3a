"""What a checkup finds, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeline.errors import ConfigError, ServerUnreachableError, TransientError, TurnstreamError


class Verdict(StrEnum):
    """How bad a finding is; the worst one decides the exit code.

    `DEGRADED`: work does not get on. `BUSY`: it could not be looked at or mended just now.
    """

    OK = "ok"
    REPAIRED = "repaired"
    ADVICE = "advice"
    DEGRADED = "degraded"
    BUSY = "busy"
    CONFIGURATION = "configuration"
    UNREACHABLE = "unreachable"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: where, how it is, and what to do; ``n`` counts what is said to be wrong, where it can."""

    what: str
    verdict: Verdict
    detail: str
    n: int = 1


def damaged(what: str, detail: str) -> Finding:
    """Say that data is wrong."""
    return Finding(what, Verdict.DAMAGED, detail)


def of_error(what: str, error: TurnstreamError) -> Finding:
    """Say that something could not be looked at or mended: a locked file or a server that loads is not damage."""
    if isinstance(error, ServerUnreachableError):
        return Finding(what, Verdict.UNREACHABLE, str(error))
    if isinstance(error, TransientError):
        return Finding(what, Verdict.BUSY, str(error))
    if isinstance(error, ConfigError):
        return Finding(what, Verdict.CONFIGURATION, str(error))
    return damaged(what, str(error))


def repaired(what: str, detail: str) -> Finding:
    """Say what was done about it."""
    return Finding(what, Verdict.REPAIRED, detail)
