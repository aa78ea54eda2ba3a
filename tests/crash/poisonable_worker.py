"""A worker whose embedder can be harmed by a text."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from pipeline.embed.hashing import HashingEmbedder
from pipeline.settings import load_settings
from workers import worker

KILLS, RAISES = "poison-that-kills", "poison-that-raises"


class PoisonableEmbedder(HashingEmbedder):
    """Embeds by words, slowly; two words are more than it can take."""

    def __init__(self, s_per_text: float) -> None:
        super().__init__()
        self._s_per_text = s_per_text

    def embed(self, texts: Sequence[str]) -> Any:
        """Embed, die or raise."""
        time.sleep(self._s_per_text * len(texts))
        for text in texts:
            if KILLS in text:
                os.kill(os.getpid(), signal.SIGKILL)
            if RAISES in text:
                raise RuntimeError("more than it can take")
        return super().embed(texts)


def run(name: str, s_per_text: float) -> None:
    """Be such a worker."""
    worker.embedder_of = lambda _: PoisonableEmbedder(s_per_text)  # type: ignore[assignment]
    worker.run(load_settings(), name=name, summarises=True)
