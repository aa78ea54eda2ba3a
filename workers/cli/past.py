"""Verbs that look at past sessions: search, window, recent."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from retrieval import SessionHit
from workers import shown
from workers.cli import common
from workers.cli.reading import After, Before, memory_of

_TEXT_SHOWN = 160
_FOUND = ">"
"""Beside the best turn: bold is lost in a pipe."""

Offset = Annotated[int, typer.Option(min=0, help="Sessions to skip: those of the pages before.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Leave this session out; may be given several times.")]


def search(
    query: Annotated[str, typer.Argument(help="A question, or words.")],
    scope: common.ScopeKey,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Sessions at most.")] = 5,
    window: Annotated[int, typer.Option(min=0, max=50, help="Turns shown before and after the best one.")] = 5,
    offset: Offset = 0,
    profile: Annotated[str, typer.Option(help="How sessions are ranked: best or keyword.")] = "best",
    after: After = None,
    before: Before = None,
    role: Annotated[
        list[str] | None, typer.Option(help="Only turns of this role; may be given several times.")
    ] = None,
    exclude: Exclude = None,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """Find the past sessions a query is about, each with its best turn and those around it."""
    with memory_of(common.settings_of(data_dir)) as memory:
        hits = memory.search(
            query,
            common.scope_of(scope),
            limit=limit,
            window=window,
            offset=offset,
            profile=profile,
            after=after,
            before=before,
            role=role,
            exclude=exclude,
        )
    if as_json:
        results = [hit.as_dict() for hit in hits]
        _print_answer("discovery", query=query, total_found=len(hits), results=results)
        return
    for hit in hits:
        _print_hit(hit)
    if len(hits) == limit:
        common.err.print(f"more: --offset {offset + limit}")
    if not hits:
        common.err.print("no session found" + (" on this page" if offset else ""))


def window(
    session_id: Annotated[str, typer.Argument(help="The session.")],
    scope: common.ScopeKey,
    around: Annotated[
        str | None, typer.Option(help="An index or a message_id; the session's end if not given.")
    ] = None,
    size: Annotated[int, typer.Option("--window", min=0, max=50, help="Turns shown before and after it.")] = 5,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """Read the turns around one of a past session."""
    with memory_of(common.settings_of(data_dir)) as memory:
        messages = memory.window(session_id, common.scope_of(scope), around, window=size)
    if as_json:
        _print_answer("scroll", session_id=session_id, around_message_id=around or "", messages=messages)
        return
    for message in messages:
        _print_message(message, is_anchor=False)


def recent(
    scope: common.ScopeKey,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Sessions at most.")] = 10,
    offset: Offset = 0,
    after: After = None,
    before: Before = None,
    exclude: Exclude = None,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """List past sessions, those spoken in last first, automated ones after all others."""
    with memory_of(common.settings_of(data_dir)) as memory:
        sessions = memory.recent(
            common.scope_of(scope), limit=limit, offset=offset, after=after, before=before, exclude=exclude
        )
    if as_json:
        results = [session.as_dict() for session in sessions]
        _print_answer("browse", total_found=len(sessions), results=results)
        return
    for session in sessions:
        line = Text(f"{_day(session.when)}  ").append(session.session_id, style="cyan")
        common.out.print(line.append(f"  {shown.shortened(session.title, _TEXT_SHOWN)}  ({session.message_count})"))


def _print_answer(mode: str, **found: Any) -> None:
    common.print_json({"success": True, "mode": mode, **found})


def _print_hit(hit: SessionHit) -> None:
    heading = Text(f"{hit.score:.3f}  ", style="bold green").append(hit.session_id, style="cyan")
    heading.append(f"  {_day(hit.when)}  {shown.shortened(hit.title, _TEXT_SHOWN)}", style="default")
    common.out.print(heading)
    for message in hit.messages:
        _print_message(message, is_anchor=message["index"] == hit.anchor_index)


def _print_message(message: dict[str, Any], *, is_anchor: bool) -> None:
    mark = _FOUND if is_anchor else " " * len(_FOUND)
    who, text = message.get("speaker") or message["role"], shown.shortened(message["content"], _TEXT_SHOWN)
    line = Text(
        f"{mark}{message['index']:>4}  {_day(message['timestamp'])}  {who}: {text}",
        style="bold" if is_anchor else "dim",
    )
    common.out.print(Padding(line, (0, 0, 0, 1)))


def _day(when: str | None) -> str:
    return (when or "")[:16].replace("T", " ")
