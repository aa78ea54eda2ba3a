"""How well memory finds what it should: a data set goes through the pipeline, every question of it is asked.

`evaluate` is the whole of it, and `fit` fits the ranking to such a data set; the verbs of the same names print what
they give. A temporary data folder, removed at the
end, holds what the data set says; with a scope, an existing one is asked instead and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.records import Scope
from pipeline.settings import Settings, load_settings
from retrieval import open_memory
from retrieval.fused.model import BESIDE
from workers.demo import running
from workers.evaluate import datasets
from workers.evaluate.datasets import FORMATS, Dataset
from workers.evaluate.ingest import Ingested, ingest, own_environment
from workers.evaluate.refitting import Refit, refit
from workers.evaluate.run import OVERALL, Evaluation, Figures, ask_all, ask_elsewhere, evaluation

__all__ = ["FORMATS", "Evaluation", "Refit", "evaluate", "fit"]

Told = Callable[[str, int, int], None]


def evaluate(  # noqa: PLR0913 - the verb's options; all but two have defaults
    path: Path,
    *,
    form: str,
    profile: str = "fused",
    scope: Scope | None = None,
    limit: int | None = None,
    settings: Settings | None = None,
    options: dict[str, Any] | None = None,
    compare: bool = False,
    on_progress: Told = lambda _what, _done, _total: None,
) -> Evaluation:
    """Evaluate a profile on a data set.

    Args:
        path: the data set.
        form: its format.
        profile: how it is retrieved.
        scope: ask the questions about this scope, in the settings' data folder, as it is; None: put everything the
            data set says through a pipeline in a temporary folder first.
        limit: ask so many questions of each scope at most.
        settings: those of this process; read from the environment when None. In a temporary folder only what they
            say of the embedding and of retrieving counts.
        options: further arguments of each retrieve.
        compare: ask with each way to look beside a turn, too.
        on_progress: told what is done, how much of it, and of how much.

    Raises:
        ConfigError: the data set cannot be used, or asks nothing about the scope.
        TurnstreamError: the pipeline ended.
    """
    chosen = settings or load_settings()
    dataset = datasets.load(path, form, limit=limit, scope=scope)
    if compare:
        dataset.counted()
    with _searchable(dataset, scope, chosen, on_progress) as (own, ingested):
        found = _asked(dataset, own, profile, options or {}, ingested, on_progress)
        if not compare:
            return found
        return replace(found, beside=_each_beside(dataset, own, options or {}, on_progress))


def fit(
    path: Path,
    *,
    form: str,
    beside: str | None = None,
    with_tokens: bool = True,
    scope: Scope | None = None,
    limit: int | None = None,
    settings: Settings | None = None,
    on_progress: Told = lambda _what, _done, _total: None,
) -> Refit:
    """Fit the weights of profile ``fused`` to labelled questions.

    Args:
        path: the questions and what they are about.
        form: its format.
        beside: what counts beside a turn; the settings' when None.
        with_tokens: with the features that compare token vectors.
        scope: as for `evaluate`.
        limit: as for `evaluate`.
        settings: as for `evaluate`.
        on_progress: told what is done, how much of it, and of how much.

    Raises:
        ConfigError: the data set cannot be used, or no evidence is found for any of its questions.
        TurnstreamError: the pipeline ended.
    """
    chosen = settings or load_settings()
    chosen = _with(chosen, beside=beside or chosen.retrieval.beside, reranker=None)
    dataset = datasets.load(path, form, limit=limit, scope=scope)
    dataset.counted()
    with _searchable(dataset, scope, chosen, on_progress) as (own, _):
        return refit(dataset, own, with_tokens=with_tokens, on_progress=on_progress)


@contextmanager
def _searchable(
    dataset: Dataset, scope: Scope | None, settings: Settings, on_progress: Told
) -> Iterator[tuple[Settings, Ingested | None]]:
    """Have the scopes of a data set in a data folder, and give where to ask, and how it got there."""
    if scope is not None:
        yield settings, None
        return
    with running.temporary_folder(keep=False) as data_dir, own_environment(data_dir, settings):
        ingested = ingest(
            dataset.events(),
            data_dir,
            on_state=lambda done, total: on_progress("turns searchable", done, total),
        )
        yield load_settings().model_copy(update={"retrieval": settings.retrieval}), ingested


def _with(settings: Settings, **retrieval: Any) -> Settings:
    return settings.model_copy(update={"retrieval": settings.retrieval.model_copy(update=retrieval)})


def _each_beside(
    dataset: Dataset, settings: Settings, options: dict[str, Any], on_progress: Told
) -> dict[str, Figures]:
    """Ask with each way to look beside a turn, by the bundled weights."""
    figures = {}
    total = len(dataset.questions)
    for beside in BESIDE:
        with closing(open_memory(settings=_with(settings, beside=beside, coefficients=None))) as memory:
            told = partial(_told, on_progress, f"questions asked, {beside} beside", total)
            answers = ask_all(memory, dataset, "fused", options=options, on_asked=told)
        figures[beside] = evaluation(dataset, "fused", answers).figures[OVERALL]
    return figures


def _told(on_progress: Told, what: str, total: int, done: int) -> None:
    on_progress(what, done, total)


def _asked(
    dataset: Dataset,
    settings: Settings,
    profile: str,
    options: dict[str, Any],
    ingested: Ingested | None,
    on_progress: Told,
) -> Evaluation:
    total = len(dataset.questions)
    with closing(open_memory(settings=settings)) as memory:
        answers = ask_all(
            memory, dataset, profile, options=options, on_asked=lambda n: on_progress("questions asked", n, total)
        )
        elsewhere = ask_elsewhere(memory, dataset) if profile == "fused" else None
    return evaluation(
        dataset,
        profile,
        answers,
        n_turns=ingested.n_turns if ingested else 0,
        ingest_per_s=ingested.per_second if ingested else 0.0,
        elsewhere=elsewhere,
    )
