"""Fit the weights of profile ``fused`` to labelled questions, and write them as a file to be read.

Weights: the candidates of a question compete in a softmax, and the labelled ones should take all of it (listwise
loss), with a small penalty on large weights. A feature that speaks for a candidate never gets a weight below 0, nor
one that speaks against it a weight above: two features that mean nearly the same would otherwise be played off
against each other, which fits the questions at hand and no others.

Calibration: a logistic function of the best score and of the distance to it, fitted on scores that each question got
from weights fitted without its scope; questions that were never asked of a scope, and have no evidence in it, teach
it doubt.

Why no optimiser is imported: both are convex with a dozen unknowns, and Newton's method takes ten steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from retrieval.fused.features import meaning_of
from retrieval.fused.model import FORMAT, SPEAKER, Calibration, Model
from retrieval.fused.passages import Bools, Floats

Doubles = npt.NDArray[np.float64]
Objective = Callable[[Doubles], tuple[float, Doubles, Doubles]]

AGAINST: Final = frozenset({"asks"})
"""Features that speak against a candidate."""
PENALTY: Final = 3.0
HITS_PER_QUESTION: Final = 10
"""Candidates of each question that calibration learns from: those a reader sees."""
REFUSED: Final = 0.92
"""Share of the questions without evidence that the threshold is to refuse."""

_MOST_STEPS: Final = 100
_SMALLEST_GAIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Example:
    """One question asked of one scope.

    Attributes:
        scope: which; whole scopes are left out together.
        columns: ``(c, f)``, the candidates' features.
        is_evidence: ``(c,)``, which candidates answer it.
        names_a_stranger: whether it has a name the scope never mentions.
        is_foreign: whether it was asked where nothing answers it; one whose evidence is merely not among the
            candidates was not.
    """

    scope: str
    columns: Floats
    is_evidence: Bools
    names_a_stranger: bool = False
    is_foreign: bool = False


def fit_weights(
    examples: Sequence[Example], features: Sequence[str], *, penalty: float = PENALTY
) -> dict[str, float]:
    """Fit a weight for each feature; questions without evidence among their candidates teach nothing.

    Raises:
        ConfigError: there is no question with evidence.
    """
    useful = [example for example in examples if example.is_evidence.any()]
    if not useful:
        raise ConfigError("no labelled question has evidence among its candidates; label some turns and fit again")
    signs = np.array([-1.0 if name in AGAINST else 1.0 for name in features])
    spread = np.concatenate([example.columns for example in useful]).std(axis=0)
    scale = signs / np.where(spread > 0, spread, 1)
    stacked = _stack(useful, scale)
    fitted = _minimise(lambda weights: _listwise(weights, *stacked, penalty), np.ones(len(features), np.bool_))
    return dict(zip(features, (fitted * scale).tolist(), strict=True))


def scores_without_own_scope(
    examples: Sequence[Example], features: Sequence[str], *, penalty: float = PENALTY
) -> list[Doubles]:
    """Give what each feature adds to the candidates' scores, ``(c, f)``, by weights fitted on all other scopes."""
    by_scope = {}
    for scope in {example.scope for example in examples}:
        others = [example for example in examples if example.scope != scope]
        by_scope[scope] = np.array(list(fit_weights(others, features, penalty=penalty).values()))
    return [example.columns * by_scope[example.scope] for example in examples]


def calibrate(
    examples: Sequence[Example], parts: Sequence[Doubles], features: Sequence[str], *, refused: float = REFUSED
) -> Calibration:
    """Fit the probability that a hit is evidence, and the threshold that refuses questions without any.

    Args:
        examples: with and without evidence.
        parts: by question, ``(c, f)``, what each feature adds.
        features: the columns' names.
        refused: share of the questions without evidence whose best hit is to fall below the threshold.
    """
    rows, labels, best_rows = [], [], []
    speaker = list(features).index(SPEAKER) if SPEAKER in features else None
    for example, added in zip(examples, parts, strict=True):
        scores = added.sum(axis=1)
        order = np.argsort(-scores, kind="stable")[:HITS_PER_QUESTION]
        best = order[0]
        plain = scores[best] - (added[best, speaker] if speaker is not None else 0)
        known = np.tile([1.0, plain, 0.0, float(example.names_a_stranger)], (len(order), 1))
        known[:, 2] = scores[order] - scores[best]
        rows.append(known)
        labels.append(example.is_evidence[order])
        best_rows.append(known[0])
    found, is_evidence = np.concatenate(rows), np.concatenate(labels).astype(float)
    falls_with_rank = np.array([False, False, True, False])  # how far behind: the worse one is never more probable
    fitted = _minimise(lambda weights: _logistic(weights, found, is_evidence), falls_with_rank)
    without = np.array([example.is_foreign for example in examples], np.bool_)
    probable = 1 / (1 + np.exp(-(np.array(best_rows) @ fitted)))
    threshold = float(np.quantile(probable[without], refused)) if without.any() else 0.0
    return Calibration(intercept=fitted[0], best=fitted[1], behind=fitted[2], stranger=fitted[3], threshold=threshold)


