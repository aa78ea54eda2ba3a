"""The verb `evaluate`: how well memory finds what it should, on a data set with known answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pipeline import log
from pipeline.errors import ConfigError
from pipeline.settings import Settings
from retrieval.memory import PROFILES
from workers import evaluate as evaluation
from workers.cli import common
from workers.cli.bars import Bars
from workers.cli.reading import Reranker, with_reranker
from workers.demo import running
from workers.evaluate import FORMATS, Evaluation, context, context_html, locomo
from workers.evaluate.context_run import Comparison
from workers.evaluate.html import page
from workers.evaluate.run import CUTS

_OF_TURNS = (
    "R@k: share of a question's evidence that is among its first k hits. all@10, hit@10: questions with all, with any"
    " of it among ten. MRR: mean of 1 / the place of the first."
)
_OF_SESSIONS = (
    "any@k, all@k: questions with any, with all of their sessions among the first k; share@k: share of the sessions."
    " NDCG@10: how near the order of the first ten is to the best, by turns and by sessions."
)
_OF_CATEGORIES = "overall: all questions but adversarial ones (never answered); all categories: those too."
_FITTED_ON = "The bundled weights were fitted on LoCoMo's conversations 1-5: those are no test of them."
_OF_BLOCKS = (
    "told, quoted: share of the evidence that the block tells, that it has word for word. budget: the longest block,"
    " in tokens; tokens: the mean of those spent. leaks: turns of other sessions or scopes in a block."
)
_SESSION_HEADS = ("any@1", "any@5", "share@5", "all@5", "NDCG@10 turns", "sessions")


def evaluate(
    data: Annotated[Path, typer.Argument(help="A file of sessions and questions about them.", show_default=False)],
    form: Annotated[str, typer.Option("--format", help=f"One of: {', '.join(FORMATS)}.")],
    profile: Annotated[str, typer.Option(help=f"How: {' or '.join(PROFILES)}.")] = "fused",
    coverage: Annotated[bool, typer.Option("--coverage", help="Give each of the best sessions its chunks.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare-beside", help="Ask with each kind of context beside a turn.")
    ] = False,
    reranker: Reranker = None,
    scope: common.OptionalScopeKey = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask so many questions of each scope at most.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with charts to this file.")] = None,
    of_context: Annotated[
        bool,
        typer.Option("--context", help="Compare the strategies of session memory: blocks for a prompt."),
    ] = False,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """Measure how much of the evidence is found for questions whose answers are known.

    Without --scope everything the file says goes through a pipeline in a
    temporary folder first. With --scope the questions about that scope are
    asked of what is there already, and nothing is written.

    With --context each conversation is one session, and every strategy writes
    blocks of 256 to 2048 tokens for each question: how much of the evidence is
    in them, at what cost, beside no memory, the full history and BM25 alone.
    """
    if profile not in PROFILES:
        raise ConfigError(f"--profile {profile!r} does not exist; use one of {', '.join(PROFILES)}")
    if html is not None and not html.parent.is_dir():
        raise ConfigError(f"--html {html}: there is no folder {html.parent}")
    settings = with_reranker(common.settings_of(data_dir), reranker)
    log.configure("warning", settings.log_format)
    if of_context:
        if scope is not None:
            raise ConfigError("--context and --scope: the comparison makes sessions of its own; leave --scope out")
        _compare(data, form, limit, html, settings, as_json=as_json)
        return
    with running.ended_by_signals(), Bars() as bars:
        found = evaluation.evaluate(
            data,
            form=form,
            profile=profile,
            scope=None if scope is None else common.scope_of(scope),
            limit=limit,
            settings=settings,
            options={"coverage": coverage},
            compare=compare,
            on_progress=bars.move,
        )
    if html is not None:
        html.write_text(page(found), encoding="utf-8")
    if as_json:
        common.print_json(found.to_json())
    else:
        print_figures(found)
        _print_rest(found)


def _compare(
    data: Path, form: str, limit: int | None, html: Path | None, settings: Settings, *, as_json: bool
) -> None:
    with running.ended_by_signals(), Bars() as bars:
        found = context.compare(data, form=form, limit=limit, settings=settings, on_progress=bars.move)
    if html is not None:
        html.write_text(context_html.page(found), encoding="utf-8")
    if as_json:
        common.print_json(found.to_json())
    else:
        _print_comparison(found)


def _print_comparison(found: Comparison) -> None:
    table = Table(title=f"{found.dataset}, session memory: {found.n_questions} questions, in percent")
    table.box, table.title_justify, table.padding = SIMPLE_HEAD, "left", (0, 1, 0, 0)
    table.add_column("way", no_wrap=True)
    for head in ("budget", "told", "quoted", "tokens", "p50 ms", "p95 ms", "leaks"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(
            row.method,
            "" if row.max_tokens is None else str(row.max_tokens),
            _percent(row.told),
            _percent(row.quoted),
            f"{row.n_tokens:.0f}",
            f"{row.p50_ms:.1f}",
            f"{row.p95_ms:.1f}",
            str(row.session_leaks + row.scope_leaks),
        )
    _print_with_legend(table, _OF_BLOCKS)


def print_figures(found: Evaluation) -> None:
    """Show a table of turns and one of sessions."""
    heading = f"{found.dataset}, profile {found.profile}: "
    turns, sessions = Table(title=f"{heading}turns, in percent"), Table(title=f"{heading}sessions, in percent")
    heads = [f"R@{k}" for k in CUTS]
    for table, columns in ((turns, [*heads, "all@10", "hit@10", "MRR"]), (sessions, _SESSION_HEADS)):
        table.box, table.title_justify, table.padding = SIMPLE_HEAD, "left", (0, 1, 0, 0)
        table.add_column("category", no_wrap=True)
        for head in ("n", *columns):
            table.add_column(head, justify="right", no_wrap=True)
    for name, figures in found.figures.items():
        shares = [*figures.share.values(), figures.all[10], figures.any[10], figures.mrr]
        turns.add_row(name, str(figures.n), *map(_percent, shares))
        sides = [figures.session_any[1], figures.session_any[5], figures.session_share[5], figures.session_all[5]]
        sessions.add_row(name, str(figures.n), *map(_percent, [*sides, figures.ndcg, figures.session_ndcg]))
    _print_with_legend(turns, _OF_TURNS)
    _print_with_legend(sessions, " ".join([_OF_SESSIONS, *_caveats(found)]))


def _caveats(found: Evaluation) -> Iterator[str]:
    if "all categories" in found.figures:
        yield _OF_CATEGORIES
    if found.form == locomo.FORMAT and found.profile == "fused":
        yield _FITTED_ON


def _print_with_legend(table: Table, legend: str) -> None:
    common.print_whole(table)
    common.out.print(f"{legend}\n", style="dim", soft_wrap=True)


def _print_rest(found: Evaluation) -> None:
    taken = found.latency_ms
    common.out.print(f"one retrieve: p50 {taken['p50']:.1f} ms, p95 {taken['p95']:.1f} ms")
    if found.n_turns:
        common.out.print(f"ingest: {found.n_turns} turns, {found.ingest_per_s:.0f} a second")
    if found.elsewhere is not None:
        other = found.elsewhere
        common.out.print(
            f"asked where nobody answered: {100 * other.foreign_doubted:.0f} % of {other.n} are known as such;"
            f" in their own scope {100 * other.own_doubted:.0f} % are taken for one of those"
        )

    for beside, figures in found.beside.items():
        shares = " / ".join(_percent(figures.share[k]) for k in (5, 10, 15))
        common.out.print(
            f"beside a turn {beside}: R@5, 10, 15 {shares}, hit@10 {_percent(figures.any[10])},"
            f" session any@5 {_percent(figures.session_any[5])}"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
