"""The fitted model: a weighted sum of named features, and the probability that follows from it.

The weights are files to be read: ``coefficients.toml`` in this package, and ``coefficients_without_tokens.toml`` for
a scope whose model gives no token vectors; the same for each other way to look beside a turn. ``turnstream fit``
writes such a file from labelled questions.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import ConfigError
from retrieval.fused.features import known_features, needs_summaries, needs_tokens
from retrieval.fused.passages import Floats

FORMAT: Final = 1
BESIDE: Final = ("none", "window", "summary")
"""What may count beside a turn: nothing, its neighbours, or its session's summary."""
SPEAKER: Final = "speaker"
_GREATEST: Final = 1e6
"""Of a number in the file, either way: sums of greater ones would leave float32."""
_GREATEST_EXPONENT: Final = 80
"""Its power of e is a float32; that of 89 is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What makes a probability of scores: the logistic function of a sum.

    Attributes:
        intercept: what it begins with.
        best: times the best score of the question, without what its speaker adds.
        behind: times how far a candidate's score is behind the best (0 or less); at least 0.
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
        return np.asarray(1 / (1 + np.exp(np.minimum(-exponent, _GREATEST_EXPONENT))), np.float32)


class Models(NamedTuple):
    """The model for questions and passages that have token vectors, and the one for those that have none."""

    with_tokens: Model
    without_tokens: Model

    @property
    def needs_summaries(self) -> bool:
        """Whether either looks at the summaries of sessions."""
        return any(needs_summaries(name) for model in self for name in model.features)


@functools.cache
def bundled_models(beside: str = "window") -> Models:
    """Give the bundled models, read once.

    Args:
        beside: what counts beside a turn, one of `BESIDE`.
    """
    middle = "" if beside == "window" else f"_{beside}"
    files = resources.files("retrieval.fused")
    return Models(*(_load(files / f"coefficients{middle}{end}.toml") for end in ("", "_without_tokens")))


def models_of(path: Path | None, beside: str = "window") -> Models:
    """Give the models a file of coefficients makes, or the bundled ones without a file.

    Where there are no token vectors the file counts if it does without them; else the bundled model does.

    Raises:
        ConfigError: the file cannot be read, or holds what a model cannot use; names the key.
    """
    if path is None:
        return bundled_models(beside)
    model = load_model(path)
    if any(needs_tokens(name) for name in model.features):
        return Models(model, bundled_models(beside).without_tokens)
    return Models(model, model)


def load_model(path: Path) -> Model:
    """Read coefficients that `turnstream fit` wrote.

    Raises:
        ConfigError: the file cannot be read, or holds what a model cannot use; names the key.
    """
    return _load(path)


_Number = Annotated[float, Field(ge=-_GREATEST, le=_GREATEST)]


class _Strict(BaseModel):
    """Take no text or truth value for a number, and no key that means nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _FeatureFields(_Strict):
    meaning: str = ""
    weight: _Number


class _CalibrationFields(_Strict):
    intercept: _Number
    best: _Number
    behind: float = Field(ge=0, le=_GREATEST)
    stranger: _Number
    threshold: float = Field(ge=0, le=1)


class _FileFields(_Strict):
    format: int = Field(ge=FORMAT, le=FORMAT)
    features: dict[str, _FeatureFields] = Field(min_length=1)
    calibration: _CalibrationFields


def _load(source: Traversable) -> Model:
    try:
        text = source.read_text(encoding="utf-8")
        if text.startswith("\ufeff"):
            raise _refused(source, "begins with a byte order mark; save it as UTF-8 without one")
        read = _FileFields.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refused(source, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, ValueError, OverflowError) as error:
        raise _refused(source, str(error)) from error
    except RecursionError as error:
        raise _refused(source, "is nested too deeply") from error
    if unknown := sorted(read.features.keys() - known_features()):
        raise _refused(source, f"features.{unknown[0]}: there is no such feature")
    weights = {name: feature.weight for name, feature in read.features.items()}
    return Model(weights, Calibration(**read.calibration.model_dump()))


def _refused(source: Traversable, reason: str) -> ConfigError:
    return ConfigError(
        f"{source} is no file of coefficients: {reason}; write one with 'turnstream fit',"
        " or unset TURNSTREAM_RETRIEVAL__COEFFICIENTS"
    )
