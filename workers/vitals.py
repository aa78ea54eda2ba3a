"""One look at everything that can be seen without opening a ledger: stream, registry, processes.

Its cost does not grow with what waits, and with the number of scopes by a microsecond each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import ConfigError, ShardError, TransientError
from pipeline.registry import Counts, Registry, Waiting, Worst
from pipeline.settings import Settings
from pipeline.stream import TurnStream, connect, server_url
from pipeline.stream.vitals import StreamVitals
from pipeline.stream.vitals import look as look_at_stream
from workers.liveness import Sign, signs

_PATIENCE_S: Final = 2.0
"""The longest wait for the server: whoever looks waits with it."""
_VERIFIED: Final = "verified"


@dataclass(frozen=True, slots=True)
class Verified:
    """What the last whole `doctor --verify` said: when (epoch ms), and how many turn indexes are missing."""

    at_ms: int
    n_gaps: int


@dataclass(frozen=True, slots=True)
class RegistryVitals:
    """What the registry tells; ``worst`` names, for each thing that is waited for, who has waited longest."""

    counts: Counts
    waiting: Waiting
    worst: Mapping[str, Worst]
    totals: Mapping[str, int]
    tokens: tuple[int, int]
    verified: Verified | None


@dataclass(frozen=True, slots=True)
class Vitals:
    """What was seen; a half that could not be seen is None, and its failure says why.

    Args:
        now_ms: when, in epoch milliseconds.
        monotonic_s: the same moment on the clock of the processes' promises.
        stream: the stream and its server.
        registry: what the shards hold and wait for.
        processes: every ingester and worker that ran lately.
        failures: why the stream or the registry could not be looked at, by name.
    """

    now_ms: int
    monotonic_s: float
    stream: StreamVitals | None
    registry: RegistryVitals | None
    processes: list[Sign] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def searchable_lag_s(self) -> float:
        """Age of the oldest work that is not yet searchable; 0 when all is, as far as can be seen."""
        ages = [0.0]
        if self.stream:
            ages += [oldest.age_s for oldest in (self.stream.pending, self.stream.undelivered) if oldest]
        if self.registry and (since_ms := self.registry.waiting.undone_since_ms) is not None:
            ages.append((self.now_ms - since_ms) / 1000)
        return max(ages)


def look(settings: Settings) -> Vitals:
    """Look at everything once; what cannot be looked at is told of, not raised."""
    failures: dict[str, str] = {}
    stream = registry = None
    try:
        stream = _stream(settings)
    except (TransientError, ConfigError) as error:
        failures["stream"] = str(error)
    now_ms = time.time_ns() // 1_000_000
    try:
        registry = _registry(settings)
    except (TransientError, ShardError) as error:
        failures["registry"] = str(error)
    return Vitals(now_ms, time.monotonic(), stream, registry, signs(settings.data_dir), failures)


def note_verified(settings: Settings, *, n_gaps: int) -> None:
    """Keep what a whole verification found, for whoever looks later.

    Raises:
        ShardError: the registry is damaged.
        TransientError: it is locked, or the disk is full.
    """
    with closing(Registry(settings.data_dir, create=False)) as registry:
        registry.note_fact(_VERIFIED, json.dumps([time.time_ns() // 1_000_000, n_gaps]))


def _stream(settings: Settings) -> StreamVitals:
    names = settings.stream
    url = server_url(settings.redis.plain_url, settings.data_dir)
    with connect(url, timeout_s=min(_PATIENCE_S, settings.redis.timeout_s)) as client:
        return look_at_stream(TurnStream(client, name=names.turns, dead_name=names.dead, group=names.group))


def _registry(settings: Settings) -> RegistryVitals:
    with closing(Registry(settings.data_dir, busy_timeout_ms=round(_PATIENCE_S * 1000), create=False)) as registry:
        waiting, verified = registry.waiting(), registry.fact(_VERIFIED)
        waits = [what for what in registry.WAITS if getattr(waiting, what)]
        return RegistryVitals(
            counts=registry.counts(),
            waiting=waiting,
            worst={what: worst for what in waits if (worst := registry.worst(what))},
            totals=registry.totals(),
            tokens=registry.tokens(),
            verified=None if verified is None else Verified(*json.loads(verified)),
        )
