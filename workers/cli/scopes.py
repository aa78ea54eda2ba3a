"""The verb that lists what there is: scopes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pipeline.errors import ShardError, TransientError
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
    found = sorted(_listed(common.settings_of(data_dir).data_dir), key=lambda each: each.scope)
    if as_json:
        common.print_json([asdict(each) for each in found])
        return
    if not found:
        common.err.print("no scopes: nothing has been ingested yet")
        return
    table = Table("scope", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for each in found:
        numbers = (each.sessions, each.turns, each.searchable)
        when = (each.last_event or "")[:16].replace("T", " ")
        table.add_row(Text(each.scope), *map(str, numbers), f"{each.size_bytes / _MEGABYTE:.1f} MB", when)
    common.print_whole(table)


def _listed(data_dir: Path) -> Iterator[ListedScope]:
    for folder in Shards(data_dir).walk():
        path = folder / LEDGER_FILE
        try:
            with closing(connect(path, query_only=True)) as connection, translated(path):
                key, held = read_meta(connection).get("scope", ""), extent(connection)
        except (ShardError, TransientError) as error:  # the others can be listed all the same
            common.err.print(f"left out: {error}", markup=False, soft_wrap=True)
            continue
        last = None if held.last_event_ms is None else from_epoch_ms(held.last_event_ms).isoformat()
        yield ListedScope(key, held.n_sessions, held.n_turns, held.n_searchable, _size_bytes(folder), last)


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a snapshot was replaced meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total
