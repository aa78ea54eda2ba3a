"""Every setting, its bounds and its unit; built in entry points only.

Environment: ``TURNSTREAM_DATA_DIR``, and ``TURNSTREAM_<GROUP>__<NAME>`` for the groups below. An unknown
``TURNSTREAM_…`` variable is an error, so that a typing mistake never silently means the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from pipeline import crash_points
from pipeline.errors import ConfigError

PREFIX = "TURNSTREAM_"

Ratio = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=3_200_000_000)]  # a century


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImportanceFactors(_Group):
    """Weights of the parts of an exchange's importance."""

    recency: Weight = Field(1.0, description="how lately it was said")
    complexity: Weight = Field(1.0, description="how many tools it took")
    engagement: Weight = Field(1.0, description="how many of the next exchanges follow up on it")
    continuity: Weight = Field(1.0, description="how many later exchanges refer to it")
    success: Weight = Field(1.0, description="how it ended")
    relevance: Weight = Field(10.0, description="how likely it answers the objective, if there is one")


class RedisSettings(_Group):
    """Where events arrive."""

    url: SecretStr | None = Field(None, description="an existing Redis >= 7 or Valkey; unset: the embedded server")
    timeout_s: Seconds = Field(5.0, description="connect and reply timeout")
    durability: Literal["everysec", "strict"] = Field(
        "strict", description="embedded server: flushed to disk before each answer, or every second"
    )
    memory_bytes: Count = Field(1 << 30, description="embedded server: most memory for what is not yet ingested")
    publish_attempts: Count = Field(
        8, description="tries before a publish raises; 8, each refused at once, take five seconds"
    )
    max_backlog_entries: Count = Field(100_000, description="unread entries above which publishers are slowed down")

    @property
    def plain_url(self) -> str | None:
        """The address with its password, for connecting; never to be shown."""
        return self.url.get_secret_value() if self.url else None


class StreamSettings(_Group):
    """Names of the stream and how it is read."""

    turns: str = Field("turnstream:turns", description="stream of events")
    dead: str = Field("turnstream:dead", description="stream of dead letters")
    group: str = Field("ingest", description="consumer group of the ingesters")
    batch_entries: Count = Field(2_000, description="entries committed at once")
    batch_entries_spread: Count = Field(50_000, description="the same for a backlog spread over many scopes")
    batch_bytes: Count = Field(64 << 20, description="bytes of entries after which a batch is committed")
    block_ms: Count = Field(1_000, description="longest wait for new entries")
    claim_idle_ms: Count = Field(60_000, description="idle time after which another consumer's entry is claimed")


class LedgerSettings(_Group):
    """The SQLite file of each scope."""

    max_open: Count = Field(2_000, description="ledgers one process keeps open (three file descriptors each)")
    busy_timeout_ms: Count = Field(30_000, description="longest wait for another writer")


class EmbeddingSettings(_Group):
    """The sentence embedding model."""

    model: str = Field("all-MiniLM-L6-v2", description="bundled name, or the path of a sentence-transformers model")
    backend: Literal["onnx-int8", "onnx-fp32", "torch", "hashing"] = Field(
        "onnx-int8", description="how it is run; hashing needs no model and is for load tests"
    )
    cache_dir: Path | None = Field(None, description="where exported models are kept; unset: <data_dir>/models")
    n_threads: Count = Field(1, description="compute threads of one process")
    batch_tokens: Count = Field(4_096, description="padded tokens of one forward pass")


class WorkerSettings(_Group):
    """The processes that `turnstream up` starts."""

    n_workers: Annotated[int, Field(ge=0)] = Field(2, description="Celery workers, one process each")
    n_ingesters: Annotated[int, Field(ge=0)] = Field(1, description="stream readers")
    claim_turns: Count = Field(256, description="turns one worker takes at once, over all scopes of a doorbell")
    max_attempts: Count = Field(3, description="attempts after which a turn is quarantined")
    turn_timeout_s: Seconds = Field(120.0, description="longest time for one claim before the worker is ended")
    sweep_every_s: Seconds = Field(2.0, description="how often undone work is rung again")
    stalled_after_s: Seconds = Field(
        60.0, description="time past its promised next step after which a process is ended and started again"
    )
    doorbell_scopes: Count = Field(500, description="scope keys in one task")


