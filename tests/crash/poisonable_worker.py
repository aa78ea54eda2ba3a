"""A worker whose embedder can be harmed by a text; arguments: its name, seconds per text."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.embed.hashing import HashingEmbedder
from pipeline.settings import load_settings
from workers import worker

KILLS, RAISES = "poison-that-kills", "poison-that-raises"
WAITS_FOR = "waits-for:"
"""Followed by a path: the text takes as long as there is such a file."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _leave() -> None:
    sys.exit(1)


def _exit() -> None:
    os._exit(1)


def _hang() -> None:
    time.sleep(3_600)


def _fail(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


DEEDS: dict[str, Callable[[], None]] = {
    KILLS: _kill,
    "poison-that-exits": _exit,
    "poison-that-leaves": _leave,
    "poison-that-hangs": _hang,
    RAISES: _fail(RuntimeError("more than it can take")),
    "poison-that-wants-memory": _fail(MemoryError("more than there is")),
    "poison-that-divides": _fail(ZeroDivisionError("by nothing")),
    "poison-that-recurses": _fail(RecursionError("deeper and deeper")),
    "poison-that-is-unknown": _fail(KeyError("of no vocabulary")),
}
"""What a text does to the process."""

ANSWERS: dict[str, Callable[[Any], Any]] = {
    "poison-for-nan": lambda vectors: vectors * np.float32(np.nan),
    "poison-for-infinity": lambda vectors: vectors + np.float32(np.inf),
    "poison-for-nothing": lambda _: None,
    "poison-for-zeros": np.zeros_like,
    "poison-for-ten-times-the-length": lambda vectors: vectors * 10,
    "poison-for-a-row-less": lambda vectors: vectors[1:],
    "poison-for-a-row-more": lambda vectors: np.concatenate([vectors, vectors[:1]]),
    "poison-for-another-dimension": lambda vectors: vectors[:, :100],
    "poison-for-one-long-row": np.ravel,
    "poison-for-words": lambda vectors: vectors.astype(str),
    "poison-for-whole-numbers": lambda vectors: vectors.astype(np.int64),
    "poison-for-lists": lambda vectors: vectors.tolist(),
}
"""What a text has the model answer."""


class PoisonableEmbedder(HashingEmbedder):
    """Embeds by words, slowly; some words are more than it can take."""

    def __init__(self, s_per_text: float) -> None:
        super().__init__()
        self._s_per_text = s_per_text

    def embed(self, texts: Sequence[str]) -> Any:
        """Embed, unless a text has it die, fail or answer nonsense."""
        time.sleep(self._s_per_text * len(texts))
        for text in texts:
            _wait(text)
            for poison, deed in DEEDS.items():
                if poison in text:
                    deed()
        vectors = super().embed(texts)
        for poison, answer in ANSWERS.items():
            if any(poison in text for text in texts):
                return answer(vectors)
        return vectors


def _wait(text: str) -> None:
    _, waits, path = text.partition(WAITS_FOR)
    while waits and Path(path.split()[0]).exists():
        time.sleep(0.02)


def run(name: str, s_per_text: float = 0.0) -> None:
    """Be such a worker."""
    worker.embedder_of = lambda _: PoisonableEmbedder(s_per_text)  # type: ignore[assignment]
    worker.run(load_settings(), name=name, summarises=True)


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]))
