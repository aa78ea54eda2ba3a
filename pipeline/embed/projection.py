"""From a token's state, 384 numbers of the model's last layer, to the 64 small ones that are kept of it.

A projection belongs to its model: principal components of the states of the model's own tokens over the texts of
``projection_texts.txt``, everyday sentences written for this. It is made once, when the model is exported, by the
model as it was trained; both ONNX backends use that one.

Why: a text's token vectors find what its one vector misses (late interaction), but as they are they would take 25 KB
a turn. In 64 dimensions of one byte each they take 2 KB and rank as well; 32 dimensions rank a little worse.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.embed import one_core
from pipeline.embed.pooling import normalise
from pipeline.embed.protocol import Floats
from pipeline.errors import ConfigError

N_COMPONENTS: Final = 64
SCALE: Final = 127
"""A kept vector is a unit vector times this, rounded."""

TokenVectors = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Projection:
    """What is taken from a unit state, ``mean (d,) float32``, and what then turns it, ``components (d, p)``."""

    mean: Floats
    components: Floats

    @property
    def dimension(self) -> int:
        """How many numbers are kept of a token."""
        return int(self.components.shape[1])

    def unit(self, states: Floats) -> Floats:
        """Project states ``(n, d)`` to ``(n, p) float32, rows L2-normalised``."""
        return normalise(np.asarray((normalise(states) - self.mean) @ self.components, np.float32))

    def unit_on_one_core(self, states: Floats) -> Floats:
        """Do the same for the few tokens of a question."""
        projected = np.empty((len(states), self.dimension), np.float32)
        one_core.multiply(normalise(states) - self.mean, self.components, into=projected)
        return normalise(projected)

    def small(self, states: Floats) -> TokenVectors:
        """Project states ``(n, d)`` to what is kept: ``(n, p) int8``."""
        return np.rint(self.unit(states) * SCALE).astype(np.int8)

    def write(self, path: Path) -> None:
        """Write it to a file."""
        np.savez(path, mean=self.mean, components=self.components)

    @classmethod
    def read(cls, path: Path) -> Projection:
        """Read it from a file.

        Raises:
            ConfigError: the file is none.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                return cls(stored["mean"].astype(np.float32), stored["components"].astype(np.float32))
        except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} is no projection: {error}; delete its folder") from error


def texts() -> list[str]:
    """Give the texts whose tokens a projection is made of."""
    return (resources.files("pipeline.embed") / "projection_texts.txt").read_text(encoding="utf-8").splitlines()


def of_states(states: Floats) -> Projection:
    """Make the projection that keeps most of states ``(n, d)``; the same states give the same one.

    Each component points to where its largest number is positive: its sign is otherwise a matter of chance.
    """
    units: npt.NDArray[np.float64] = normalise(states).astype(np.float64)
    mean = units.mean(axis=0)
    _, turned = np.linalg.eigh((units - mean).T @ (units - mean))  # ascending
    components = turned[:, ::-1][:, :N_COMPONENTS]
    largest = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    return Projection(mean.astype(np.float32), np.ascontiguousarray(components * np.sign(largest), dtype=np.float32))


def model_suffix(projection: Projection) -> str:
    """Give what a model's key says of its token vectors."""
    return f"+t{projection.dimension}"
