"""Looking for what is wrong, and mending it.

`installation` looks at packages, settings, the model and the server; `data` at everything that was
accepted: `shard` at one scope's files, `summaries` at what its sessions' summaries cover, `stream` at what no ledger
has. `repair` mends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.records import Scope
from pipeline.settings import Settings
from workers import health
from workers.checkup import installation
from workers.checkup.data import look_at_data, verify_data
from workers.checkup.finding import Finding, Verdict
from workers.checkup.repair import repair
from workers.checkup.stream import GAPS

__all__ = ["GAPS", "Finding", "Verdict", "examine", "repair", "verify_data"]


def examine(settings: Settings, *, verify: bool, scopes: Sequence[Scope] | None = None) -> Iterator[Finding]:
    """Look at everything, the cheap first; with ``verify`` also at all data, or that of some scopes.

    Raises:
        ConfigError: there is no such scope.
    """
    yield from installation.findings(settings)
    said = {health.What.SERVER_UNREACHABLE, health.What.SERVER_UNFIT, health.What.REGISTRY}
    yield from _stuck(settings, but=said | ({health.What.INDEX_GAPS} if verify else set()))
    if verify:
        yield from look_at_data(settings, scopes=scopes)


def _stuck(settings: Settings, *, but: set[health.What]) -> Iterator[Finding]:
    """Tell what waits too long or was set aside, but for what is said elsewhere."""
    for problem in health.problems(settings):
        if problem.what not in but:
            yield Finding(problem.what.replace("_", " "), Verdict.ADVICE, problem.detail)
