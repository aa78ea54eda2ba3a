"""What can be wrong with an installation besides its data, looked at one thing at a time; changes nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import closing

import apsw

from pipeline import embed
from pipeline.errors import ConfigError, ShardError, TransientError
from pipeline.registry import FILE, Registry
from pipeline.settings import Settings
from pipeline.shards import require_usable
from pipeline.stream import check_server, connect, server_url
from retrieval.context.backends.opening import open_shared
from workers.checkup.finding import Finding, Verdict, of_error

DISTRIBUTION = "turnstream"
_PACKAGES = ("pipeline", "workers", "retrieval")


def findings(settings: Settings) -> Iterator[Finding]:
    """Look at everything but the data, the cheap first."""
    checks: list[tuple[str, Callable[[Settings], str]]] = [
        ("packages", _packages),
        ("data folder", _data_folder),
        ("model", _model),
        ("server", _server),
        ("registry", _registry),
        ("session memory", _session_memory),
    ]
    for what, check in checks:
        yield _finding(what, lambda check=check: check(settings))  # type: ignore[misc] # bound at once, called at once


def _finding(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, Verdict.OK, check())
    except _Advice as advice:
        return Finding(what, Verdict.ADVICE, str(advice))
    except (ConfigError, ShardError, TransientError) as error:
        return of_error(what, error)


class _Advice(Exception):  # noqa: N818 - no error: it works, but could be better
    """Something that works and should be changed all the same."""


def _packages(_settings: Settings) -> str:
    owners = importlib.metadata.packages_distributions()
    for name in _PACKAGES:
        others = sorted(set(owners.get(name, [])) - {DISTRIBUTION})
        if others:
            raise ConfigError(
                f"the package {name!r} is also installed by {', '.join(others)}; give Turnstream its own environment"
            )
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"the package {name!r} is not installed whole; install Turnstream again")
    return f"SQLite {apsw.sqlite_lib_version()}"


def _data_folder(settings: Settings) -> str:
    if not settings.data_dir.exists():
        raise _Advice(f"{settings.data_dir} does not exist yet; 'turnstream up' makes it")
    require_usable(settings.data_dir)
    return str(settings.data_dir)


def _model(settings: Settings) -> str:
    chosen = settings.embedding
    if chosen.backend in {"torch", "hashing"}:
        return f"{chosen.model} ({chosen.backend})"
    prepared = embed.find_prepared(model=chosen.model, backend=chosen.backend, models_dir=settings.models_dir)
    if prepared is None:
        raise _Advice(f"{chosen.model} is not exported yet; 'turnstream prepare' does it (20 s), or the first 'up'")
    return f"{prepared.id} revision {prepared.revision}, {prepared.dimension} dimensions ({chosen.backend})"


def _server(settings: Settings) -> str:
    url = server_url(settings.redis.plain_url, settings.data_dir)
    with connect(url, timeout_s=settings.redis.timeout_s) as client:
        problems = check_server(client)
    if problems:
        raise _Advice("; ".join(problems))
    return "reachable, append-only, noeviction"


def _session_memory(settings: Settings) -> str:
    windows = open_shared(settings.context)
    if windows is None:
        return "in the ledgers"
    with closing(windows):
        windows.check()
    return f"shared by {settings.context.backend}, which answers"


def _registry(settings: Settings) -> str:
    if not (settings.data_dir / FILE).exists():
        raise _Advice("there is none yet; 'turnstream up' makes it")
    with closing(Registry(settings.data_dir, create=False)) as registry:
        n_scopes, counts = len(registry.scopes()), registry.counts()
    return f"{n_scopes} scopes, {counts.searchable} turns searchable"
