"""A worker whose embedder can be harmed by a text; arguments: its name, seconds per text."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from pipeline.embed.hashing import HashingEmbedder
from pipeline.settings import load_settings
from workers import worker

KILLS, RAISES = "poison-that-kills", "poison-that-raises"


class PoisonableEmbedder(HashingEmbedder):
    """Embeds by words, slowly; two words are more than it can take."""

    def embed(self, texts: Sequence[str]) -> Any:
        """Embed, die or raise."""
        time.sleep(float(sys.argv[2]) * len(texts))
        for text in texts:
            if KILLS in text:
                os.kill(os.getpid(), signal.SIGKILL)
            if RAISES in text:
                raise RuntimeError("more than it can take")
        return super().embed(texts)


if __name__ == "__main__":
    worker.embedder_of = lambda _: PoisonableEmbedder()  # type: ignore[assignment]
    worker.run(load_settings(), name=sys.argv[1], summarises=True)
