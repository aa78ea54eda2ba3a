"""Run a model with sentence-transformers itself: the yardstick for the exported ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.embed import projection
from pipeline.embed.offline import go_offline
from pipeline.embed.onnx_embedder import MAX_BATCH_ROWS
from pipeline.embed.pooling import normalise
from pipeline.embed.projection import Projection, TokenVectors
from pipeline.embed.protocol import EmbeddedQuestion, Floats, load_tokenizer, reject_non_numbers
from pipeline.embed.source import ModelSource


class TorchEmbedder:
    """An `Embedder` that loads torch; do not fork after this, nor use FAISS in the same process.

    Sets ``HF_HUB_OFFLINE`` for the process: a model that is not on disk is an error, never a download.
    """

    def __init__(self, source: ModelSource, *, n_threads: int) -> None:
        go_offline()
        import torch  # noqa: PLC0415 - takes 6 s and 560 MB
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - imports torch

        torch.set_num_threads(n_threads)
        self._model = SentenceTransformer(str(source.folder), device="cpu", local_files_only=True)
        self.dimension = int(self._model.get_embedding_dimension() or 0)
        self.token_dimension = min(projection.N_COMPONENTS, self.dimension)
        self.model_key = f"{source.id}@{source.revision}/torch/{self.dimension}+t{self.token_dimension}"
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

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[Floats, list[TokenVectors]]:
        """Give the vectors, and each text's token vectors (t, p) int8; see `TokenEmbedder`."""
        if not texts:
            return np.empty((0, self.dimension), np.float32), []
        vectors, states = self._pass(texts)
        return vectors, [self._projection.small(of_text) for of_text in states]

    def embed_question(self, text: str) -> EmbeddedQuestion:
        """Embed one text with its tokens and where they stand; see `TokenEmbedder`."""
        vectors, states = self._pass([text])
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets[: len(states[0])]
        spans = np.array(offsets, np.int64).reshape(-1, 2)
        return EmbeddedQuestion(vectors[0], self._projection.unit(states[0]), spans)

    @cached_property
    def _projection(self) -> Projection:
        """Made at the first use: this backend has no exported folder to keep it in."""
        return projection.of_states(np.concatenate(self._pass(projection.texts())[1]))

    def _pass(self, texts: Sequence[str]) -> tuple[Floats, list[Floats]]:
        """Give vectors, and each text's states (t, d) without those of [CLS] and [SEP].

        Why not `encode` with all outputs: it fails on a batch of more than four texts (5.7 takes the name of the
        input's kind apart by the letter).
        """
        import torch  # noqa: PLC0415 - loaded with the model

        vectors = np.empty((len(texts), self.dimension), np.float32)
        states: list[Floats] = [np.empty((0, self.dimension), np.float32)] * len(texts)
        order = np.argsort([len(text) for text in texts], kind="stable")
        for start in range(0, len(texts), MAX_BATCH_ROWS):
            rows = order[start : start + MAX_BATCH_ROWS]
            with torch.inference_mode():
                found: Any = self._model(self._model.preprocess([texts[row] for row in rows]))
            vectors[rows] = found["sentence_embedding"].numpy()
            for row, of_text, mask in zip(rows, found["token_embeddings"], found["attention_mask"], strict=True):
                states[row] = of_text[mask.bool()].numpy()[1:-1].astype(np.float32)
        return normalise(reject_non_numbers(vectors, self.model_key)), states
