"""Verbs that run the pipeline and look after it: up, its processes, wait, stats, settings, dead-letters."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.table import Column, Table
from rich.text import Text

from pipeline import log
from pipeline.errors import ConfigError, ShardError, TurnstreamError
from pipeline.ledger import Ledger, upkeep
from pipeline.ledger.work import requeue
from pipeline.records import Scope
from pipeline.registry import Registry
from pipeline.settings import PREFIX, Settings, mask_url
from pipeline.shards import Shards, require_usable
from pipeline.stream import DeadLetter, TurnStream
from pipeline.summarise import Completion, Prices
from workers import health
from workers.cli import common
from workers.progress import Progress

_TEXT_SHOWN = 120
_PAGE = 100


def up(data_dir: common.DataDir = None, redis_url: common.RedisUrl = None) -> None:
    """Run the embedded server (unless another is set), ingesters and workers until Ctrl-C."""
    from workers import up as everything  # noqa: PLC0415 - loads Celery

    settings = common.settings_of(data_dir, redis_url)
    log.configure(settings.log_level, settings.log_format, process="up")
    everything.run(settings)


def prepare(data_dir: common.DataDir = None) -> None:
    """Make the data folder and export the embedding model (20 s, once), so that later starts are quick."""
    from workers.worker import embedder_of  # noqa: PLC0415 - loads the model

    settings = common.settings_of(data_dir)
    require_usable(settings.data_dir)
    common.out.print(embedder_of(settings).model_key)


def server(data_dir: common.DataDir = None) -> None:
    """Become the embedded server, for a service manager that restarts it."""
    from workers.embedded import EmbeddedServer  # noqa: PLC0415 - for this verb only

    settings = common.settings_of(data_dir)
    require_usable(settings.data_dir)
    command = EmbeddedServer(
        settings.data_dir, durability=settings.redis.durability, memory_bytes=settings.redis.memory_bytes
    ).command()
    os.execv(command[0], command)  # noqa: S606 - our own command line


def ingester(
    name: Annotated[str, typer.Option(help="Stable name of this consumer; it resumes what it had pending.")],
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Run one ingester, for a service manager that restarts it."""
    from workers import ingester as process  # noqa: PLC0415 - loads Celery

    process.run(common.settings_of(data_dir, redis_url), name=name)


