"""What a checkup finds, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How bad a finding is; the worst one decides the exit code."""

    OK = "ok"
    REPAIRED = "repaired"
    ADVICE = "advice"
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


def repaired(what: str, detail: str) -> Finding:
    """Say what was done about it."""
    return Finding(what, Verdict.REPAIRED, detail)
