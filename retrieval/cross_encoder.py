"""A reranker that is a sentence-transformers `CrossEncoder`: it reads the question and a text together.

Loads torch (6 s, 560 MB), so it is imported where it is made and nowhere else; a reader without one never sees torch.
Nothing is downloaded: the model is a folder, or a name that was put into the local cache before.

Why one thread: torch and FAISS each bring an OpenMP of their own; with one thread neither starts any, and a retrieve
has the processor to itself. Measured on two busy cores: thirty hits by a model of six layers take about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pipeline.embed.offline import go_offline
from pipeline.errors import ConfigError

_SETTING: Final = "TURNSTREAM_RETRIEVAL__RERANKER"
_BATCH_ROWS: Final = 16


class CrossEncoderReranker:
    """A `Reranker` by name or path; safe to share between threads.

    Sets ``HF_HUB_OFFLINE`` for the process.

    Args:
        model: the folder of a cross-encoder with one label, or its name in the local cache.
        n_threads: compute threads.

    Raises:
        ConfigError: there is no such model on this machine, or it has more labels than one.
    """

    def __init__(self, model: str, *, n_threads: int = 1) -> None:
        go_offline()
        import torch  # noqa: PLC0415 - takes 6 s and 560 MB
        from safetensors import SafetensorError  # noqa: PLC0415 - what torch's loader raises for damaged weights
        from sentence_transformers import CrossEncoder  # noqa: PLC0415 - imports torch

        torch.set_num_threads(n_threads)
        try:
            self._model: Any = CrossEncoder(model, device="cpu", local_files_only=True)
        except (OSError, ValueError, LookupError, RuntimeError, AttributeError, SafetensorError) as error:
            said = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"{_SETTING} is {model!r}: no usable cross-encoder of that name or path is on this machine"
                f" ({said}). Nothing is downloaded: save one with save_pretrained and set its path"
            ) from error
        if self._model.num_labels != 1:
            raise ConfigError(
                f"{_SETTING} is {model!r}, which has {self._model.num_labels} labels; a reranker has one, relevance"
            )
        self._between_0_and_1 = torch.nn.Sigmoid()

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Give each text's relevance between 0 and 1, in order."""
        if not texts:
            return []
        found = self._model.predict(
            [(query, text) for text in texts],
            batch_size=_BATCH_ROWS,
            activation_fn=self._between_0_and_1,
            show_progress_bar=False,
        )
        return [float(value) for value in np.asarray(found, np.float64)]
