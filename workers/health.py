"""What is stuck, and what was set aside, each named with what to do.

Degraded: work does not get on. A warning: work goes on, and something is there for a person to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipeline.errors import PoisonError, ShardError, TransientError
from pipeline.ledger import Ledger, upkeep
from pipeline.records import Scope
from pipeline.registry import Worst
from pipeline.settings import Settings
from pipeline.shards import Shards
from workers import vitals
from workers.liveness import INGESTER, WORKER
from workers.vitals import Vitals

_FULL: Final = 0.99


class What(StrEnum):
    """What can be wrong; the label of a metric, so never a scope or a user's word."""

    SERVER_UNREACHABLE = "server_unreachable"
    SERVER_FULL = "server_full"
    SERVER_UNFIT = "server_unfit"
    REGISTRY = "registry"
    NO_INGESTER = "no_ingester"
    NO_WORKER = "no_worker"
    PROCESS_STALLED = "process_stalled"
    ENTRIES_STUCK = "entries_stuck"
    WORK_STUCK = "work_stuck"
    SCOPES_REFUSED = "scopes_refused"
    SESSIONS_UNSUMMARISED = "sessions_unsummarised"
    SNAPSHOTS_OVERDUE = "snapshots_overdue"
    PURGES_OVERDUE = "purges_overdue"
    TURNS_QUARANTINED = "turns_quarantined"
    DEAD_LETTERS = "dead_letters"
    ENTRIES_LOST = "entries_lost"
    INDEX_GAPS = "index_gaps"


