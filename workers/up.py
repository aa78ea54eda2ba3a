"""What `turnstream up` runs: the embedded server unless another is set, the ingesters, the workers."""

from __future__ import annotations

import socket
import sys
from functools import partial

import structlog

from pipeline.settings import PREFIX, Settings
from pipeline.shards import require_usable
from pipeline.stream import check_server, connect, server_url
from retrieval.context.backends import opening
from workers import refill
from workers.embedded import EmbeddedServer
from workers.liveness import INGESTER, WORKER, forget_dead, has_token, pulse_path
from workers.supervisor import ChildSpec, DataFolderLock, PulseWatch, ServerWatch, Supervisor, end_leftovers
from workers.worker import THREAD_VARIABLES

_STOP_TIMEOUT_S = 20.0
_LEFTOVERS_END_WITHIN_S = 5.0
_log = structlog.get_logger()


def run(settings: Settings) -> None:
    """Run everything until SIGTERM, SIGINT or SIGHUP; on return no child is left.

    Raises:
        ConfigError: the data folder, the server or the store of session memory cannot be used, or another `up` holds
            the folder.
        ServerUnreachableError: the given server does not answer.
    """
    require_usable(settings.data_dir)
    if (windows := opening.open_shared(settings.context)) is not None:  # each worker would end over it
        windows.close()
    with DataFolderLock(settings.data_dir):
        end_leftovers(settings.data_dir, _own_processes(settings), within_s=_LEFTOVERS_END_WITHIN_S)
        forget_dead(settings.data_dir)
        refill.refill(settings.data_dir)
        Supervisor(child_specs(settings), stalled_after_s=settings.workers.stalled_after_s).run()


def child_specs(settings: Settings) -> list[ChildSpec]:
    """Describe the processes, in the order in which they start.

    Raises:
        ServerUnreachableError: the given server does not answer.
    """
    specs = []
    if settings.metrics.port is not None:  # the first: it says that the server does not answer
        command = _verb("metrics")
        specs.append(ChildSpec(name="metrics", command=command, env=_environment(settings), is_needed=False))
    if settings.redis.url is None:
        specs.append(_server_spec(settings))
    else:
        warn_of_server(settings)
    for kind, name in _own_processes(settings):
        options = _sessions_option(settings, name) if kind == WORKER else []
        specs.append(
            ChildSpec(
                name=name,
                command=_verb(kind, "--name", name, *options),
                env=_environment(settings),
                stop_timeout_s=_STOP_TIMEOUT_S,
                serves=partial(has_token, settings.data_dir, name) if kind == WORKER else None,
                watch=PulseWatch(pulse_path(settings.data_dir, kind, name)),
                writes_stack=True,
            )
        )
    return specs


def _own_processes(settings: Settings) -> list[tuple[str, str]]:
    """List the kinds and names of the ingesters, then of the workers."""
    host = socket.gethostname()
    ingesters = [(INGESTER, f"{host}-ingester-{number}") for number in range(settings.workers.n_ingesters)]
    return ingesters + [(WORKER, f"worker-{number}") for number in range(settings.workers.n_workers)]


def _sessions_option(settings: Settings, name: str) -> list[str]:
    """A summary model somewhere else may be slow and must not hold up all workers: only the last one waits for it."""
    takes_sessions = settings.summary.invoker == "extractive" or name == f"worker-{settings.workers.n_workers - 1}"
    return ["--sessions" if takes_sessions else "--no-sessions"]


def _server_spec(settings: Settings) -> ChildSpec:
    server = EmbeddedServer(
        settings.data_dir, durability=settings.redis.durability, memory_bytes=settings.redis.memory_bytes
    )
    watch = ServerWatch(server.socket)
    return ChildSpec(
        name="server", command=server.command, ready=watch.is_ready, stop_timeout_s=_STOP_TIMEOUT_S, watch=watch
    )


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
