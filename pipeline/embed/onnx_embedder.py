"""Run an exported model with onnxruntime: no torch in the process.

With 8-bit weights a vector depends a little on the batch it was made in, because activations are scaled per batch:
measured on 50 chat turns, the cosine to the same text embedded alone is at least 0.97. One text alone always gives
the same vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.embed.offline import go_offline
from pipeline.embed.pooling import POOLINGS, Mask, normalise
from pipeline.embed.prepared import PROJECTION, TOKENIZER, PreparedModel
from pipeline.embed.projection import Projection, TokenVectors, model_suffix
from pipeline.embed.protocol import EmbeddedQuestion, Floats, load_tokenizer, reject_non_numbers
from pipeline.errors import ConfigError, TransientError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

MAX_BATCH_ROWS: Final = 16
"""Texts in one forward pass. Measured on one AVX2 thread: 8, 16, 32 rows give 91, 92, 80 texts/s."""


class OnnxEmbedder:
    """An `Embedder` over one ONNX file, with token vectors.

    Args:
        prepared: the exported model.
        backend: ``onnx-int8`` or ``onnx-fp32``.
        n_threads: compute threads; with more than one, do not fork after this.
        batch_tokens: padded tokens of one forward pass.

    Raises:
        ConfigError: onnxruntime refuses the file, or the pooling is unknown.
    """

    def __init__(self, prepared: PreparedModel, *, backend: str, n_threads: int, batch_tokens: int) -> None:
        if prepared.pooling not in POOLINGS:
            raise ConfigError(f"{prepared.id} pools by {prepared.pooling!r}; supported: {', '.join(POOLINGS)}")
        self._projection = Projection.read(prepared.path(PROJECTION))
        suffix = model_suffix(self._projection)
        self.model_key = f"{prepared.id}@{prepared.revision}/{backend}/{prepared.dimension}{suffix}"
        self.dimension = prepared.dimension
        self.token_dimension = self._projection.dimension
        self._tokenizer_file = prepared.path(TOKENIZER)
        self._truncating = load_tokenizer(self._tokenizer_file)
        self.max_tokens = prepared.max_seq_length - self._truncating.num_special_tokens_to_add(False)
        self._truncating.enable_truncation(prepared.max_seq_length)
        self._pad_id = prepared.pad_id
        self._pool = POOLINGS[prepared.pooling]
        self._batch_tokens = batch_tokens
        self._session = _open_session(prepared, backend, n_threads)
        self._inputs = {declared.name for declared in self._session.get_inputs()}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Load the one that neither truncates nor pads, once asked for: who chunks asks, who only reads does not."""
        return load_tokenizer(self._tokenizer_file)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Give (n, d) float32, rows L2-normalised, in the order of the texts; see `Embedder`."""
        return self._embed(texts, None)

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[Floats, list[TokenVectors]]:
        """Give the vectors, and each text's token vectors (t, p) int8; see `TokenEmbedder`."""
        tokens: list[TokenVectors] = [np.empty((0, self.token_dimension), np.int8)] * len(texts)
        return self._embed(texts, tokens), tokens

    def embed_question(self, text: str) -> EmbeddedQuestion:
        """Embed one text with its tokens and where they stand; see `TokenEmbedder`."""
        encoding = self._truncating.encode(text)
        states, mask = self._forward([encoding.ids])
        vector = normalise(reject_non_numbers(self._pool(states, mask), self.model_key))[0]
        own = np.flatnonzero(_own_tokens(encoding))
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)[own]
        return EmbeddedQuestion(vector, self._projection.unit_on_one_core(states[0, own]), spans)

    def _embed(self, texts: Sequence[str], tokens: list[TokenVectors] | None) -> Floats:
        encodings = self._truncating.encode_batch_fast(list(texts))
        vectors = np.empty((len(encodings), self.dimension), np.float32)
        for batch in cut_batches([len(encoding.ids) for encoding in encodings], self._batch_tokens):
            states, mask = self._forward([encodings[i].ids for i in batch])
            vectors[batch] = self._pool(states, mask)
            if tokens is not None:
                own = np.zeros(mask.shape, np.bool_)
                for row, i in enumerate(batch):
                    own[row, : len(encodings[i].ids)] = _own_tokens(encodings[i])
                projected = np.split(self._projection.small(states[own]), np.cumsum(own.sum(axis=1))[:-1])
                for i, of_text in zip(batch, projected, strict=True):
                    tokens[i] = of_text
        return normalise(reject_non_numbers(vectors, self.model_key))

    def _forward(self, rows: list[list[int]]) -> tuple[Floats, Mask]:
        """Give the last layer's states (b, t, d), and which of them are a text's (b, t)."""
        longest = max(len(row) for row in rows)
        ids = np.full((len(rows), longest), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._run({name: known[name] for name in self._inputs}), mask

    def _run(self, feed: dict[str, npt.NDArray[np.int64]]) -> Floats:
        from onnxruntime.capi import onnxruntime_pybind11_state as ort  # noqa: PLC0415 - loaded with the session

        try:
            tokens: Floats = self._session.run(None, feed)[0]
        except (ort.Fail, ort.RuntimeException, ort.InvalidArgument) as error:
            raise TransientError(f"{self.model_key} failed on {feed['input_ids'].shape} tokens: {error}") from error
        return tokens


def _own_tokens(encoding: Encoding) -> npt.NDArray[np.bool_]:
    """Tell which tokens are the text's own, not added around it."""
    return ~np.array(encoding.special_tokens_mask, np.bool_)


def cut_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield positions, shortest texts first, so that no batch holds more padded tokens than it may.

    A text longer than the budget goes alone.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    for stop in range(1, len(order) + 1):
        n_rows = stop + 1 - start
        full = n_rows > MAX_BATCH_ROWS or stop == len(order) or n_rows * lengths[order[stop]] > batch_tokens
        if full:
            yield order[start:stop]
            start = stop


def _open_session(prepared: PreparedModel, backend: str, n_threads: int) -> Any:
    go_offline()
    import onnxruntime  # noqa: PLC0415 - a native library; loaded where a model is
    from onnxruntime.capi import onnxruntime_pybind11_state as ort  # noqa: PLC0415 - the same

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; they need not be printed as well
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leave the core to the other process
    try:
        session = onnxruntime.InferenceSession(
            str(prepared.path(backend)), options, providers=["CPUExecutionProvider"]
        )
    except (ort.Fail, ort.RuntimeException, ort.InvalidGraph, ort.InvalidProtobuf, ort.NotImplemented) as error:
        raise ConfigError(f"onnxruntime refuses {prepared.path(backend)}: {error}; delete its folder") from error
    unknown = {declared.name for declared in session.get_inputs()} - {"input_ids", "attention_mask", "token_type_ids"}
    if unknown:
        raise ConfigError(f"{prepared.id} wants inputs {sorted(unknown)}; only text models are supported")
    return session
