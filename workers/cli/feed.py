"""Verbs that put events in: publish, backfill, schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline import contract
from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import FOLDERS, FORMATS
from pipeline.publish import Publisher
from pipeline.records import Event
from pipeline.settings import Settings
from workers.backfill import Backfill, Report
from workers.cli import common

_MALFORMED_SHOWN = 20
_LINES = frozenset({".jsonl", ".ndjson"})
"""Files of JSON lines, whose positions are byte offsets whatever the format."""


def publish(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="JSON lines, one event each; - for stdin.")],
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
    as_json: common.AsJson = False,
) -> None:
    """Publish events from JSON lines; a malformed one is named and the rest goes in; exit code 1 tells of it."""
    settings = common.settings_of(data_dir, redis_url)
    refused: list[str] = []
    with publisher_of(settings) as publisher:
        ids = publisher.publish_events(_events_in(file, refused))
    if as_json:
        common.print_json({"published": len(ids), "refused": refused})
    else:
        common.out.print(f"{len(ids)} published, {len(refused)} refused")
    _tell_malformed(refused, len(refused))


def backfill(
    files: Annotated[list[Path], typer.Argument(help="Transcript files, or folders of them.", show_default=False)],
    form: Annotated[str, typer.Option("--format", help=f"One of: {', '.join(FORMATS)}.")],
    scope: common.OptionalScopeKey = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for ingest to catch up.")] = 600.0,
    restart: Annotated[bool, typer.Option(help="Begin at the start even if an earlier run was cut off.")] = False,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
    as_json: common.AsJson = False,
) -> None:
    """Publish years of transcripts; resumable after a kill, and idempotent when repeated.

    What is malformed is named and the rest goes in; exit code 1 tells of it.
    """
    settings = common.settings_of(data_dir, redis_url)
    where = None if scope is None else common.scope_of(scope)
    missing = [str(path) for path in files if not path.is_file() and not (path.is_dir() and form in FOLDERS)]
    if missing:
        raise ConfigError(f"no such file: {', '.join(missing)}")
    reports: dict[str, Report] = {}
    with publisher_of(settings, backlog_wait_s=patience) as publisher, _progress() as progress:
        job = Backfill(publisher, settings.data_dir)
        for path in files:
            bar = Bar(progress, path, form)
            reports[str(path)] = job.run(path, form, where, restart=restart, on_progress=bar)
            bar.complete()
    _report(reports, as_json=as_json)
    _tell_malformed(
        [bad for report in reports.values() for bad in report.malformed],
        sum(report.n_malformed for report in reports.values()),
    )


def schema(
    tool: Annotated[str | None, typer.Option(help="Print a tool's instead, for OpenAI function calling.")] = None,
) -> None:
    """Print the JSON Schema of events, or of a tool."""
    if tool is None:
        common.print_json(contract.json_schema())
        return
    from retrieval.search.tool import TOOL, tool_schema  # noqa: PLC0415 - whoever publishes loads no reader

    if tool != TOOL:
        raise ConfigError(f"there is no tool {tool!r}; the one there is: {TOOL}")
    common.print_json(tool_schema())


def publisher_of(settings: Settings, *, backlog_wait_s: float = 30.0) -> Publisher:
    """Give a publisher to the server in use."""
    return Publisher(
        common.url_of(settings),
        timeout_s=settings.redis.timeout_s,
        attempts=settings.redis.publish_attempts,
        backlog_wait_s=backlog_wait_s,
    )


def _events_in(file: BinaryIO, refused: list[str]) -> Iterator[Event]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            yield contract.decode(line.strip())
        except PoisonError as error:
            refused.append(f"line {number}: {error}")


class Bar:
    """Moves one file's progress bar; it has no end to move to where positions are ordinals, as in a JSON array."""

    def __init__(self, progress: Progress, path: Path, form: str) -> None:
        counts_bytes = form == "events" or path.suffix in _LINES
        self._progress, self._counts_bytes = progress, counts_bytes
        self._task = progress.add_task(path.name, total=path.stat().st_size if counts_bytes else None, published=0)

    def __call__(self, n_published: int, position: int) -> None:
        """Show how many events are published, and the position in the file if it is one in bytes."""
        self._progress.update(
            self._task, published=n_published, completed=float(position) if self._counts_bytes else None
        )

    def complete(self) -> None:
        """Show the file as done."""
        self._progress.update(self._task, total=1, completed=1)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[published]} events"),
        TimeElapsedColumn(),
        console=common.err,
    )


def _report(reports: dict[str, Report], *, as_json: bool) -> None:
    if as_json:
        rows = {
            name: {
                "published": r.n_published,
                "malformed": r.malformed,
                "n_malformed": r.n_malformed,
                "resumed_at": r.resumed_at,
            }
            for name, r in reports.items()
        }
        sys.stdout.write(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
        return
    for name, report in reports.items():
        resumed = f", taken up at position {report.resumed_at}" if report.resumed_at else ""
        common.out.print(f"{name}: {report.n_published} events published, {report.n_malformed} malformed{resumed}")


def _tell_malformed(named: Sequence[str], n_malformed: int) -> None:
    """Name what could not be published, the first of it, and exit with 1; return where there is none."""
    for bad in named[:_MALFORMED_SHOWN]:
        common.err.print(f"malformed: {bad}", markup=False, soft_wrap=True)
    if n_malformed > _MALFORMED_SHOWN:
        common.err.print(f"… and {n_malformed - _MALFORMED_SHOWN} more; --json lists them")
    if n_malformed:
        raise SystemExit(common.EXIT_FAILED)
