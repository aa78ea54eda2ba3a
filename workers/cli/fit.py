"""The verb `fit`: weights of profile fused for somebody's own questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline import log
from pipeline.errors import ConfigError
from retrieval.fused.model import BESIDE
from workers import evaluate as evaluation
from workers.cli import common
from workers.cli.bars import Bars
from workers.cli.evaluate import print_figures
from workers.demo import running
from workers.evaluate import FORMATS, Refit
from workers.evaluate.run import OVERALL
from workers.fused_fit import PENALTY, write_coefficients

_FEW = 100
_JUDGED_AT = 10
"""Hits that a prompt is usually given."""


def fit(
    labelled: Annotated[
        Path, typer.Argument(help="A file of sessions and questions about them.", show_default=False)
    ],
    output: Annotated[Path, typer.Option(help="The file of coefficients to write.", show_default=False)],
    form: Annotated[str, typer.Option("--format", help=f"One of: {', '.join(FORMATS)}.")],
    beside: Annotated[str | None, typer.Option(help=f"What counts beside a turn: {', '.join(BESIDE)}.")] = None,
    tokens: Annotated[bool, typer.Option(help="Use features that compare token by token.")] = True,
    scope: common.OptionalScopeKey = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Learn from so many questions of each scope at most.")
    ] = None,
    data_dir: common.DataDir = None,
    as_json: common.AsJson = False,
) -> None:
    """Fit the ranking of profile fused to questions whose answers are known.

    Shows what is found in scopes that were left out of the fit, each in turn,
    beside what the weights in use find, and writes weights fitted on all of
    them. To use them, set
    TURNSTREAM_RETRIEVAL__COEFFICIENTS to the file.
    """
    if beside is not None and beside not in BESIDE:
        raise ConfigError(f"--beside {beside!r} does not exist; use one of {', '.join(BESIDE)}")
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}")
    settings = common.settings_of(data_dir)
    log.configure("warning", settings.log_format)
    with running.ended_by_signals(), Bars() as bars:
        found = evaluation.fit(
            labelled,
            form=form,
            beside=beside,
            with_tokens=tokens,
            scope=None if scope is None else common.scope_of(scope),
            limit=limit,
            settings=settings,
            on_progress=bars.move,
        )
    for doubt in doubts(found):
        common.err.print(f"[bold yellow]warning:[/] {doubt}", soft_wrap=True)
    write_coefficients(output, found.model, how=how(found, beside or settings.retrieval.beside))
    if as_json:
        before = found.before.to_json()["figures"]
        common.print_json(found.left_out.to_json() | {"refused": found.refused, "kept": found.kept, "before": before})
    else:
        print_figures(found.left_out)
        common.out.print(change(found), soft_wrap=True)
        common.out.print(f"{output}: fitted to {found.n_questions} questions; use it with")
        common.out.print(f"TURNSTREAM_RETRIEVAL__COEFFICIENTS={output.resolve()}", soft_wrap=True)


def change(found: Refit) -> str:
    """Say on one line what the weights until now find, and the fitted ones."""
    before, after = (some.figures[OVERALL] for some in (found.before, found.left_out))
    pairs = [(f"R@{k}", before.share[k], after.share[k]) for k in (5, 10, 15)] + [("MRR", before.mrr, after.mrr)]
    shown = ", ".join(f"{name} {100 * old:.1f} -> {100 * new:.1f}" for name, old, new in pairs)
    return f"weights until now -> fitted, in scopes left out: {shown}"


def doubts(found: Refit) -> list[str]:
    """Say what speaks against using the weights."""
    said = []
    if found.n_questions < _FEW:
        said.append(
            f"only {found.n_questions} questions to learn from: with fewer than {_FEW} chance decides the weights;"
            " label more"
        )
    before, after = (some.figures[OVERALL] for some in (found.before, found.left_out))
    if after.share[_JUDGED_AT] < before.share[_JUDGED_AT]:
        said.append(f"R@{_JUDGED_AT} fell: these weights find less than those in use; keep those")
    return said


def how(found: Refit, beside: str) -> str:
    """Say in a few lines what weights were fitted to, and what they find."""
    figures = found.left_out.figures[OVERALL]
    shares = ", ".join(f"{100 * figures.share[k]:.1f}" for k in (5, 10, 15))
    lines = [
        f'Weights of profile "fused", with {beside} beside a turn.',
        "",
        f"Fitted by 'turnstream fit' to {found.n_questions} questions of {found.left_out.dataset}",
        f"({found.left_out.form}; listwise softmax loss, penalty {PENALTY:g}, no weight of the wrong sign),",
        "each with the passages that retrieval finds for it.",
        f"Each of {found.n_groups} parts ranked by weights fitted without it: evidence in the first 5, 10, 15 hits",
        f"{shares} %, any in the first 10 hits for {100 * figures.any[10]:.1f} %.",
    ]
    if found.refused is not None:
        lines += [
            f"Of the questions asked where nobody answered {100 * found.refused:.0f} % fall below the threshold,",
            f"of the others {100 * (1 - found.kept):.1f} %.",
        ]
    lines += [
        "",
        "A score is the sum of weight * feature. What a weight is worth depends on how much its feature varies:",
        '"speaker" moves between 0 and 1, "maxsim" hardly leaves 0.3 to 0.6.',
    ]
    return "\n".join(lines)
