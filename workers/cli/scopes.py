"""The verb that lists what there is: scopes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pipeline.errors import ShardError, TransientError, TurnstreamError
from pipeline.ledger.connection import connect, read_meta, translated
from pipeline.ledger.reads import extent
from pipeline.records import from_epoch_ms
from pipeline.shards import LEDGER_FILE, Shards
from workers.cli import common

_HEADS: Final = ("sessions", "turns", "searchable", "on disk", "last event (UTC)")
_MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ListedScope:
    """What is told of a scope; ``last_event`` is ISO 8601, when one was last applied."""

    scope: str
    sessions: int
    turns: int
    searchable: int
    size_bytes: int
    last_event: str | None


def scopes(data_dir: common.DataDir = None, as_json: common.AsJson = False) -> None:
    """List the scopes there are, with what each holds, how much of it is searchable, and its size on disk."""
    left_out: list[TurnstreamError] = []
    found = sorted(_listed(common.settings_of(data_dir).data_dir, left_out), key=lambda each: each.scope)
    if as_json:
        common.print_json([asdict(each) for each in found])
    elif found:
        common.print_whole(_table(found))
    elif not left_out:
        common.err.print("no scopes: nothing has been ingested yet")
    for error in left_out:
        common.err.print(f"left out: {error}", markup=False, soft_wrap=True)
    if left_out:
        is_damaged = any(isinstance(error, ShardError) for error in left_out)
        raise SystemExit(common.EXIT_DAMAGED if is_damaged else common.EXIT_FAILED)


def _table(found: Sequence[ListedScope]) -> Table:
    table = Table("scope", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for each in found:
        numbers = (each.sessions, each.turns, each.searchable)
        when = (each.last_event or "")[:16].replace("T", " ")
        table.add_row(Text(each.scope), *map(str, numbers), f"{each.size_bytes / _MEGABYTE:.1f} MB", when)
    return table


def _listed(data_dir: Path, left_out: list[TurnstreamError]) -> Iterator[ListedScope]:
    """Give each scope that can be read, and say of the others why they cannot: they hide nobody."""
    for folder in Shards(data_dir).walk():
        path = folder / LEDGER_FILE
        try:
            with closing(connect(path, query_only=True)) as connection, translated(path):
                key, held = read_meta(connection).get("scope", ""), extent(connection)
        except (ShardError, TransientError) as error:
            left_out.append(error)
            continue
        last = None if held.last_event_ms is None else from_epoch_ms(held.last_event_ms).isoformat()
        yield ListedScope(key, held.n_sessions, held.n_turns, held.n_searchable, size_bytes(folder), last)


def size_bytes(folder: Path) -> int:
    """Add up the files there are; what is removed meanwhile, a file or a folder, counts nothing."""
    total = 0
    for holder, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(holder, name).stat().st_size
    return total
