"""A worker process: one Celery worker, pool `solo`, with everything a turn needs loaded once.

Why `solo`: FAISS, ONNX Runtime and torch hang in a child forked after their use; the supervisor runs as many
processes as are wanted and restarts them.
"""

from __future__ import annotations

import faulthandler
import functools
import time
from collections.abc import Callable

from celery import Celery

from pipeline import crash_points, log
from pipeline.chunk import Chunker
from pipeline.embed import Embedder, find_prepared, load_embedder
from pipeline.ledger import Ledger, LedgerPool
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import SUMMARIES_FOLDER, Shards, require_usable
from pipeline.stream import TurnStream, connect, server_url
from pipeline.summarise import (
    Completion,
    ExtractiveInvoker,
    OpenAIInvoker,
    SessionSummarizer,
    SummaryInvoker,
    extractive,
)
from pipeline.summarise.summarizer import LONGEST_RETRY_AFTER_S
from retrieval.context.backends import opening
from workers import library_log, tasks
from workers.app import CONDENSE_SESSIONS, EMBED_TURNS, PUBLISH_SNAPSHOTS, SUMMARISE_SESSIONS, make_app
from workers.condensing import CondensingDesk, Write
from workers.consumer import PulsingConsumer
from workers.forgetting import Forgetting
from workers.indexer import Indexer
from workers.limits import ledgers_at_once
from workers.liveness import STACK_SIGNAL, STDERR, WORKER, Pulse, WorkerToken
from workers.sessions import SessionDesk

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
"""To be set to 1 before numpy, FAISS, ONNX Runtime or the tokenizer are imported."""

_LOAD_S, _EXPORT_S = 60.0, 900.0
"""The longest that loading a model, and exporting it first, should take on a slow disk."""


