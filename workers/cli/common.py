"""What every verb shares: its options, its settings, and what an error means to the shell.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed (of `doctor`: work does not get on; of
`publish` and `backfill`: something was malformed, all else is published), 2 usage or configuration, 3 a server does
not answer, 4 damaged.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.segment import Segments
from rich.table import Table

from pipeline import log
from pipeline.errors import ConfigError, PoisonError, ServerUnreachableError, ShardError, TurnstreamError
from pipeline.records import Scope
from pipeline.settings import Settings, load_settings
from pipeline.shards import require_folder
from pipeline.stream import TurnStream, connect, server_url

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_DAMAGED = 1, 2, 3, 4

_WIDEST = 1_000

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of ledgers and snapshots [TURNSTREAM_DATA_DIR].")
]
RedisUrl = Annotated[
    str | None, typer.Option("--redis-url", help="An existing Redis or Valkey [TURNSTREAM_REDIS__URL].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ScopeKey = Annotated[str, typer.Option("--scope", help="KIND/ID, for example user/u42.")]
OptionalScopeKey = Annotated[str | None, typer.Option("--scope", help="KIND/ID, for example user/u42.")]


def settings_of(data_dir: Path | None = None, redis_url: str | None = None) -> Settings:
    """Build this command's settings: options win over the environment.

    Raises:
        ConfigError: a value cannot work, a setting is unknown, or the data folder is a file.
    """
    settings = load_settings(data_dir=data_dir)
    require_folder(settings.data_dir)
    if redis_url is not None:
        redis = type(settings.redis).model_validate({**settings.redis.model_dump(), "url": redis_url})
        settings = settings.model_copy(update={"redis": redis})
    log.configure(settings.log_level, settings.log_format)
    return settings


def url_of(settings: Settings) -> str:
    """Give the address of the server in use, the embedded one's when no other is set."""
    return server_url(settings.redis.plain_url, settings.data_dir)


def stream_of(settings: Settings) -> TurnStream:
    """Give the stream on the server in use."""
    names = settings.stream
    client = connect(url_of(settings), timeout_s=settings.redis.timeout_s)
    return TurnStream(client, name=names.turns, dead_name=names.dead, group=names.group)


def scope_of(key: str) -> Scope:
    """Read ``--scope``.

    Raises:
        ConfigError: it is not KIND/ID.
    """
    try:
        return Scope.parse(key)
    except PoisonError as error:
        raise ConfigError(f"--scope {key!r}: {error}") from error


def print_whole(table: Table) -> None:
    """Print a table as wide as it is: figures that are cut off say nothing, and a pipe has no width."""
    width = out.measure(table, options=out.options.update(max_width=_WIDEST)).maximum
    out.print(Segments(out.render(table, out.options.update(width=width))), crop=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout, non-ASCII kept."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")


def outlive_reader_of_stdout() -> None:
    """Drop what is printed after the reader of our output went away (`turnstream … | head`): nothing is wrong."""
    given = sys.stdout
    if given is sys.__stdout__ and isinstance(given, io.TextIOWrapper):
        raw = _UntilReaderLeaves(given.fileno(), "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), given.encoding, given.errors, line_buffering=given.line_buffering
        )


class _UntilReaderLeaves(io.FileIO):
    """Why below all buffers: Rich, Click and the interpreter at its exit each make a failure of a broken pipe."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn our errors into a message on stderr and an exit code."""
    try:
        yield
    except TurnstreamError as error:
        err.print(f"[bold red]error:[/] {_plain(str(error))}", soft_wrap=True)
        raise SystemExit(_code_of(error)) from error


def _code_of(error: TurnstreamError) -> int:
    if isinstance(error, ServerUnreachableError) or isinstance(error.__cause__, ServerUnreachableError):
        return EXIT_UNREACHABLE
    if isinstance(error, ConfigError | PoisonError):
        return EXIT_USAGE
    return EXIT_DAMAGED if isinstance(error, ShardError) else EXIT_FAILED


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
