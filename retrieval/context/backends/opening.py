"""Which store of windows the settings name; one that cannot work is an error now, never memory silently off."""

from __future__ import annotations

from pipeline.errors import ConfigError
from pipeline.settings import ContextSettings
from retrieval.context.backends.protocol import Limits, Windows


def limits_of(settings: ContextSettings) -> Limits:
    """Tell what windows hold: conclusions are those of their exchanges."""
    ttl_ms = None if settings.ttl_s is None else round(1_000 * settings.ttl_s)
    return Limits(max(settings.max_conversations, settings.max_conclusions), ttl_ms)


def open_shared(settings: ContextSettings) -> Windows | None:
    """Open the store that hosts share; None: the settings name none. Nothing is sent to it yet.

    Raises:
        ConfigError: the connection string is missing or cannot be read, or the backend's library is not installed.
    """
    if settings.backend in {"sqlite", "memory"}:
        return None
    url = settings.url.get_secret_value().strip() if settings.url else ""
    if not url:
        raise ConfigError(
            f"TURNSTREAM_CONTEXT__URL is missing; backend {settings.backend} needs a connection string, such as"
            f" {'redis://host:6379/0' if settings.backend == 'redis' else 'postgresql://user@host/database'}"
        )
    if settings.backend == "redis":
        from retrieval.context.backends.redis import RedisWindows  # noqa: PLC0415 - readers know no Redis but here

        return RedisWindows(url, limits_of(settings))
    try:
        from retrieval.context.backends.postgres import PostgresWindows  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise ConfigError(
            "TURNSTREAM_CONTEXT__BACKEND=postgres needs psycopg and its libpq; install turnstream with its extra"
            " 'postgres', or 'psycopg[binary]'"
        ) from error
    return PostgresWindows(url, limits_of(settings))
