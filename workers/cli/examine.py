"""The verb `doctor`: what is wrong, where, what to do; and mending it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from pipeline.errors import ConfigError, ShardError, TransientError
from workers.cli import common

if TYPE_CHECKING:
    from workers.checkup import Finding


def doctor(
    verify: Annotated[bool, typer.Option("--verify", help="Compare all data with each other.")] = False,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="KIND/ID whose data alone is looked at; may be repeated.")
    ] = None,
    mend: Annotated[
        bool, typer.Option("--repair", help="Make again whatever can be, then look once more; implies --verify.")
    ] = False,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
    as_json: common.AsJson = False,
) -> None:
    """Look for what is wrong, and say what to do; exit 1 when work does not get on, 2, 3 or 4 when more is wrong."""
    if scope and not (verify or mend):
        raise ConfigError("--scope says whose data to look at; give it with --verify or --repair")
    from workers.checkup import GAPS, Verdict, examine, repair  # noqa: PLC0415 - loads NumPy and more
    from workers.vitals import note_verified  # noqa: PLC0415 - the same

    codes = {
        Verdict.DEGRADED: common.EXIT_FAILED,
        Verdict.BUSY: common.EXIT_FAILED,
        Verdict.CONFIGURATION: common.EXIT_USAGE,
        Verdict.UNREACHABLE: common.EXIT_UNREACHABLE,
        Verdict.DAMAGED: common.EXIT_DAMAGED,
    }
    settings = common.settings_of(data_dir, redis_url)
    scopes = [common.scope_of(key) for key in scope] if scope else None
    done: list[Finding] = []
    if mend:
        with common.err.status("mending"):
            done = repair(settings, scopes=scopes)
    findings = []
    for finding in chain(done, examine(settings, verify=verify or mend, scopes=scopes)):
        findings.append(finding)
        if not as_json and finding.verdict not in codes:
            _print(finding)
    if (verify or mend) and not scopes:
        n_gaps = sum(finding.n for finding in findings if finding.what.endswith(GAPS))
        with suppress(ShardError, TransientError):  # said above
            note_verified(settings, n_gaps=n_gaps, losses_are_known=mend)
    if as_json:
        common.print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:  # last, where they are seen
            if finding.verdict in codes:
                _print(finding)
    if worst := max((codes.get(finding.verdict, 0) for finding in findings[len(done) :]), default=0):
        raise SystemExit(worst)


def _print(finding: Finding) -> None:
    common.out.print(Text(f"{finding.verdict:>13}  {finding.what}: {finding.detail}"), soft_wrap=True)
