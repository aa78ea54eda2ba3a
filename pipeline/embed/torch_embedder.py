"""Run a model with sentence-transformers itself: the yardstick for the exported ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from pipeline.embed.onnx_embedder import MAX_BATCH_ROWS
from pipeline.embed.protocol import Floats, load_tokenizer, reject_non_numbers
from pipeline.embed.source import ModelSource


class TorchEmbedder:
    """An `Embedder` that loads torch; do not fork after this, nor use FAISS in the same process.

    Sets ``HF_HUB_OFFLINE`` for the process: a model that is not on disk is an error, never a download.
    """

    def __init__(self, source: ModelSource, *, n_threads: int) -> None:
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")  # read once, at import
        import torch  # noqa: PLC0415 - takes 6 s and 560 MB
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - imports torch

        torch.set_num_threads(n_threads)
        self._model = SentenceTransformer(str(source.folder), device="cpu", local_files_only=True)
        self.dimension = int(self._model.get_embedding_dimension() or 0)
        self.model_key = f"{source.id}@{source.revision}/torch/{self.dimension}"
        self.tokenizer = load_tokenizer(source.folder / "tokenizer.json")
        self.max_tokens = int(self._model.max_seq_length or 0) - self.tokenizer.num_special_tokens_to_add(False)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Give (n, d) float32, rows L2-normalised, in the order of the texts; see `Embedder`."""
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        vectors = self._model.encode(
            list(texts), batch_size=MAX_BATCH_ROWS, normalize_embeddings=True, show_progress_bar=False
        )
        return reject_non_numbers(np.asarray(vectors, np.float32), self.model_key)
