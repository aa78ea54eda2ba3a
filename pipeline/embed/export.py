"""Export one model to ONNX, as trained and with 8-bit weights; run as ``python -m pipeline.embed.export``.

Why a child: torch and its friends take 1.5 GB and do not let go of it, and FAISS and torch in one process have hung.
The manifest is written last. The model's own folder is only read.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from pipeline.embed import projection
from pipeline.embed.pooling import POOLINGS
from pipeline.embed.prepared import EXIT_UNSUPPORTED, PROJECTION, TOKENIZER, PreparedModel, digest_of
from pipeline.errors import ConfigError

_FP32_FILE: Final = "model.onnx"


def main(model_id: str, revision: str, source: Path, target: Path) -> None:
    """Fill the empty folder ``target``.

    Raises:
        ConfigError: the model has a part, or a pooling, that is not supported.
    """
    normalise = check_parts(source)
    from sentence_transformers import (  # noqa: PLC0415 - this process exists to load it
        SentenceTransformer,
        export_dynamic_quantized_onnx_model,
    )

    model = SentenceTransformer(
        str(source),
        device="cpu",
        backend="onnx",
        local_files_only=True,
        model_kwargs={"provider": "CPUExecutionProvider", "export": True},
    )
    pooling = _pooling(model)
    saved = target / "saved"
    model.save_pretrained(str(saved))
    instructions = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "avx2"
    export_dynamic_quantized_onnx_model(model, instructions, str(saved))
    files = _keep(model, saved, target)
    files[PROJECTION] = "projection.npz"
    projection.of_states(_states(model)).write(target / files[PROJECTION])
    PreparedModel(
        id=model_id,
        revision=revision,
        dimension=int(model.get_embedding_dimension()),
        max_seq_length=int(model.max_seq_length),
        pooling=pooling,
        normalise=normalise,
        pad_id=int(model.tokenizer.pad_token_id),
        files={role: [name, digest_of(target / name)] for role, name in files.items()},
    ).write(target)


def check_parts(source: Path) -> bool:
    """Tell whether the model normalises; refuse it, before anything heavy is loaded, if it has a part we lack.

    Raises:
        ConfigError: it is not a transformer, a pooling and perhaps a normalisation.
    """
    try:
        listed = json.loads((source / "modules.json").read_bytes())
        parts = [part["type"].rpartition(".")[2] for part in listed]
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"its modules.json is not a list of parts: {error!r}") from error
    if parts not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(f"its parts are {parts}; supported: Transformer, Pooling, Normalize")
    return "Normalize" in parts


def _pooling(model: Any) -> str:
    if model[1].pooling_mode not in POOLINGS:
        raise ConfigError(f"its pooling is {model[1].pooling_mode!r}; supported: {', '.join(POOLINGS)}")
    return str(model[1].pooling_mode)


def _states(model: Any) -> Any:
    """Give the states of the tokens that the projection is made of: (n, d) float32."""
    import numpy as np  # noqa: PLC0415 - like the model, for this process alone

    of_texts = model.encode(projection.texts(), output_value="token_embeddings", show_progress_bar=False)
    return np.concatenate([np.asarray(states, np.float32)[1:-1] for states in of_texts])  # [CLS] and [SEP]


def _keep(model: Any, saved: Path, target: Path) -> dict[str, str]:
    """Move what a reader needs out of the saved model; give each role's file name."""
    for path in (saved / "onnx").iterdir():  # weights over 2 GB lie in a file of their own beside the model's
        path.rename(target / path.name)
    shutil.rmtree(saved)
    tokenizer = model.tokenizer.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(target / "tokenizer.json"))
    quantized = next(target.glob("model_q*.onnx")).name
    return {"onnx-int8": quantized, "onnx-fp32": _FP32_FILE, TOKENIZER: "tokenizer.json"}


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_UNSUPPORTED)