def worker(
    name: Annotated[str, typer.Option(help="Name in logs.")],
    sessions: Annotated[bool, typer.Option(help="Whether it summarises sessions too.")] = True,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Run one Celery worker, for a service manager that restarts it."""
    from workers import worker as process  # noqa: PLC0415 - loads Celery and the model

    process.run(common.settings_of(data_dir, redis_url), name=name, summarises=sessions)


def metrics(
    port: Annotated[int | None, typer.Option(min=0, help="Port; 0: a free one [TURNSTREAM_METRICS__PORT].")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [TURNSTREAM_METRICS__HOST].")] = None,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Serve /metrics for Prometheus and /healthz for probes, until Ctrl-C."""
    from workers import metrics as endpoint  # noqa: PLC0415 - for this verb only

    settings = common.settings_of(data_dir, redis_url)
    chosen = settings.metrics.port if port is None else port
    if chosen is None:
        raise ConfigError("give --port, or set TURNSTREAM_METRICS__PORT")
    log.configure(settings.log_level, settings.log_format, process="metrics")
    endpoint.serve(settings, host=host or settings.metrics.host, port=chosen)


def wait(
    timeout: Annotated[float, typer.Option(help="Seconds after which to give up.")] = 3_600.0,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Return when everything published so far is searchable and every closed session is summarised."""
    settings = common.settings_of(data_dir, redis_url)
    progress = Progress(settings.data_dir, common.stream_of(settings))
    deadline = time.monotonic() + timeout
    with common.err.status("waiting") as status:
        while (state := progress.state()).is_waiting:
            if time.monotonic() > deadline:
                raise TurnstreamError(f"not done after {timeout:g} s: {state}; is 'turnstream up' running?")
            status.update(str(state))
            time.sleep(0.1)
    if state.counts.quarantined:
        common.err.print(f"{state.counts.quarantined} turns are quarantined; 'turnstream dead-letters list' says why")


def stats(data_dir: common.DataDir = None, redis_url: common.RedisUrl = None, as_json: common.AsJson = False) -> None:
    """Show what happened to every event, what is waiting, and what is set aside."""
    settings = common.settings_of(data_dir, redis_url)
    values = statistics(settings)
    if as_json:
        common.print_json(values)
        return
    for title, group in values.items():
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in group.items():
            table.add_row(name.replace("_", " "), Text(str(value)))
        common.out.print(table)


def settings(
    data_dir: common.DataDir = None, redis_url: common.RedisUrl = None, as_json: common.AsJson = False
) -> None:
    """Show every setting with its value and meaning; secrets are masked."""
    rows = list(_setting_rows(common.settings_of(data_dir, redis_url)))
    if as_json:
        common.print_json({name: value for name, value, _ in rows})
        return
    table = Table(*(Column(name, overflow="fold") for name in ("variable", "value", "meaning")))
    for name, value, meaning in rows:
        table.add_row(Text(name), Text(str(value)), Text(meaning))
    common.out.print(table)


dead_letters = typer.Typer(
    help="List, show, replay or drop what was set aside for good, with its reason.", no_args_is_help=True
)


@dead_letters.command("list")
def list_dead_letters(
    count: Annotated[int, typer.Option(min=1, help="At most so many of each kind.")] = 100,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
    as_json: common.AsJson = False,
) -> None:
    """List dead letters of the stream, and of the ledgers quarantined turns and sessions that got no summary yet."""
    settings = common.settings_of(data_dir, redis_url)
    letters = [
        {"id": x.id, "entry_id": x.entry_id, "field": x.field, "reason": x.reason, "n_bytes": len(x.raw or b"")}
        for x in common.stream_of(settings).dead_letters(count=count)
    ]
    turns: list[dict[str, Any]] = []
    sessions: list[dict[str, Any]] = []
    for ledger in _ledgers(settings):
        turns += upkeep.quarantined(ledger, limit=count - len(turns))
        sessions += upkeep.unsummarised(ledger, limit=count - len(sessions))
    if as_json:
        common.print_json({"dead_letters": letters, "quarantined": turns, "unsummarised": sessions})
        return
    table = Table("id", "where", "reason")
    for letter in letters:
        table.add_row(str(letter["id"]), Text(str(letter["field"] or "event")), Text(str(letter["reason"])))
    for turn in turns:
        place = f"{turn['scope']} {turn['session_id']} {turn['turn_id']}"
        table.add_row("quarantined", Text(place), Text(str(turn["failure"])[:_TEXT_SHOWN]))
    for session in sessions:
        place, reason = f"{session['scope']} {session['session_id']}", str(session["failure"])[:_TEXT_SHOWN]
        table.add_row("unsummarised", Text(place), Text(f"{reason}; tried again at {_utc(session['retry_at_ms'])}"))
    common.out.print(table)


@dead_letters.command("show")
def show_dead_letter(
    letter_id: Annotated[str, typer.Argument(help="Its id in the list.")],
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Print the original bytes of one dead letter on stdout, its reason on stderr."""
    letter = _letter(common.settings_of(data_dir, redis_url), letter_id)
    common.err.print(f"{letter.field or 'event'}: {letter.reason}", markup=False)
    typer.get_binary_stream("stdout").write((letter.raw or b"") + b"\n")


@dead_letters.command("replay")
def replay_dead_letters(
    letter_ids: Annotated[list[str] | None, typer.Argument(help="Ids in the list; none: all.")] = None,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Put dead letters back into the stream, and give quarantined turns a fresh set of attempts."""
    settings = common.settings_of(data_dir, redis_url)
    stream = common.stream_of(settings)
    ids = letter_ids or list(_letter_ids(stream))
    n_turns = 0
    if not letter_ids:
        registry = Registry(settings.data_dir, create=False)
        for ledger in _ledgers(settings):
            if n_requeued := requeue(ledger):
                n_turns += n_requeued
                registry.mark([ledger.scope.key], now_ms=time.time_ns() // 1_000_000)
    common.out.print(f"{len(stream.replay(ids))} entries and {n_turns} turns put back")


@dead_letters.command("drop")
def drop_dead_letters(
    letter_ids: Annotated[list[str], typer.Argument(help="Ids in the list.")],
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
) -> None:
    """Remove dead letters for good."""
    stream = common.stream_of(common.settings_of(data_dir, redis_url))
    common.out.print(f"{stream.drop(letter_ids)} dropped")


def statistics(settings: Settings) -> dict[str, dict[str, Any]]:
    """Gather what `stats` shows."""
    stream, registry = common.stream_of(settings), Registry(settings.data_dir, create=False)
    tokens_in, tokens_out = registry.tokens()
    prices = Prices(settings.summary.usd_per_million_input, settings.summary.usd_per_million_output)
    cost = prices.of(Completion("", tokens_in, tokens_out, ""))
    problems = health.problems(settings)
    return {
        "events": registry.totals(),
        "stream": asdict(stream.backlog()),
        "memory": {
            "scopes": len(registry.scopes()),
            "scopes_with_work": registry.n_undone(),
            **asdict(registry.counts()),
        },
        "summaries": {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost_usd": round(cost, 6)},
        "health": {
            "state": "degraded" if any(problem.is_degraded for problem in problems) else "ok",
            **{problem.what: problem.detail for problem in problems},
        },
    }


def _letter_ids(stream: TurnStream) -> Iterator[str]:
    """Yield the ids of all dead letters, oldest first; no more than a page of their bytes is held at a time."""
    start = "-"
    while page := stream.dead_letters(start=start, count=_PAGE):
        yield from (letter.id for letter in page)
        start = f"({page[-1].id}"


def _letter(settings: Settings, letter_id: str) -> DeadLetter:
    for letter in common.stream_of(settings).dead_letters(start=letter_id, count=1):
        if letter.id == letter_id:
            return letter
    raise ConfigError(f"there is no dead letter {letter_id}; 'turnstream dead-letters list' shows their ids")


def _ledgers(settings: Settings) -> Iterator[Ledger]:
    shards = Shards(settings.data_dir)
    for key in Registry(settings.data_dir, create=False).scopes():
        scope = Scope.parse(key)
        if not shards.ledger_path(scope).exists():
            continue
        try:
            ledger = Ledger.open(shards.ledger_path(scope), scope)
        except ShardError as error:  # the other scopes can be looked at all the same
            common.err.print(f"left out: {error}", markup=False, soft_wrap=True)
            continue
        yield ledger
        ledger.close()


def _utc(time_ms: int | None) -> str:
    return "once" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


def _setting_rows(model: BaseModel, prefix: str = PREFIX) -> Iterator[tuple[str, Any, str]]:
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _setting_rows(value, f"{prefix}{name.upper()}__")
        elif name == "url" and value is not None:
            yield prefix + name.upper(), mask_url(value.get_secret_value()), info.description or ""
        else:
            yield prefix + name.upper(), value, info.description or ""