def run(settings: Settings, *, name: str, summarises: bool) -> None:
    """Serve doorbells until SIGTERM.

    Args:
        settings: of this process.
        name: the worker's name in logs.
        summarises: whether it takes sessions too; a slow summary model must not hold up every worker.

    Raises:
        ConfigError: the data folder, the model or the summary endpoint cannot be used.
    """
    log.configure(settings.log_level, settings.log_format, process=name)
    library_log.install()
    faulthandler.register(STACK_SIGNAL, file=STDERR)
    crash_points.arm(settings.crash_at)
    require_usable(settings.data_dir)
    url = server_url(settings.redis.plain_url, settings.data_dir)
    app = make_app(url, timeout_s=settings.redis.timeout_s)
    flow = make_flow(settings, app, name)
    tasks.register(app, flow)
    app.conf.worker_consumer = functools.partial(PulsingConsumer, pulse=flow.pulse)
    queues = [EMBED_TURNS, *([SUMMARISE_SESSIONS, CONDENSE_SESSIONS] if summarises else []), PUBLISH_SNAPSHOTS]
    app.worker_main(
        ["--quiet", "worker", "--pool=solo", f"--hostname={name}@%h", f"--queues={','.join(queues)}",
         "--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    )  # fmt: skip


def make_flow(settings: Settings, app: Celery, name: str) -> tasks.Flow:
    """Load what a worker works with.

    Raises:
        ConfigError: the model, the summary endpoint or the store of session memory cannot be used.
    """
    pulse = Pulse(settings.data_dir, WORKER, name, step_s=settings.redis.timeout_s)
    pulse.beat(_LOAD_S if is_model_ready(settings) else _EXPORT_S)
    embedder = embedder_of(settings)
    registry = Registry(settings.data_dir, busy_timeout_ms=settings.ledger.busy_timeout_ms)
    return tasks.Flow(
        app=app,
        settings=settings.workers,
        ledgers=LedgerPool(
            Shards(settings.data_dir),
            max_open=ledgers_at_once(settings.ledger.max_open),
            busy_timeout_ms=settings.ledger.busy_timeout_ms,
        ),
        registry=registry,
        chunker=Chunker(embedder.tokenizer, max_tokens=embedder.max_tokens),
        embedder=embedder,
        sessions=SessionDesk(settings.summary, embedder, _summarizer_of(settings, registry, pulse), now_ms),
        condensing=CondensingDesk(settings.summary, _theme_writer_of(settings, registry, pulse), now_ms, pulse.beat),
        indexer=Indexer(settings.index, embedder),
        forgetting=Forgetting(_stream_of(settings), now_ms, opening.open_shared(settings.context)),
        token=WorkerToken(settings.data_dir, name),
        pulse=pulse,
        clock=now_ms,
    )


def _stream_of(settings: Settings) -> TurnStream:
    names = settings.stream
    url = server_url(settings.redis.plain_url, settings.data_dir)
    client = connect(url, timeout_s=settings.redis.timeout_s)
    return TurnStream(client, name=names.turns, dead_name=names.dead, group=names.group)


def embedder_of(settings: Settings) -> Embedder:
    """Load the embedder that the settings name.

    Raises:
        ConfigError: there is no such model.
    """
    chosen = settings.embedding
    return load_embedder(
        model=chosen.model,
        backend=chosen.backend,
        models_dir=settings.models_dir,
        n_threads=chosen.n_threads,
        batch_tokens=chosen.batch_tokens,
    )


def is_model_ready(settings: Settings) -> bool:
    """Tell whether the model needs no export before it is loaded."""
    chosen = settings.embedding
    if not chosen.backend.startswith("onnx"):
        return True
    return find_prepared(model=chosen.model, backend=chosen.backend, models_dir=settings.models_dir) is not None


def now_ms() -> int:
    """Give the epoch milliseconds of this machine's clock."""
    return time.time_ns() // 1_000_000


def _summarizer_of(settings: Settings, registry: Registry, pulse: Pulse) -> Callable[[Ledger], SessionSummarizer]:
    """Give what makes a scope's summariser: its cache lies in the scope's own folder, its cost in the registry."""
    chosen = settings.summary
    invoker = _beating_invoker(settings, pulse)
    model_id = chosen.model if chosen.invoker == "openai" else extractive.MODEL
    note_cost = _cost_noting(registry)

    def summarizer_for(ledger: Ledger) -> SessionSummarizer:
        return SessionSummarizer(
            invoker,
            model_id,
            ledger.path.parent / SUMMARIES_FOLDER,
            chosen.max_tokens,
            window_tokens=chosen.window_tokens,
            attempts=chosen.attempts,
            on_cost=note_cost,
        )

    return summarizer_for


def _theme_writer_of(settings: Settings, registry: Registry, pulse: Pulse) -> Write | None:
    """Give what has the summary model write of a theme, kept in the ledger alone; None: nobody is to be asked."""
    chosen = settings.summary
    if chosen.invoker == "extractive":
        return None
    invoker, note_cost = _beating_invoker(settings, pulse), _cost_noting(registry)

    def write(text: str, max_tokens: int) -> Completion:
        summarizer = SessionSummarizer(
            invoker,
            chosen.model,
            max_tokens=max_tokens,
            window_tokens=chosen.window_tokens,
            attempts=chosen.attempts,
            on_cost=note_cost,
        )
        return summarizer.complete("theme", text)

    return write


def _cost_noting(registry: Registry) -> Callable[[Completion], None]:
    return lambda completion: registry.add_tokens(completion.tokens_in, completion.tokens_out)


def _beating_invoker(settings: Settings, pulse: Pulse) -> _Beating:
    chosen = settings.summary
    # Between two calls it may wait for another worker that asks the same.
    allowance_s = chosen.attempts * (chosen.timeout_s + LONGEST_RETRY_AFTER_S)
    return _Beating(_invoker(settings), pulse, allowance_s=allowance_s)


class _Beating:
    """An invoker that beats at each call: a session is as many calls as it has parts, each of them tried again."""

    def __init__(self, invoker: SummaryInvoker, pulse: Pulse, *, allowance_s: float) -> None:
        self._invoker = invoker
        self._pulse = pulse
        self._allowance_s = allowance_s

    def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:
        self._pulse.beat(self._allowance_s)
        return self._invoker(system, user, max_tokens=max_tokens)


def _invoker(settings: Settings) -> SummaryInvoker:
    chosen = settings.summary
    if chosen.invoker == "extractive":
        return ExtractiveInvoker()
    return OpenAIInvoker(
        base_url=chosen.base_url,
        api_key=chosen.api_key.get_secret_value() if chosen.api_key else None,
        model=chosen.model,
        timeout_s=chosen.timeout_s,
    )