def write_coefficients(path: Path, model: Model, *, how: str) -> None:
    """Write a model as a file that `retrieval.fused.model.load_model` reads.

    Args:
        path: the file.
        model: what was fitted.
        how: on what and how well, in a few lines; they stand at its top.
    """
    known = model.calibration
    lines = [*(f"# {line}".rstrip() for line in how.strip().splitlines()), "", f"format = {FORMAT}", ""]
    for name, weight in model.weights.items():
        lines += [f"[features.{name}]", f'meaning = "{meaning_of(name)}"', f"weight = {weight:.4f}", ""]
    lines += [
        "# The probability that a hit is evidence is 1 / (1 + exp(-x)), where x is the sum of: intercept,",
        "# best * (the question's best score without the speaker's part), behind * (this score - the best score),",
        "# and stranger when the question has a name the scope never mentions.",
        "# threshold: when even the best hit is less probable, the scope is likely not to know the answer.",
        "[calibration]",
        *(
            f"{name} = {getattr(known, name):.4f}"
            for name in ("intercept", "best", "behind", "stranger", "threshold")
        ),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _stack(examples: Sequence[Example], scale: Doubles) -> tuple[Doubles, Doubles, Bools]:
    """Give features ``(q, c, f)``, targets ``(q, c)`` adding up to 1, and which places are filled."""
    width = max(len(example.columns) for example in examples)
    columns = np.zeros((len(examples), width, len(scale)))
    targets, filled = np.zeros((len(examples), width)), np.zeros((len(examples), width), np.bool_)
    for row, example in enumerate(examples):
        n = len(example.columns)
        columns[row, :n] = example.columns * scale
        targets[row, :n] = example.is_evidence / example.is_evidence.sum()
        filled[row, :n] = True
    return columns, targets, filled


def _listwise(
    weights: Doubles, columns: Doubles, targets: Doubles, filled: Bools, penalty: float
) -> tuple[float, Doubles, Doubles]:
    """Give the loss, its gradient and its Hessian."""
    scores = np.where(filled, columns @ weights, -np.inf)
    top = scores.max(axis=1, keepdims=True)
    odds = np.exp(scores - top)
    total = odds.sum(axis=1, keepdims=True)
    share = odds / total
    log_share = np.where(filled, scores - top - np.log(total), 0)
    loss = float(-(targets * log_share).sum() + penalty / 2 * weights @ weights)
    flat = columns.reshape(-1, len(weights))
    gradient = flat.T @ (share - targets).ravel() + penalty * weights
    means = np.einsum("qc,qcf->qf", share, columns)
    hessian = (flat * share.reshape(-1, 1)).T @ flat - means.T @ means + penalty * np.eye(len(weights))
    return loss, gradient, hessian


def _logistic(weights: Doubles, rows: Doubles, labels: Doubles) -> tuple[float, Doubles, Doubles]:
    exponents = rows @ weights
    probable = 1 / (1 + np.exp(-exponents.clip(-500, 500)))
    loss = float((np.logaddexp(0, exponents) - labels * exponents).sum() + 1e-3 * weights @ weights)
    gradient = rows.T @ (probable - labels) + 2e-3 * weights
    hessian = (rows * (probable * (1 - probable))[:, None]).T @ rows + 2e-3 * np.eye(len(weights))
    return loss, gradient, hessian


def _minimise(objective: Objective, at_least_zero: Bools) -> Doubles:
    """Minimise a convex function by Newton's method, over the weights that their bound does not hold at zero."""
    weights = np.zeros(len(at_least_zero))
    loss, gradient, hessian = objective(weights)
    for _ in range(_MOST_STEPS):
        free = ~(at_least_zero & (weights <= 0) & (gradient > 0))
        step = np.zeros(len(weights))
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        size, before = 1.0, loss
        while size > _SMALLEST_GAIN:
            tried = weights - size * step
            tried = np.where(at_least_zero, np.maximum(tried, 0), tried)
            outcome = objective(tried)
            if outcome[0] < before:
                weights, (loss, gradient, hessian) = tried, outcome
                break
            size /= 2
        if before - loss < _SMALLEST_GAIN * abs(before):
            break
    return weights
