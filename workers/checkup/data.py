"""Everything wrong with the data: each scope's files, then the registry and the stream against them. Read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pipeline.errors import ConfigError, ShardError, TransientError
from pipeline.ledger import check
from pipeline.records import Scope
from pipeline.registry import FILE as REGISTRY_FILE
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, Shards
from workers.checkup import shard, stream
from workers.checkup.finding import Finding, Verdict, damaged

_SETTLES_WITHIN_S = 3.0
_LOOK_AGAIN_S = 0.2


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
    for folder, name in folders.items():
        seen = shard.look(settings, folder, name=name, idle=idle)
        yield from seen.findings
        n_turns += seen.counts.n_turns
        if seen.scope is not None:
            gaps[seen.scope] = seen.gaps
            undone[seen.scope] = seen.counts
    yield from stream.findings(settings, gaps, idle=idle)
    yield from _registry(settings, undone, idle=idle)
    yield Finding("data", Verdict.OK, f"{len(folders)} scopes, {n_turns} turns looked at")


def folders_of(settings: Settings, scopes: Sequence[Scope] | None) -> dict[Path, str]:
    """Give the shards' folders with the names their scopes go by as far as the registry knows them.

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
        return {shards.folder(scope): scope.key for scope in scopes}
    names = {shards.folder(Scope.parse(key)): key for key in _known(settings)}
    return {folder: names.get(folder, f"shard {folder.name}") for folder in [*shards.walk(), *_without_ledger(names)]}


def _without_ledger(names: dict[Path, str]) -> list[Path]:
    return [folder for folder in names if not (folder / LEDGER_FILE).exists()]


def _known(settings: Settings) -> list[str]:
    try:
        with closing(Registry(settings.data_dir, create=False)) as registry:
            return registry.scopes()
    except (ShardError, TransientError):  # said where the registry itself is looked at
        return []


def _registry(settings: Settings, looked_at: dict[Scope, check.Counted], *, idle: bool) -> Iterator[Finding]:
    """Say what the registry does not know: whoever is not in it is never rung again when a doorbell is lost."""
    what, remedy = "registry", "'turnstream doctor --repair' refills it"
    if not (settings.data_dir / REGISTRY_FILE).exists():
        if looked_at:
            yield damaged(what, f"{settings.data_dir / REGISTRY_FILE} is missing; {remedy}, as 'turnstream up' does")
        return
    try:
        with closing(Registry(settings.data_dir, create=False)) as registry:
            if problems := registry.problems():
                yield damaged(what, f"{registry.path}: {'; '.join(problems)}; {remedy}")
                return
            for scope, problem in _persisting(settings, registry, looked_at).items():
                yield damaged(what, f"{scope.key} {problem}; {remedy}")
            if idle and (n_undone := registry.n_undone()):
                yield damaged(what, f"{n_undone} scopes are marked as having work; see the log of 'turnstream up'")
    except (ShardError, TransientError) as error:
        yield damaged(what, str(error))


def _persisting(settings: Settings, registry: Registry, looked_at: dict[Scope, check.Counted]) -> dict[Scope, str]:
    """Compare with the registry, again and again where it differs: between a commit and its mark it may.

    A mark follows at the latest when the entries are acknowledged, so nothing is said while some are not.
    """
    suspects = _differing(registry, looked_at)
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while suspects and (time.monotonic() < deadline or stream.is_being_read(settings)):
        if time.monotonic() > deadline:
            return {}
        time.sleep(_LOOK_AGAIN_S)
        suspects = _differing(registry, {scope: shard.counted(settings, scope) for scope in suspects})
    return suspects


def _differing(registry: Registry, looked_at: dict[Scope, check.Counted]) -> dict[Scope, str]:
    known, found = registry.known(), {}
    for scope, counts in looked_at.items():
        has_work, due_ms = known.get(scope.key, (False, None))
        if scope.key not in known:
            found[scope] = "is not in it"
        elif counts.n_undone and not has_work:
            found[scope] = f"has {counts.n_undone} turns or purges to be done, and is noted as done"
        elif counts.n_unsummarised and not has_work and due_ms is None:
            found[scope] = f"has {counts.n_unsummarised} sessions without a summary, and nothing is noted as due"
    return found
