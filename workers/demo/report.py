"""What became of every event, and what there is now, told from the registry, the stream and the shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pipeline.ledger import Ledger, upkeep
from pipeline.records import Scope, Turn
from pipeline.registry import Counts
from pipeline.shards import Shards
from pipeline.snapshot import Manifest, SnapshotStore
from pipeline.stream import Backlog, DeadLetter
from workers.demo.story import Story
from workers.shown import shortened

_OUTCOMES: Final = ("applied", "edited", "superseded", "duplicate", "forgotten", "dead_lettered")
TEXT_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What one scope's shard holds; ``is_purged`` once no forgotten byte is left to remove."""

    scope: Scope
    counts: Counts
    snapshot: Manifest | None
    is_purged: bool


def examine(data_dir: Path, scopes: Sequence[Scope]) -> list[ShardFacts]:
    """Look into the shards of these scopes.

    Raises:
        ShardError: one is missing or damaged.
    """
    return [_facts(Shards(data_dir), scope) for scope in scopes]


def traces_left(data_dir: Path, turn: Turn) -> tuple[int, list[str]]:
    """Search every file of the turn's shard for its text, byte for byte.

    Returns:
        How many files were read, and the names of those that hold it.
    """
    files = sorted(path for path in Shards(data_dir).folder(turn.scope).rglob("*") if path.is_file())
    return len(files), [path.name for path in files if turn.content.encode() in path.read_bytes()]


def outcomes(story: Story, totals: Mapping[str, int], letters: Sequence[DeadLetter]) -> Table:
    """Tabulate the events by what became of them, with examples."""
    table = Table("became", "events", "for example", box=SIMPLE_HEAD, title_justify="left", expand=True)
    table.columns[1].justify = "right"
    for outcome in [*_OUTCOMES, *sorted(set(totals) - set(_OUTCOMES))]:
        examples = Text("\n").join(_examples(outcome, story, letters))
        table.add_row(outcome.replace("_", "-"), str(totals.get(outcome, 0)), examples)
    table.add_section()
    table.add_row("in all", str(sum(totals.values())), f"{story.n_events} were published")
    return table


def shards(facts: Sequence[ShardFacts]) -> Table:
    """Tabulate what the shards hold; a snapshot is shown by its generation, with how many traces are in it."""
    table = Table(
        "scope", "turns", "searchable", "traces", "sessions", "summaries", "snapshot", box=SIMPLE_HEAD, expand=True
    )
    for column in table.columns[1:6]:
        column.justify = "right"
    for fact in facts:
        held = fact.counts
        numbers = (held.turns, held.searchable, held.traces, held.sessions, held.summarised)
        table.add_row(fact.scope.key, *map(str, numbers), _snapshot(fact))
    return table


def stream(backlog: Backlog) -> str:
    """Tell how the stream stands."""
    return (
        f"stream: {backlog.unread} waiting, {backlog.pending} pending, {backlog.length} not yet trimmed,"
        f" {backlog.dead} dead letters"
    )


def _facts(shards: Shards, scope: Scope) -> ShardFacts:
    with closing(Ledger.open(shards.ledger_path(scope), scope)) as ledger:
        snapshot = SnapshotStore(shards.folder(scope)).manifest("traces")
        status = upkeep.status(ledger, idle_ms=0, settle_ms=0)
        return ShardFacts(scope, status.counts, snapshot, status.purge_due is None)


def _snapshot(fact: ShardFacts) -> str:
    if fact.snapshot is None:
        return "none yet"
    return f"no. {fact.snapshot.generation} ({fact.snapshot.count})"


def _examples(outcome: str, story: Story, letters: Sequence[DeadLetter]) -> Iterator[Text]:
    if outcome == "applied":
        yield from (_said("a turn: ", event) for event in story.transcripts[:1] if isinstance(event, Turn))
    for surprise in story.surprises:
        if surprise.becomes == outcome:
            is_kept = isinstance(surprise.event, Turn) and outcome in {"applied", "edited"}
            yield _said(f"{surprise.note}: ", surprise.event) if is_kept else Text(surprise.note)
    if outcome == "dead_lettered":
        for letter in letters:
            yield Text(f"{letter.field or 'event'}: {letter.reason}")


def _said(note: str, event: object) -> Text:
    assert isinstance(event, Turn)
    return Text(note).append(f"“{shortened(event.content, TEXT_SHOWN)}”", style="italic")
