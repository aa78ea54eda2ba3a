"""What `turnstream up` runs: the embedded server unless another is set, the ingesters, the workers."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path

import structlog

from pipeline.errors import ShardError, TransientError
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.ledger.connection import read_meta, translated
from pipeline.records import Scope
from pipeline.registry import FILE as REGISTRY_FILE
from pipeline.registry import Registry
from pipeline.settings import PREFIX, Settings
from pipeline.shards import LEDGER_FILE, Shards, require_usable
from pipeline.stream import check_server, connect, server_url
from workers.embedded import EmbeddedServer
from workers.supervisor import ChildSpec, DataFolderLock, Supervisor
from workers.worker import THREAD_VARIABLES, now_ms

_STOP_TIMEOUT_S = 20.0
_BOOT = "boot_id"
_log = structlog.get_logger()


def run(settings: Settings) -> None:
    """Run everything until SIGTERM, SIGINT or SIGHUP; on return no child is left.

    Raises:
        ConfigError: the data folder or the server cannot be used, or another `up` holds the folder.
        ServerUnreachableError: the given server does not answer.
    """
    require_usable(settings.data_dir)
    with DataFolderLock(settings.data_dir):
        _refill_registry(settings)
        Supervisor(child_specs(settings)).run()


def child_specs(settings: Settings) -> list[ChildSpec]:
    """Describe the processes, in the order in which they start.

    Raises:
        ServerUnreachableError: the given server does not answer.
    """
    specs = []
    if settings.redis.url is None:
        server = EmbeddedServer(
            settings.data_dir, durability=settings.redis.durability, memory_bytes=settings.redis.memory_bytes
        )
        specs.append(
            ChildSpec(name="server", command=server.command, ready=server.is_ready, stop_timeout_s=_STOP_TIMEOUT_S)
        )
    else:
        warn_of_server(settings)
    environment = _environment(settings)
    host = socket.gethostname()
    for number in range(settings.workers.n_ingesters):
        name = f"{host}-ingester-{number}"
        specs.append(ChildSpec(name=name, command=_verb("ingester", "--name", name), env=environment))
    last = settings.workers.n_workers - 1
    for number in range(settings.workers.n_workers):
        name = f"worker-{number}"
        # A summary model somewhere else may be slow and must not hold up all of them: only the last one waits for it.
        takes_sessions = number == last or settings.summary.invoker == "extractive"
        sessions = "--sessions" if takes_sessions else "--no-sessions"
        specs.append(
            ChildSpec(
                name=name,
                command=_verb("worker", "--name", name, sessions),
                env=environment,
                stop_timeout_s=_STOP_TIMEOUT_S,
            )
        )
    return specs


def warn_of_server(settings: Settings) -> None:
    """Log what makes the given server unfit.

    Raises:
        ServerUnreachableError: it does not answer.
    """
    url = server_url(settings.redis.plain_url, settings.data_dir)
    with connect(url, timeout_s=settings.redis.timeout_s) as client:
        for problem in check_server(client):
            _log.warning("server.found_unfit", problem=problem)


def _verb(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "workers.cli", *arguments]


def _environment(settings: Settings) -> dict[str, str]:
    given = {f"{PREFIX}DATA_DIR": str(settings.data_dir.absolute())}
    if settings.redis.url is not None:
        given[f"{PREFIX}REDIS__URL"] = settings.redis.url.get_secret_value()
    return given | dict.fromkeys(THREAD_VARIABLES, str(settings.embedding.n_threads))


def _refill_registry(settings: Settings) -> None:
    """Have a registry that knows all work, whatever became of the last one."""
    try:
        _mark_unknown(settings.data_dir)
    except ShardError as error:
        _set_registry_aside(settings.data_dir, reason=str(error))
        _mark_unknown(settings.data_dir)


def _mark_unknown(data_dir: Path) -> None:
    """Mark the shards that the registry does not know, and all of them after the machine went down.

    Why: the registry is not flushed at each mark. A killed process loses nothing of it, a power cut may.
    """
    shards = Shards(data_dir)
    with closing(Registry(data_dir)) as registry:
        folders, boot = list(shards.walk()), _boot_id()
        if registry.fact(_BOOT) == boot:
            known = {shards.folder(Scope.parse(key)) for key in registry.scopes()}
            folders = [folder for folder in folders if folder not in known]
        scopes = [scope for folder in folders if (scope := _scope_in(folder)) is not None]
        registry.mark(scopes, now_ms=now_ms())
        registry.note_fact(_BOOT, boot)
    if scopes:
        _log.info("registry.refilled", n_scopes=len(scopes))


def _set_registry_aside(data_dir: Path, *, reason: str) -> None:
    """Rename a damaged registry, its main file last: killed before that, the next start does it again."""
    aside = f"{REGISTRY_FILE}.damaged-{now_ms()}"
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            (data_dir / (REGISTRY_FILE + suffix)).rename(data_dir / (aside + suffix))
    _log.warning("registry.set_aside", file=aside, reason=reason)


def _scope_in(folder: Path) -> str | None:
    """Read whose a shard is; None when it cannot be told: damaged, or killed before the scope was written."""
    path = folder / LEDGER_FILE
    try:
        with closing(connect_ledger(path, query_only=True)) as connection, translated(path):
            return read_meta(connection).get("scope")
    except (ShardError, TransientError) as error:
        _log.error("shard.found_damaged", shard=folder.name, reason=str(error))
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux: every start counts as one after a power cut
        return secrets.token_hex(8)
