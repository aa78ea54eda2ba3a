"""The verb that writes what a bot would put into its prompt: context."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from retrieval.context.context import STRATEGIES
from retrieval.context.layout.answer import Context
from workers.cli import common
from workers.cli.reading import memory_of

_MOST_SHOWN = 50


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
    if as_json:
        sys.stdout.write(found.to_json() + "\n")
    elif found.block:
        sys.stdout.write(found.block + "\n")
    else:
        common.err.print("nothing to say: no history in this session, or no room for any of it")
    for note in found.notes:
        common.err.print(f"note: {note}", markup=False)
    if explain:
        _explain(found)


def _explain(found: Context) -> None:
    table = Table(title=f"{found.strategy}: {found.n_tokens} of {found.max_tokens} tokens")
    for heading in ("", "score", "entries", "why"):
        table.add_column(heading, overflow="fold")
    trace = found.trace
    for decision in trace[:_MOST_SHOWN]:
        kept = Text("kept", style="green") if decision.is_kept else Text("left", style="dim")
        table.add_row(kept, f"{decision.score:.2f}", Text(", ".join(decision.entry_ids)), Text(decision.why))
    common.err.print(table)
    if len(trace) > _MOST_SHOWN:
        common.err.print(f"and {len(trace) - _MOST_SHOWN} more; --json has them all")
