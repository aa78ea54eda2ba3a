"""How well memory finds what it should: a data set goes through the pipeline, every question of it is asked.

`evaluate` is the whole of it; the verb of the same name prints what it gives. A temporary data folder, removed at the
end, holds what the data set says; with a scope, an existing one is asked instead and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.records import Scope
from pipeline.settings import Settings, load_settings
from retrieval import open_memory
from retrieval.fused.model import ranking_model
from workers.demo import running
from workers.evaluate import datasets
from workers.evaluate.datasets import FORMATS, Dataset
from workers.evaluate.ingest import Ingested, ingest, own_environment
from workers.evaluate.run import Evaluation, ask_all, ask_elsewhere, evaluation

__all__ = ["FORMATS", "Evaluation", "evaluate"]

Told = Callable[[str, int, int], None]


def evaluate(
    path: Path,
    *,
    form: str,
    profile: str = "fused",
    scope: Scope | None = None,
    limit: int | None = None,
    settings: Settings | None = None,
    options: dict[str, Any] | None = None,
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
            say of the embedding counts.
        options: further arguments of each retrieve.
        on_progress: told what is done, how much of it, and of how much.

    Raises:
        ConfigError: the data set cannot be used, or asks nothing about the scope.
        TurnstreamError: the pipeline ended.
    """
    chosen = settings or load_settings()
    dataset = datasets.load(path, form, limit=limit)
    if scope is not None:
        return _asked(dataset.within(scope), chosen, profile, options or {}, None, on_progress)
    with running.temporary_folder(keep=False) as data_dir, own_environment(data_dir, chosen):
        ingested = ingest(
            dataset.events(),
            data_dir,
            on_state=lambda done, total: on_progress("turns searchable", done, total),
        )
        return _asked(dataset, load_settings(), profile, options or {}, ingested, on_progress)


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
        elsewhere = (
            ask_elsewhere(memory, dataset, ranking_model().calibration.threshold) if profile == "fused" else None
        )
    return evaluation(
        dataset,
        profile,
        answers,
        n_turns=ingested.n_turns if ingested else 0,
        ingest_per_s=ingested.per_second if ingested else 0.0,
        elsewhere=elsewhere,
    )
