"""A worker process: one Celery worker, pool `solo`, with everything a turn needs loaded once.

Why `solo`: FAISS, ONNX Runtime and torch hang in a child forked after their use; the supervisor runs as many
processes as are wanted and restarts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from celery import Celery

from pipeline import crash_points, log
from pipeline.chunk import Chunker
from pipeline.embed import Embedder, load_embedder
from pipeline.ledger import Ledger, LedgerPool
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import SUMMARIES_FOLDER, Shards, require_usable
from pipeline.stream import server_url
from pipeline.summarise import (
    Completion,
    ExtractiveInvoker,
    OpenAIInvoker,
    SessionSummarizer,
    SummaryInvoker,
    extractive,
)
from workers import tasks
from workers.app import EMBED_TURNS, PUBLISH_SNAPSHOTS, SUMMARISE_SESSIONS, make_app
from workers.indexer import Indexer
from workers.limits import ledgers_at_once
from workers.liveness import WorkerToken
from workers.sessions import SessionDesk

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
"""To be set to 1 before numpy, FAISS, ONNX Runtime or the tokenizer are imported."""


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
    crash_points.arm(settings.crash_at)
    require_usable(settings.data_dir)
    url = server_url(settings.redis.plain_url, settings.data_dir)
    app = make_app(url, timeout_s=settings.redis.timeout_s)
    tasks.register(app, make_flow(settings, app, name))
    queues = [EMBED_TURNS, *([SUMMARISE_SESSIONS] if summarises else []), PUBLISH_SNAPSHOTS]
    app.worker_main(
        ["--quiet", "worker", "--pool=solo", f"--hostname={name}@%h", f"--queues={','.join(queues)}",
         "--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    )  # fmt: skip


def make_flow(settings: Settings, app: Celery, name: str) -> tasks.Flow:
    """Load what a worker works with.

    Raises:
        ConfigError: the model or the summary endpoint cannot be used.
    """
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
        sessions=SessionDesk(settings.summary, embedder, _summarizer_of(settings, registry), now_ms),
        indexer=Indexer(settings.index, embedder),
        token=WorkerToken(settings.data_dir, name),
        clock=now_ms,
    )


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


def now_ms() -> int:
    """Give the epoch milliseconds of this machine's clock."""
    return time.time_ns() // 1_000_000


def _summarizer_of(settings: Settings, registry: Registry) -> Callable[[Ledger], SessionSummarizer]:
    """Give what makes a scope's summariser: its cache lies in the scope's own folder, its cost in the registry."""
    chosen, invoker = settings.summary, _invoker(settings)
    model_id = chosen.model if chosen.invoker == "openai" else extractive.MODEL

    def note_cost(completion: Completion) -> None:
        registry.add_tokens(completion.tokens_in, completion.tokens_out)

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