WARNINGS: Final = frozenset(
    {What.SERVER_UNFIT, What.TURNS_QUARANTINED, What.DEAD_LETTERS, What.ENTRIES_LOST, What.INDEX_GAPS}
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; at most one of each kind, which names the worst and counts the others."""

    what: What
    detail: str

    @property
    def is_degraded(self) -> bool:
        """Whether work does not get on; else it is a warning."""
        return self.what not in WARNINGS


def problems(settings: Settings, seen: Vitals | None = None) -> list[Problem]:
    """List what is wrong now, the gravest first; opens at most one ledger.

    Args:
        settings: of the installation.
        seen: what was seen just now; None: look.
    """
    seen = seen or vitals.look(settings)
    checks: tuple[Callable[[Settings, Vitals], Iterator[Problem]], ...] = (
        _of_server, _of_processes, _of_entries, _of_scopes, _set_aside,
    )  # fmt: skip
    return [problem for check in checks for problem in check(settings, seen)]


def _of_server(_settings: Settings, seen: Vitals) -> Iterator[Problem]:
    if "stream" in seen.failures:
        yield Problem(What.SERVER_UNREACHABLE, seen.failures["stream"])
    if "registry" in seen.failures:
        yield Problem(What.REGISTRY, seen.failures["registry"])
    if seen.stream is None:
        return
    if seen.stream.memory_ratio is not None and seen.stream.memory_ratio >= _FULL:
        yield Problem(
            What.SERVER_FULL,
            f"the server's memory is full with {seen.stream.backlog.unread} entries; publishers are refused until the"
            " ingesters catch up, or its maxmemory (TURNSTREAM_REDIS__MEMORY_BYTES) is raised",
        )
    if seen.stream.unfit:
        yield Problem(What.SERVER_UNFIT, "; ".join(seen.stream.unfit))


def _of_processes(settings: Settings, seen: Vitals) -> Iterator[Problem]:
    alive = [sign for sign in seen.processes if sign.lives]
    for kind, what in ((INGESTER, What.NO_INGESTER), (WORKER, What.NO_WORKER)):
        if not any(sign.kind == kind for sign in alive):
            yield Problem(what, f"no {kind} runs on {settings.data_dir}; start 'turnstream up', or its service")
    late_s = {sign.name: seen.monotonic_s - sign.due_s for sign in alive}
    stalled = [name for name, late in late_s.items() if late > settings.workers.stalled_after_s]
    if stalled:
        told = ", ".join(f"{name} ({late_s[name]:.0f} s)" for name in stalled)
        yield Problem(What.PROCESS_STALLED, f"{told} should have made a step; 'turnstream up' would restart it")


def _of_entries(settings: Settings, seen: Vitals) -> Iterator[Problem]:
    if seen.stream is None:
        return
    backlog, limit_s = seen.stream.backlog, settings.health.entries_after_s
    told = []
    if (oldest := seen.stream.pending) and oldest.age_s > limit_s:
        told.append(
            f"entry {oldest.id} was accepted {oldest.age_s:.0f} s ago and is still pending, held by"
            f" {oldest.consumer} ({backlog.pending} are pending); its log says why"
        )
    if (oldest := seen.stream.undelivered) and oldest.age_s > limit_s:
        told.append(
            f"entry {oldest.id} was accepted {oldest.age_s:.0f} s ago and no ingester took it"
            f" ({backlog.undelivered} wait); is one running, and is one enough?"
        )
    if told:
        yield Problem(What.ENTRIES_STUCK, "; ".join(told))


def _of_scopes(settings: Settings, seen: Vitals) -> Iterator[Problem]:
    if seen.registry is None:
        return
    waiting, limits = seen.registry.waiting, settings.health
    kinds = (
        ("undone", waiting.undone, limits.work_after_s, What.WORK_STUCK, "work undone"),
        ("purges", waiting.purges, limits.work_after_s, What.PURGES_OVERDUE, "forgotten bytes to purge"),
        ("snapshots", waiting.snapshots, limits.snapshot_after_s, What.SNAPSHOTS_OVERDUE, "an outgrown snapshot"),
        (
            "unsummarised", waiting.unsummarised, limits.summary_after_s, What.SESSIONS_UNSUMMARISED,
            "a closed session without a summary",
        ),
    )  # fmt: skip
    if refused := seen.registry.worst.get("refused"):
        others = _others(waiting.refused)
        yield Problem(What.SCOPES_REFUSED, f"{refused.scope} cannot be worked on{others}: {refused.refusal}")
    for kind, n_scopes, limit_s, what, has in kinds:
        worst = seen.registry.worst.get(kind)
        if worst and (age_s := (seen.now_ms - worst.since_ms) / 1000) > limit_s:
            why = _why(settings, worst) if what is What.SESSIONS_UNSUMMARISED else worst.refusal
            reason = f": {why}" if why else "; the workers' log says why"
            yield Problem(what, f"{worst.scope} has had {has} for {age_s:.0f} s{_others(n_scopes)}{reason}")


def _set_aside(_settings: Settings, seen: Vitals) -> Iterator[Problem]:
    if seen.stream and (n_dead := seen.stream.backlog.dead):
        yield Problem(What.DEAD_LETTERS, f"{n_dead} entries were set aside; 'turnstream dead-letters list' says why")
    if seen.registry is None:
        return
    if n_turns := seen.registry.counts.quarantined:
        yield Problem(
            What.TURNS_QUARANTINED,
            f"{n_turns} turns failed too often and were set aside; 'turnstream dead-letters list' says why",
        )
    if n_lost := seen.registry.totals.get("lost_before_ingest", 0):
        yield Problem(
            What.ENTRIES_LOST,
            f"{n_lost} accepted entries were removed from the stream before they were ingested; find who runs XDEL,"
            " XTRIM or FLUSHALL, and publish them again",
        )
    if seen.registry.verified and (n_gaps := seen.registry.verified.n_gaps):
        yield Problem(
            What.INDEX_GAPS, f"{n_gaps} turns are missing within sessions; see 'turnstream doctor --verify'"
        )


def _others(n_scopes: int) -> str:
    return "" if n_scopes == 1 else f" (and {n_scopes - 1} more scopes)"


def _why(settings: Settings, worst: Worst) -> str | None:
    """Read in the scope's ledger why its sessions got no summary; None when it does not tell."""
    try:
        scope = Scope.parse(worst.scope)
        with closing(Ledger.open(Shards(settings.data_dir).ledger_path(scope), scope)) as ledger:
            failed = upkeep.unsummarised(ledger, limit=1)
    except (PoisonError, ShardError, TransientError) as error:
        return str(error)
    return str(failed[0]["failure"]) if failed else None
