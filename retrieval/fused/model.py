"""The fitted model: a weighted sum of named features, and the probability that follows from it.

The weights are files to be read: ``coefficients.toml`` in this package, and ``coefficients_without_tokens.toml`` for
a scope whose model gives no token vectors. ``workers.fused_fit`` writes such a file from labelled questions.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.errors import ConfigError
from retrieval.fused.features import known_features
from retrieval.fused.passages import Floats

FORMAT: Final = 1
WITH_TOKENS: Final = "coefficients.toml"
WITHOUT_TOKENS: Final = "coefficients_without_tokens.toml"
SPEAKER: Final = "speaker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What makes a probability of scores: the logistic function of a sum.

    Attributes:
        intercept: what it begins with.
        best: times the best score of the question, without what its speaker adds.
        behind: times how far a candidate's score is behind the best (0 or less).
        stranger: added when the question names somebody, or something, the scope never mentions.
        threshold: when the best candidate is less probable than this, the scope is likely not to know the answer.
    """

    intercept: float
    best: float
    behind: float
    stranger: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Model:
    """Weights by feature name, and how scores become probabilities."""

    weights: Mapping[str, float]
    calibration: Calibration

    @property
    def features(self) -> tuple[str, ...]:
        """The features it uses, in the order of its columns."""
        return tuple(self.weights)

    def parts(self, columns: Floats) -> Floats:
        """Give what each feature adds to each candidate's score: ``(c, f)`` of the features to ``(c, f) float32``."""
        return np.asarray(columns * np.array(list(self.weights.values()), np.float32), np.float32)

    def probability(self, parts: Floats, *, names_a_stranger: bool) -> Floats:
        """Tell how probable it is that each candidate is evidence: ``(c,) float32``, in the order of their scores.

        Args:
            parts: ``(c, f)``, what each feature adds, as ``parts`` gives it.
            names_a_stranger: whether the question has a name the scope never mentions.
        """
        if not len(parts):
            return np.zeros(0, np.float32)
        known = self.calibration
        scores = parts.sum(axis=1)
        best = int(scores.argmax())
        by_speaker = parts[best, self.features.index(SPEAKER)] if SPEAKER in self.weights else 0
        exponent = (
            known.intercept
            + known.best * (scores[best] - by_speaker)
            + known.behind * (scores - scores[best])
            + known.stranger * names_a_stranger
        )
        return np.asarray(1 / (1 + np.exp(-exponent)), np.float32)


@functools.cache
def ranking_model(*, with_tokens: bool = True) -> Model:
    """Give the bundled ranking model, for questions and passages with token vectors or without; read once."""
    return load_model(with_tokens=with_tokens)


def load_model(path: Path | None = None, *, with_tokens: bool = True) -> Model:
    """Read a file of coefficients; a bundled one when ``path`` is None.

    Args:
        path: a file that ``workers.fused_fit`` wrote.
        with_tokens: which of the bundled ones.

    Raises:
        ConfigError: it cannot be read, or names a feature that does not exist.
    """
    bundled = resources.files("retrieval.fused").joinpath(WITH_TOKENS if with_tokens else WITHOUT_TOKENS)
    source = bundled if path is None else path
    try:
        return _model(tomllib.loads(source.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{source} is no file of coefficients ({error!r}); write one with workers.fused_fit, or leave it out"
        ) from error


def _model(read: dict[str, Any]) -> Model:
    if read["format"] != FORMAT:
        raise ValueError(f"format {read['format']}, expected {FORMAT}")
    weights = {str(name): float(entry["weight"]) for name, entry in read["features"].items()}
    if unknown := sorted(weights.keys() - known_features()):
        raise ValueError(f"no such feature: {', '.join(unknown)}")
    return Model(weights, Calibration(**{str(k): float(v) for k, v in read["calibration"].items()}))
