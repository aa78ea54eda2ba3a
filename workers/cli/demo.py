"""The verb `demo`: everything at once, on sample transcripts, in a folder of its own."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline import log
from pipeline.publish import Publisher
from pipeline.records import Scope
from pipeline.registry import Registry
from pipeline.settings import Settings, load_settings
from retrieval import Hit, Memory, Retrieval, open_memory
from retrieval.hits import to_hit
from retrieval.memory import PROFILES
from workers import shown
from workers.cli import common
from workers.demo import report, running
from workers.demo.story import Question, Story, load_story
from workers.demo.watch import Watch
from workers.progress import Progress

_SHOWN: Final = 3
_SESSIONS: Final = 3
_HIT_CHARS: Final = 150


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data folder, and say where it is.")] = False,
) -> None:
    """Run a pipeline on sample transcripts and ask it questions; ends by itself in under a minute.

    Twenty sessions of two users are published, then what happens to
    transcripts in life: an edit, a late turn, a retry, events that are none,
    and a turn that is to be forgotten. You see what became of every event, and
    what is found for questions: by a flat vector search, then in two stages.

    Everything happens in a temporary folder with a server of its own. Only
    the exported embedding model stays, in the user's cache folder, for the
    next run.
    """
    _never_fail_to_print()
    with running.ended_by_signals(), running.temporary_folder(keep=keep) as data_dir:
        running.settle_environment(data_dir)
        settings = load_settings()
        log.configure("warning", settings.log_format)
        _announce(settings)
        with running.running_pipeline(data_dir) as pipeline:
            story = load_story()
            _publish_and_wait(story, pipeline, settings)
            _report(story, settings)
            _ask_all(story, settings)
    _suggest(data_dir if keep else None)


def _announce(settings: Settings) -> None:
    common.err.print(f"data folder: {settings.data_dir}", soft_wrap=True)
    models_dir, is_exported = settings.models_dir, settings.embedding.backend.startswith("onnx")
    if is_exported and not (models_dir.is_dir() and any(models_dir.iterdir())):
        common.err.print("first run: the embedding model is exported once, which takes about 20 seconds")


def _publish_and_wait(story: Story, pipeline: running.Pipeline, settings: Settings) -> None:
    stream = common.stream_of(settings)
    pipeline.wait_for_server(stream)
    progress = Progress(settings.data_dir, stream)
    scopes = _scopes(story)
    with (
        Publisher(common.url_of(settings)) as publisher,
        Watch(story, pipeline, progress, common.err) as watch,
    ):
        watch.until_done(len(publisher.publish_events(story.transcripts)))
        publisher.publish_events(surprise.event for surprise in story.surprises)
        stream.append_many(story.malformed)  # as a plain XADD of another program
        watch.until_done(len(story.surprises) + len(story.malformed))
        watch.until(
            lambda: all(fact.is_purged and fact.snapshot for fact in report.examine(settings.data_dir, scopes)),
            "forgotten bytes were purged",
        )


def _report(story: Story, settings: Settings) -> None:
    stream, facts = common.stream_of(settings), report.examine(settings.data_dir, _scopes(story))
    _title("What became of every event")
    totals = Registry(settings.data_dir).totals()
    common.out.print(report.outcomes(story, totals, stream.dead_letters()))
    _title("What there is now")
    common.out.print(report.shards(facts))
    common.out.print(Text(report.stream(stream.backlog())))
    for turn in story.forgotten:
        n_files, names = report.traces_left(settings.data_dir, turn)
        found = ", ".join(names) or "in none"
        common.out.print(Text(f"the forgotten words, sought byte by byte in the shard's {n_files} files: {found}"))


def _ask_all(story: Story, settings: Settings) -> None:
    memory = open_memory(settings=settings)
    try:
        for number, question in enumerate(story.questions, start=1):
            _title(f"Question {number} of {len(story.questions)}, in {question.scope}")
            common.out.print(Text(question.query, style="bold"))
            common.out.print(Text(question.point, style="dim"))
            _ask(memory, question)
    finally:
        memory.close()


def _ask(memory: Memory, question: Question) -> None:
    flat = memory.memory_store.query(question.query, question.scope, top_k=_SHOWN).scored
    answers = {
        profile: memory.retrieve(
            question.query,
            question.scope,
            profile=profile,
            top_sessions=_SESSIONS,
            recall_top_k=_SHOWN,
            coverage=question.coverage,
        )
        for profile in PROFILES
    }
    _heading("flat vector search")
    _print_hits([to_hit(trace, question.scope, {}) for trace in flat], _selected(answers["session"]))
    for profile, answer in answers.items():
        _heading(f"profile {profile}", f"{answer.diagnostics.total_ms:.1f} ms")
        _print_stages(answer)
        _print_hits(answer.hits, _selected(answer), with_neighbours=question.with_neighbours)


def _print_stages(answer: Retrieval) -> None:
    sessions = " · ".join(f"{match.session_id} {match.similarity:.2f}" for match in answer.diagnostics.sessions)
    common.out.print(Padding(Text(f"sessions selected: {sessions or 'none'}"), (0, 0, 0, 2)))
    for escalation in answer.diagnostics.escalations:
        why = answer.diagnostics.reasons.get(escalation, "")
        common.out.print(Padding(Text(f"escalated: {escalation}: {why}", style="yellow"), (0, 0, 0, 2)))
    if answer.hits and not answer.diagnostics.answer_is_likely:
        common.out.print(Padding(Text("likely none of these answers", style="yellow"), (0, 0, 0, 2)))


def _print_hits(hits: Sequence[Hit], selected: Collection[str], *, with_neighbours: bool = False) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for width in (5, 10):
        grid.add_column(no_wrap=True, min_width=width)
    grid.add_column(ratio=1)
    for place, hit in enumerate(hits):
        said = Text.assemble(
            (hit.session_id, "cyan"),
            (f" {hit.speaker or hit.role}: ", "bold"),
            shown.shortened(hit.text, _HIT_CHARS),
            (f"\n{_why(hit, selected)}", "dim"),
        )
        if with_neighbours and place == 0:
            said.append(_neighbours(hit), style="dim")
        grid.add_row(Text(f"{hit.score:.3f}", style="green"), f"{hit.timestamp:%Y-%m-%d}", said)
    common.out.print(Padding(grid if hits else Text("no hits"), (0, 0, 0, 2)))


def _why(hit: Hit, selected: Collection[str]) -> str:
    parts = shown.why(hit.score_parts)
    return parts if hit.session_id in selected else f"{parts} (session not selected)"


def _neighbours(hit: Hit) -> str:
    rows = [("before it", hit.preceding), ("after it", hit.following)]
    return "".join(
        f"\n{where}, {turn.speaker}: {shown.shortened(turn.text, report.TEXT_SHOWN)}"
        for where, turns in rows
        for turn in turns
    )


def _selected(answer: Retrieval) -> set[str]:
    return {match.session_id for match in answer.diagnostics.sessions}


def _suggest(kept: Path | None) -> None:
    command, folder = _command(), f" --data-dir {kept}" if kept else ""
    _title("What to try next")
    for does, line in (
        ("run it, until Ctrl-C", f"{command} up{folder}"),
        ("bring your own chats in", f"{command} backfill chats.jsonl --format openai --scope user/me{folder}"),
        (
            "and ask",
            f'{command} retrieve "What did I say about tea?" --scope user/{"maya" if kept else "me"}{folder}',
        ),
    ):
        common.out.print(Text(f"# {does}", style="dim"))
        common.out.print(Text(line), soft_wrap=True)


def _command() -> str:
    called = Path(sys.argv[0])
    if called.name != "turnstream" or shutil.which("turnstream") == str(called):
        return "turnstream"
    return str(called)


def _title(text: str) -> None:
    common.out.print()
    common.out.rule(Text(text, style="bold"), align="left", style="dim")


def _heading(text: str, detail: str = "") -> None:
    common.out.print(Text(text, style="underline").append(f"  {detail}" if detail else "", style="dim not underline"))


def _scopes(story: Story) -> list[Scope]:
    return sorted({question.scope for question in story.questions})


def _never_fail_to_print() -> None:
    """Show a question mark where the terminal's encoding lacks a character."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
