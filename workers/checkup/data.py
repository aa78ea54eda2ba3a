"""Everything wrong with the data: each scope's files, then the registry and the stream against them. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.ledger import check
from pipeline.records import Scope
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, Shards
from workers.checkup import registry, shard, stream
from workers.checkup.finding import Finding, Verdict


def verify_data(settings: Settings, *, scopes: Sequence[Scope] | None = None, idle: bool = False) -> list[Finding]:
    """Give everything that is wrong with the data; an empty list means that nothing is.

    May be asked while everything runs: work under way is not wrong. A server that does not answer is left out.

    Args:
        settings: of the installation.
        scopes: look at these alone; None: at all.
        idle: the caller states that all work is done. Then turns that are not searchable, due sessions, purges,
            entries not acknowledged, unsettled marks and left-over temporary files are wrong as well.

    Raises:
        ConfigError: there is no such scope.
    """
    return [finding for finding in look_at_data(settings, scopes=scopes, idle=idle) if finding.verdict != Verdict.OK]


def look_at_data(
    settings: Settings, *, scopes: Sequence[Scope] | None = None, idle: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong scope by scope, and last how much was looked at.

    Raises:
        ConfigError: there is no such scope.
    """
    folders = folders_of(settings, scopes)
    n_turns = 0
    gaps: dict[Scope, tuple[check.Gap, ...]] = {}
    undone: dict[Scope, check.Counted] = {}
    for folder, scope in folders.items():
        seen = shard.look(settings, folder, expected=scope, idle=idle)
        yield from seen.findings
        n_turns += seen.counts.n_turns
        if seen.scope is not None:
            gaps[seen.scope] = seen.gaps
            undone[seen.scope] = seen.counts
    yield from stream.findings(settings, gaps, idle=idle)
    yield from registry.findings(settings, undone, idle=idle)
    yield Finding("data", Verdict.OK, f"{len(folders)} scopes, {n_turns} turns looked at")


def folders_of(settings: Settings, scopes: Sequence[Scope] | None) -> dict[Path, Scope | None]:
    """Give the shards' folders with their scopes, as far as the caller or the registry knows them.

    Raises:
        ConfigError: there is no such scope.
    """
    shards = Shards(settings.data_dir)
    if scopes is not None:
        for scope in scopes:
            if not shards.folder(scope).is_dir():
                raise ConfigError(
                    f"there is no scope {scope.key} in {settings.data_dir}; 'turnstream stats' counts them"
                )
        return {shards.folder(scope): scope for scope in scopes}
    known = {shards.folder(scope): scope for scope in registry.known_scopes(settings)}
    without_ledger = [folder for folder in known if not (folder / LEDGER_FILE).exists()]
    return {folder: known.get(folder) for folder in [*shards.walk(), *without_ledger]}
