"""The Prometheus endpoint: ``/metrics``, and ``/healthz`` for probes.

Everything is looked up when asked for, and kept for a second. Labels are of fixed sets and the processes' names: no
scope, and nothing a user wrote. ``/healthz`` names scopes, as `doctor` does; it is for this machine.

`turnstream_index_gaps` is what the last whole `doctor --verify` found, with the time of that: to count them means to
read every ledger. `turnstream_snapshot_age_seconds` is how long the scope that has waited longest for a snapshot has
waited: an old snapshot to which nothing was added is as good as new.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from workers import health, vitals
from workers.health import Problem, What
from workers.vitals import RegistryVitals, Vitals

_KEPT_S: Final = 1.0
_PREFIX: Final = "turnstream_"
log = structlog.get_logger()


class Observatory:
    """What was seen last, looked up anew when it is older than a second; safe to share between threads.

    Args:
        settings: of the installation.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._seen: tuple[Vitals, list[Problem]] | None = None

    def look(self) -> tuple[Vitals, list[Problem]]:
        """Give what is, and what of it is a problem; a hundred at once cost one look."""
        with self._lock:
            if self._seen is None or time.monotonic() - self._seen[0].monotonic_s > _KEPT_S:
                seen = vitals.look(self._settings)
                self._seen = seen, health.problems(self._settings, seen)
            return self._seen

    def collect(self) -> Iterator[Metric]:
        """Give what Prometheus is told (it calls this at each scrape)."""
        seen, problems = self.look()
        found = {problem.what for problem in problems}
        yield _labelled("degraded", "Whether work does not get on, by what is wrong", "what", {
            what.value: float(what in found) for what in What if what not in health.WARNINGS
        })  # fmt: skip
        yield _labelled("warning", "Whether something waits for a person to look at it", "what", {
            what.value: float(what in found) for what in What if what in health.WARNINGS
        })  # fmt: skip
        yield from _of_processes(self._settings, seen)
        yield from _of_stream(seen)
        if seen.registry:
            yield from _of_registry(seen.registry, seen.now_ms)
        if seen.registry and seen.stream:
            help_text = "Age of the oldest work that is not searchable yet"
            yield _gauge("searchable_lag_seconds", help_text, seen.searchable_lag_s)


def serve(settings: Settings, *, host: str, port: int) -> None:
    """Answer until SIGTERM or SIGINT.

    Args:
        settings: of the installation.
        host: the address to listen on.
        port: the port; 0 takes a free one, which the log names.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    with make_server(settings, host=host, port=port) as server:
        log.info("metrics.listening", host=host, port=server.server_port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever()


def make_server(settings: Settings, *, host: str, port: int) -> ThreadingHTTPServer:
    """Listen; the caller has it serve.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    observatory = Observatory(settings)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(observatory)

    class Handler(_Handler):
        seen = observatory
        metrics = registry

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); set TURNSTREAM_METRICS__PORT and "
            "TURNSTREAM_METRICS__HOST to a free port of an address of this machine"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    seen: Observatory
    metrics: CollectorRegistry
    server_version = "turnstream"
    sys_version = ""
    timeout = 10.0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            self._answer(200, content_type, encode(self.metrics))
        elif path == "/healthz":
            problems = self.seen.look()[1]
            lines = [json.dumps({"degraded": problem.is_degraded, **asdict(problem)}) + "\n" for problem in problems]
            status = 503 if any(problem.is_degraded for problem in problems) else 200
            self._answer(status, "application/x-ndjson", "".join(lines).encode())
        else:
            self._answer(404, "text/plain", b"ask for /metrics or /healthz\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log no requests: they come every few seconds."""


def _of_processes(settings: Settings, seen: Vitals) -> Iterator[Metric]:
    patience_s = settings.workers.stalled_after_s
    up = {"server": float(seen.stream is not None)}
    for sign in seen.processes:
        up[sign.name] = float(sign.lives and seen.monotonic_s - sign.due_s <= patience_s)
    yield _labelled("up", "Whether a process lives and gets on", "process", up)
    starts = CounterMetricFamily(
        _PREFIX + "process_starts", "Starts of a process, restarts included", labels=["process"]
    )
    for sign in seen.processes:
        starts.add_metric([sign.name], sign.n_starts)
    yield starts


def _of_stream(seen: Vitals) -> Iterator[Metric]:
    if seen.stream is None:
        return
    backlog = seen.stream.backlog
    yield _labelled("backlog_entries", "Entries that are in no ledger yet", "state", {
        "undelivered": backlog.undelivered, "pending": backlog.pending, "stray": backlog.stray,
    })  # fmt: skip
    pending, undelivered = seen.stream.pending, seen.stream.undelivered
    yield _gauge(
        "oldest_pending_seconds", "Age of the oldest entry given to an ingester", pending.age_s if pending else 0
    )
    yield _gauge(
        "oldest_undelivered_seconds", "Age of the oldest entry nobody took", undelivered.age_s if undelivered else 0
    )
    yield _gauge("dead_letters", "Entries set aside for good", backlog.dead)
    if seen.stream.memory_ratio is not None:
        yield _gauge("server_memory_ratio", "Share of the server's memory in use", seen.stream.memory_ratio)


def _of_registry(registry: RegistryVitals, now_ms: int) -> Iterator[Metric]:
    counts, waiting = registry.counts, registry.waiting
    outcomes = CounterMetricFamily(_PREFIX + "events", "Events by what became of them", labels=["outcome"])
    for outcome, n_events in registry.totals.items():
        outcomes.add_metric([outcome], n_events)
    yield outcomes
    yield _labelled("turns", "Turns in the ledgers", "state", {
        "searchable": counts.searchable, "skipped": counts.skipped,
        "pending": counts.pending, "quarantined": counts.quarantined,
    })  # fmt: skip
    yield _gauge("quarantined_turns", "Turns set aside after too many attempts", counts.quarantined)
    yield _labelled("sessions_unsummarised", "Sessions without a summary: it failed, or was not tried yet", "state", {
        "failed": counts.summary_failed, "waiting": counts.unsummarised - counts.summary_failed,
    })  # fmt: skip
    yield _labelled("scopes", "Scopes, and how many of them wait for what", "state", {
        "all": waiting.scopes, "undone": waiting.undone, "refused": waiting.refused,
        "snapshot_due": waiting.snapshots, "purge_due": waiting.purges,
    })  # fmt: skip
    yield _gauge(
        "snapshot_age_seconds", "Time the longest waiting scope has waited for a snapshot",
        _age_s(waiting.snapshot_since_ms, now_ms),
    )  # fmt: skip
    yield _gauge(
        "purge_age_seconds", "Time since the oldest forgetting not yet purged", _age_s(waiting.purge_since_ms, now_ms)
    )
    if registry.verified:
        yield _gauge("index_gaps", "Turns missing in sessions, at the last verification", registry.verified.n_gaps)
        yield _gauge("verified_timestamp_seconds", "Time of the last verification", registry.verified.at_ms / 1000)
    tokens = CounterMetricFamily(_PREFIX + "summary_tokens", "Tokens that summaries took", labels=["direction"])
    for direction, n_tokens in zip(("in", "out"), registry.tokens, strict=True):
        tokens.add_metric([direction], n_tokens)
    yield tokens


def _age_s(since_ms: int | None, now_ms: int) -> float:
    return 0.0 if since_ms is None else max(0.0, (now_ms - since_ms) / 1000)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, help_text, value=value)


def _labelled(name: str, help_text: str, label: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, help_text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family