class SummarySettings(_Group):
    """How sessions are summarised."""

    invoker: Literal["extractive", "openai"] = Field("extractive", description="who writes summaries")
    model: str = Field("gpt-4o-mini", description="model name for the openai invoker")
    base_url: str | None = Field(None, description="any OpenAI-compatible endpoint")
    api_key: SecretStr | None = Field(None, description="its key")
    max_tokens: Count = Field(140, description="length of a summary")
    window_tokens: Count = Field(8_000, description="longest text given to the model at once")
    timeout_s: Seconds = Field(30.0, description="longest wait for one answer")
    concurrency: Count = Field(4, description="calls of one worker at the same time")
    attempts: Count = Field(3, description="tries of one call before the session is put off")
    retry_after_s: Seconds = Field(30.0, description="first wait of a session put off; doubles up to an hour")
    idle_s: Seconds = Field(300.0, description="silence after which an open session is summarised")
    settle_s: Annotated[float, Field(ge=0)] = Field(0.5, description="silence a closed session needs as well")
    theme_turns: Count = Field(
        1_000, description="invoker extractive: turns from which a session's themes are summarised ahead"
    )
    usd_per_million_input: Annotated[float, Field(ge=0)] = Field(0.0, description="price, for the totals in stats")
    usd_per_million_output: Annotated[float, Field(ge=0)] = Field(0.0, description="price, for the totals in stats")


class IndexSettings(_Group):
    """When and how FAISS snapshots are published."""

    flat_max: Count = Field(50_000, description="largest exact index; above it IVF with 8-bit codes")
    min_tail: Count = Field(128, description="traces above the watermark before a snapshot is published")
    growth: Ratio = Field(0.25, description="the same, as a share of the last snapshot")
    min_recall: Ratio = Field(0.97, description="recall@10 against exact search below which IVF is not published")


class RetrievalSettings(_Group):
    """Defaults of a retrieve and the weights of the cognitive score."""

    top_sessions: Annotated[int, Field(ge=0)] = Field(5, description="sessions selected in stage 1")
    chunks_per_session: Annotated[int, Field(ge=0)] = Field(3, description="chunks kept of each")
    recall_top_k: Annotated[int, Field(ge=0)] = Field(10, description="hits returned")
    neighbours: Annotated[int, Field(ge=0, le=10)] = Field(1, description="turns shown before and after a hit")
    beside: Literal["none", "window", "summary"] = Field(
        "window", description="profile fused: what counts beside a turn; its neighbours, or its session's summary"
    )
    coefficients: Path | None = Field(
        None, description="profile fused: weights that 'turnstream fit' wrote; unset: the bundled ones"
    )
    reranker: str | None = Field(
        None, description="a sentence-transformers cross-encoder by path, or by name in the local cache; loads torch"
    )
    weight_strength: Ratio = Field(0.25, description="weight of memory strength")
    weight_similarity: Ratio = Field(0.35, description="weight of cosine similarity")
    weight_recency: Ratio = Field(0.10, description="weight of recency")
    weight_emotion: Ratio = Field(0.15, description="weight of emotional congruence")
    weight_graph: Ratio = Field(0.10, description="weight of graph activation")
    weight_importance: Ratio = Field(0.05, description="weight of importance")


