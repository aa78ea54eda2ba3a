"""Rank the candidates for a question: one call from passages to hits with the parts of their score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval.fused import choose
from retrieval.fused.features import matrix
from retrieval.fused.model import Model
from retrieval.fused.passages import Floats, Ints, Passages, Question


@dataclass(frozen=True, slots=True)
class Coverage:
    """A promise that each of the best sessions is heard: how many sessions, and how many passages of each."""

    n_sessions: int
    n_each: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """The chosen passages, best first, and all candidates' scores.

    Attributes:
        rows: the chosen passages' rows in ``Passages``.
        scores: ``(k,) float32``, theirs.
        probabilities: ``(k,) float32``, how likely each is evidence; descending like the scores.
        parts: ``(k, f) float32``, what each of the model's features adds to each score.
        all_scores: ``(c,) float32``, by candidate.
        answer_is_likely: False when even the best falls below the model's threshold.
    """

    rows: Ints
    scores: Floats
    probabilities: Floats
    parts: Floats
    all_scores: Floats
    answer_is_likely: bool


def rank(
    question: Question,
    passages: Passages,
    model: Model,
    *,
    mean_words: float,
    limit: int,
    coverage: Coverage | None = None,
) -> Ranking:
    """Choose the best ``limit`` candidates.

    Of passages that say the same only the best stays. Equal scores are ordered by place in the scope.

    Args:
        question: what is asked.
        passages: the candidates and their neighbours.
        model: the weights.
        mean_words: words of a passage, on average over the scope.
        limit: how many are wanted.
        coverage: sessions to be heard whatever the scores of others.
    """
    parts = model.parts(matrix(question, passages, model.features, mean_words=mean_words))
    scores = parts.sum(axis=1)
    probabilities = model.probability(parts, names_a_stranger=question.names_a_stranger)
    order = choose.best_first(scores, np.arange(len(scores)))
    wanted = len(order) if coverage else limit  # a session's best may stand anywhere
    order = choose.drop_near_duplicates(order, passages, limit=wanted)
    if coverage:
        order = choose.cover_sessions(
            order,
            passages.session[passages.candidates],
            limit=limit,
            n_sessions=coverage.n_sessions,
            n_each=coverage.n_each,
        )
    likely = bool(len(scores)) and float(probabilities.max()) >= model.calibration.threshold
    return Ranking(passages.candidates[order], scores[order], probabilities[order], parts[order], scores, likely)
