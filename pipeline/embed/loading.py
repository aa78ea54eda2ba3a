"""The one door to a model: its backend chosen by name, and nothing loaded for the backends not chosen."""

from __future__ import annotations

from pathlib import Path

from pipeline.embed.prepared import prepare_model
from pipeline.embed.protocol import Embedder
from pipeline.embed.source import find_source
from pipeline.errors import ConfigError


def load_embedder(*, model: str, backend: str, models_dir: Path, n_threads: int, batch_tokens: int) -> Embedder:
    """Load a model for this process; exports it first if no process ever has (20 s).

    Args:
        model: the bundled name or the path of a sentence-transformers folder; not looked at by ``hashing``.
        backend: ``onnx-int8``, ``onnx-fp32``, ``torch`` or ``hashing``.
        models_dir: where exported models are kept; used by the ONNX backends alone.
        n_threads: compute threads.
        batch_tokens: padded tokens of one forward pass.

    Raises:
        ConfigError: no such backend or model, or a model that is not supported.
        TransientError: the export was killed or took too long.
    """
    if backend in {"onnx-int8", "onnx-fp32"}:
        from pipeline.embed.onnx_embedder import OnnxEmbedder  # noqa: PLC0415 - one backend is loaded, not all

        prepared = prepare_model(model=model, models_dir=models_dir, backend=backend)
        return OnnxEmbedder(prepared, backend=backend, n_threads=n_threads, batch_tokens=batch_tokens)
    if backend == "hashing":
        from pipeline.embed.hashing import HashingEmbedder  # noqa: PLC0415 - the same

        return HashingEmbedder()
    if backend == "torch":
        from pipeline.embed.torch_embedder import TorchEmbedder  # noqa: PLC0415 - the same

        return TorchEmbedder(find_source(model), n_threads=n_threads)
    raise ConfigError(f"TURNSTREAM_EMBEDDING__BACKEND is {backend!r}; use onnx-int8, onnx-fp32, torch or hashing")
