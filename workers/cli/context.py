"""The verb that writes what a bot would put into its prompt: context."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from pipeline.records import Scope
from retrieval import Memory
from retrieval.context.context import STRATEGIES
from retrieval.context.layout.answer import Context
from workers import shown
from workers.cli import common
from workers.cli.reading import memory_of

_MOST_SHOWN = 50
_TEXT_SHOWN = 48


def context(
    session_id: Annotated[str, typer.Argument(help="The session.")],
    scope: common.ScopeKey,
    objective: Annotated[str | None, typer.Option(help="What is to be done next.")] = None,
    strategy: Annotated[str | None, typer.Option(help=f"How: {', '.join(STRATEGIES)}.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="Longest block, headings included.")] = None,
    across_sessions: Annotated[
        bool, typer.Option("--across-sessions", help="Without history, quote the scope's other sessions.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say on stderr what was kept and left, and why.")
    ] = False,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """Write the block that a session's past gives the next prompt."""
    settings = common.settings_of(data_dir)
    with memory_of(settings) as memory:
        found = memory.context(
            session_id,
            common.scope_of(scope),
            objective,
            strategy,
            max_tokens,
            across_sessions=across_sessions,
        )
        texts = _texts(memory, session_id, common.scope_of(scope)) if explain else {}
    if as_json:
        sys.stdout.write(found.to_json() + "\n")
    elif found.block:
        sys.stdout.write(found.block + "\n")
    else:
        common.err.print("nothing to say: no history in this session, or no room for any of it")
    for note in found.notes:
        common.err.print(f"note: {note}", markup=False)
    if explain:
        _explain(found, texts)


def _texts(memory: Memory, session_id: str, scope: Scope) -> dict[str, str]:
    """Give what was asked for in each exchange of the session, by its id."""
    return {entry.entry_id: entry.objective for entry in memory.session_memory(scope).entries(session_id).entries}


def _explain(found: Context, texts: Mapping[str, str]) -> None:
    table = Table(title=f"{found.strategy}: {found.n_tokens} of {found.max_tokens} tokens")
    for heading in ("", "score", "exchanges", "why"):
        table.add_column(heading, overflow="fold")
    trace = found.trace
    for decision in trace[:_MOST_SHOWN]:
        kept = Text("kept", style="green") if decision.is_kept else Text("left", style="dim")
        table.add_row(kept, f"{decision.score:.2f}", _named(decision.entry_ids, texts), Text(decision.why))
    common.err.print(table)
    if len(trace) > _MOST_SHOWN:
        common.err.print(f"and {len(trace) - _MOST_SHOWN} more; --json has them all")


def _named(entry_ids: Sequence[str], texts: Mapping[str, str]) -> Text:
    """Name exchanges by their first words, then their ids, each on a line; a quote of another session has no text."""
    lines = [
        Text(shown.shortened(texts.get(entry_id, ""), _TEXT_SHOWN)).append(f" {entry_id}", style="dim")
        for entry_id in entry_ids
    ]
    return Text("\n").join(lines)