class ContextSettings(_Group):
    """Session memory, and the block that a prompt is given of it."""

    backend: Literal["sqlite", "memory", "redis", "postgres"] = Field(
        "sqlite", description="where recent exchanges are kept; sqlite: the scope's ledger"
    )
    url: SecretStr | None = Field(None, description="connection string of the redis or postgres backend")
    ttl_s: Seconds | None = Field(
        None, description="silence after which a session's memory counts as none; unset: never"
    )
    strategy: Literal["fixed", "importance", "semantic", "hierarchical", "dynamic", "adaptive"] = Field(
        "dynamic", description="how a session is condensed"
    )
    max_conversations: Count = Field(10, description="exchanges in a session's window")
    max_conclusions: Count = Field(5, description="conclusions in a session's window")
    max_tokens_for_context: Count = Field(1_024, description="longest block, headings included")
    n_exchanges: Count = Field(3, description="strategy fixed: exchanges shown")
    max_result_chars: Count = Field(200, description="strategy fixed: characters of a result")
    n_key_results: Annotated[int, Field(ge=0)] = Field(2, description="strategy fixed: key results of an exchange")
    compression_level: Literal["auto", "conservative", "balanced", "aggressive"] = Field(
        "auto", description="strategy adaptive: share kept, 0.8, 0.5 or 0.25; auto: by how the session goes"
    )
    enable_semantic_clustering: bool = Field(
        True, description="strategies dynamic and hierarchical: group by meaning"
    )
    enable_user_profiling: bool = Field(True, description="strategy hierarchical: facts about the user")
    importance_factors: ImportanceFactors = Field(ImportanceFactors(), description="strategy importance: weights")
    template: Path | None = Field(None, description="file that the block is laid out by; unset: our own")


class HealthSettings(_Group):
    """When something that waits counts as stuck."""

    entries_after_s: Seconds = Field(120.0, description="age of an entry that is not yet in a ledger")
    work_after_s: Seconds = Field(600.0, description="time a scope's work, or a purge, has been undone")
    summary_after_s: Seconds = Field(1_800.0, description="time a closed session has had no summary")
    snapshot_after_s: Seconds = Field(1_800.0, description="time a scope has waited for a snapshot")


class MetricsSettings(_Group):
    """The Prometheus endpoint."""

    port: Annotated[int, Field(ge=1, le=65_535)] | None = Field(
        None, description="port that 'turnstream up' serves /metrics and /healthz on; unset: not at all"
    )
    host: str = Field("127.0.0.1", description="address it listens on; shows no user text, asks for no password")


class Settings(BaseSettings):
    """All settings of one process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    data_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("turnstream", appauthor=False)),
        description="folder of the ledgers, snapshots, models and the embedded server",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console on a terminal, else json"
    )
    crash_at: str | None = Field(None, description="for tests: <point>:<n>, where an ingester or worker is killed")
    redis: RedisSettings = RedisSettings()
    stream: StreamSettings = StreamSettings()
    ledger: LedgerSettings = LedgerSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    workers: WorkerSettings = WorkerSettings()
    summary: SummarySettings = SummarySettings()
    index: IndexSettings = IndexSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    context: ContextSettings = ContextSettings()
    health: HealthSettings = HealthSettings()
    metrics: MetricsSettings = MetricsSettings()

    @field_validator("crash_at")
    @classmethod
    def _is_a_point(cls, crash_at: str | None) -> str | None:
        if crash_at is not None:
            crash_points.parsed(crash_at)
        return crash_at

    @property
    def models_dir(self) -> Path:
        """Where exported models are kept."""
        return self.embedding.cache_dir or self.data_dir / "models"


def load_settings(**overrides: Any) -> Settings:
    """Build the settings of this process from the environment; overrides win and skip None.

    Raises:
        ConfigError: a value is out of bounds, or a ``TURNSTREAM_…`` variable is unknown.
    """
    _reject_unknown_variables()
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = [f"{PREFIX}{'__'.join(str(p) for p in e['loc']).upper()}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(lines) + "; 'turnstream settings' lists every setting") from error
    except SettingsError as error:  # a whole group as one variable, which is to be JSON
        raise ConfigError(f"{error}; set {PREFIX}<GROUP>__<NAME> to plain values") from error


def _reject_unknown_variables() -> None:
    known = {name.upper() for name in _variables(Settings, PREFIX)}
    unknown = sorted(n for n in os.environ if n.startswith(PREFIX) and n.upper() not in known)
    if unknown:
        raise ConfigError(f"unknown setting {', '.join(unknown)}; 'turnstream settings' lists every setting")


def _variables(group: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in group.model_fields.items():
        yield prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, _Group):
            yield from _variables(info.annotation, f"{prefix}{name}__")


def mask_url(url: str) -> str:
    """Show a server's address without its password, be it before the host, in the query or in a list of words."""
    url = re.sub(r"(?<=password=)('(?:[^'\\]|\\.)*'|[^&\s]*)", "***", url)
    parts = urlsplit(url)
    if not parts.password:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
