"""The registry against the shards: it must know them all, and all their work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress

from pipeline.errors import ShardError, TransientError
from pipeline.ledger import check
from pipeline.records import Scope
from pipeline.registry import FILE, Registry
from pipeline.settings import Settings
from workers.checkup import shard, stream
from workers.checkup.finding import Finding, damaged

_SETTLES_WITHIN_S = 3.0
_LOOK_AGAIN_S = 0.2
_WHAT = "registry"
_REMEDY = "'turnstream doctor --repair' refills it"


def findings(settings: Settings, looked_at: Mapping[Scope, check.Counted], *, idle: bool) -> Iterator[Finding]:
    """Yield what the registry does not know: whoever is not in it is never rung again when a doorbell is lost."""
    path = settings.data_dir / FILE
    if not path.exists():
        if looked_at:
            yield damaged(_WHAT, f"{path} is missing; {_REMEDY}, as 'turnstream up' does")
        return
    try:
        with closing(Registry(settings.data_dir, create=False)) as registry:
            if problems := registry.problems():
                yield damaged(_WHAT, f"{path}: {'; '.join(problems)}; {_REMEDY}")
                return
            for scope, problem in _persisting(settings, registry, looked_at).items():
                yield damaged(_WHAT, f"{scope.key} {problem}; {_REMEDY}")
            if idle and (n_undone := registry.n_undone()):
                yield damaged(_WHAT, f"{n_undone} scopes are marked as having work; see the log of 'turnstream up'")
    except (ShardError, TransientError) as error:
        yield damaged(_WHAT, str(error))


def known_scopes(settings: Settings) -> list[Scope]:
    """List the scopes that the registry knows; none when it cannot be read."""
    with suppress(ShardError, TransientError), closing(Registry(settings.data_dir, create=False)) as registry:
        return [Scope.parse(key) for key in registry.scopes()]
    return []


def unknown_work(settings: Settings, looked_at: Mapping[Scope, check.Counted]) -> dict[Scope, str]:
    """Give the scopes whose work the registry does not know, each with what it is.

    Raises:
        ShardError: the registry is damaged.
        TransientError: it is locked.
    """
    with closing(Registry(settings.data_dir, create=False)) as registry:
        if problems := registry.problems():
            raise ShardError(f"{registry.path}: {'; '.join(problems)}")
        return _differing(registry, looked_at)


def _persisting(settings: Settings, registry: Registry, looked_at: Mapping[Scope, check.Counted]) -> dict[Scope, str]:
    """Compare with the registry, again and again where it differs: between a commit and its mark it may.

    A mark comes before its entries are acknowledged, so nothing is said while some are not.
    """
    suspects = _differing(registry, looked_at)
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while suspects and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
        suspects = _differing(registry, {scope: shard.counted(settings, scope) for scope in suspects})
    return {} if suspects and stream.is_being_read(settings) else suspects


def _differing(registry: Registry, looked_at: Mapping[Scope, check.Counted]) -> dict[Scope, str]:
    known, found = registry.known(), {}
    for scope, counts in looked_at.items():
        has_work, due_ms = known.get(scope.key, (False, None))
        if scope.key not in known:
            found[scope] = "is not in it"
        elif counts.n_undone and not has_work:
            found[scope] = f"has {counts.n_undone} turns that are not searchable yet, and is noted as done"
        elif counts.n_due and not has_work and due_ms is None:
            found[scope] = f"has {counts.n_due} sessions without a summary or a purge, and nothing is noted as due"
    return found
