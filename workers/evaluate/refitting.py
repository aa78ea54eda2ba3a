"""Weights of profile `fused` fitted to somebody's own labelled questions, and what they find in scopes left out.

Nothing is measured on a question that its own weights were fitted to: for each group of scopes weights are fitted on
all others, and rank the group's questions in whole retrieves. What is written is fitted on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from pipeline.settings import Settings
from retrieval import Memory, open_memory
from retrieval.fused.model import Model, Models, bundled_models, models_of
from retrieval.query_vector import QueryEmbedder
from workers.evaluate import labelled
from workers.evaluate.datasets import Dataset
from workers.evaluate.run import Answer, Evaluation, ask_all, evaluation
from workers.fused_fit import Example, calibrate, fit_weights, scores_without_own_scope

Told = Callable[[str, int, int], None]

COLLECTED: Final = "questions looked at"
MEASURED: Final = "questions asked of scopes left out"
COMPARED: Final = "questions asked as until now"


@dataclass(frozen=True, slots=True)
class Refit:
    """A fitted model and how it does.

    Args:
        model: fitted on all questions.
        left_out: every question ranked by weights fitted without its group.
        before: every question ranked by the weights that the settings name, or the bundled ones.
        n_questions: questions it learned from.
        n_groups: left out one after the other.
        refused: share of the questions asked elsewhere that fall below the threshold, by weights fitted without
            them; None when there is only one scope.
        kept: share of the others that do not.
    """

    model: Model
    left_out: Evaluation
    before: Evaluation
    n_questions: int
    n_groups: int
    refused: float | None
    kept: float


def refit(dataset: Dataset, settings: Settings, *, with_tokens: bool = True, on_progress: Told) -> Refit:
    """Fit the features of the settings' way to look beside a turn.

    Args:
        dataset: its scopes are in the settings' data folder.
        settings: where and how.
        with_tokens: with the features that compare token vectors.
        on_progress: told what is done, how much of it, and of how much.

    Raises:
        ConfigError: no question has evidence among its candidates.
        TurnstreamError: a scope cannot be read.
    """
    bundled = bundled_models(settings.retrieval.beside)
    features = (bundled.with_tokens if with_tokens else bundled.without_tokens).features
    counted = dataset.counted()
    with closing(open_memory(settings=settings, models=bundled)) as memory:
        embedder = memory.embedder
        found = labelled.examples(
            memory, counted, features, on_asked=lambda done, total: on_progress(COLLECTED, done, total)
        )
    group_of = labelled.groups(dataset.questions)
    without = {
        name: fitted([example for example in found if example.scope != name], features)
        for name in sorted(set(group_of.values()))
    }
    answers: list[Answer] = []
    for name, model in without.items():
        asked = replace(dataset, questions=[q for q in dataset.questions if group_of[q.id] == name])
        with closing(open_memory(settings=settings, embedder=embedder, models=Models(model, model))) as memory:
            answers += _answers(memory, asked, len(answers), len(dataset.questions), on_progress)
    return Refit(
        fitted(found, features),
        evaluation(dataset, "fused", answers),
        _before(dataset, settings, embedder, on_progress),
        sum(bool(example.is_evidence.any()) for example in found),
        len(without),
        *_doubt(found, without),
    )


def fitted(examples: Sequence[Example], features: Sequence[str]) -> Model:
    """Fit weights, and the calibration on scores by weights fitted without each one's own group.

    Raises:
        ConfigError: there is no question with evidence.
    """
    weights = fit_weights(examples, features)
    parts = scores_without_own_scope(examples, features)
    return Model(weights, calibrate(examples, parts, features))


def _before(dataset: Dataset, settings: Settings, embedder: QueryEmbedder, on_progress: Told) -> Evaluation:
    current = models_of(settings.retrieval.coefficients, settings.retrieval.beside)
    total = len(dataset.questions)
    with closing(open_memory(settings=settings, embedder=embedder, models=current)) as memory:
        answers = ask_all(
            memory, dataset, "fused", options={}, on_asked=lambda done: on_progress(COMPARED, done, total)
        )
    return evaluation(dataset, "fused", answers)


def _answers(memory: Memory, asked: Dataset, n_before: int, total: int, on_progress: Told) -> list[Answer]:
    return ask_all(
        memory, asked, "fused", options={}, on_asked=lambda done: on_progress(MEASURED, n_before + done, total)
    )


def _doubt(examples: Sequence[Example], without: Mapping[str, Model]) -> tuple[float | None, float]:
    """Give the share of unanswerable questions that are refused, and of the others that are not."""
    refused: list[bool] = []
    kept: list[bool] = []
    for example in examples:
        model = without[example.scope]
        probable = model.probability(model.parts(example.columns), names_a_stranger=example.names_a_stranger)
        is_refused = bool(probable.max() < model.calibration.threshold)
        if example.is_foreign:
            refused.append(is_refused)
        else:
            kept.append(not is_refused)
    return (fmean(refused) if refused else None), fmean(kept) if kept else 0.0
