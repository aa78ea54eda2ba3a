"""Verbs that read memory: retrieve."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from retrieval import Retrieval
from retrieval.memory import PROFILES
from workers import shown
from workers.cli import common
from workers.cli.reading import After, Before, Reranker, memory_of, with_reranker

_TEXT_SHOWN = 240


def retrieve(
    query: Annotated[str, typer.Argument(help="What is asked, in words.")],
    scope: common.ScopeKey,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Hits at most.")] = 10,
    top_sessions: Annotated[int | None, typer.Option(min=0, help="Sessions selected first.")] = None,
    chunks_per_session: Annotated[int | None, typer.Option(min=0, help="Chunks kept of each.")] = None,
    profile: Annotated[str, typer.Option(help=f"How: {' or '.join(PROFILES)}.")] = "fused",
    coverage: Annotated[bool, typer.Option("--coverage", help="Give each of the best sessions its chunks.")] = False,
    reranker: Reranker = None,
    after: After = None,
    before: Before = None,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """Find what was said about a query, in one scope."""
    with memory_of(with_reranker(common.settings_of(data_dir), reranker)) as memory:
        found = memory.retrieve(
            query,
            common.scope_of(scope),
            profile=profile,
            top_sessions=top_sessions,
            chunks_per_session=chunks_per_session,
            recall_top_k=top_k,
            coverage=coverage,
            after=after,
            before=before,
        )
    if as_json:
        sys.stdout.write(found.to_json() + "\n")
    else:
        print_hits(found)
        _explain(found)


def print_hits(found: Retrieval) -> None:
    """Show hits with their score, session, turn, date, speaker, text and why."""
    for hit in found.hits:
        heading = Text(f"{hit.score:.3f}  ", style="bold green")
        heading.append(f"{hit.session_id}  {hit.turn_id}  ", style="cyan")
        heading.append(f"{hit.timestamp:%Y-%m-%d %H:%M}  ", style="default")
        heading.append(hit.speaker or hit.role, style="bold")
        common.out.print(heading)
        common.out.print(Padding(Text(shown.shortened(hit.text, _TEXT_SHOWN)), (0, 0, 0, 7)))
        common.out.print(Padding(Text(f"why: {shown.why(hit.score_parts)}", style="dim"), (0, 0, 0, 7)))


def _explain(found: Retrieval) -> None:
    if not found.hits:
        common.err.print("no hits: nothing was said in this scope, or nothing is searchable yet ('turnstream wait')")
    elif not found.diagnostics.answer_is_likely:
        common.err.print("note: likely none of these answers it: even the best score is below the threshold")
    for escalation in found.diagnostics.escalations:
        common.err.print(f"note: {escalation}", markup=False)
