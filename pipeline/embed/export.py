"""Export one model to ONNX, as trained and with 8-bit weights; run as ``python -m pipeline.embed.export``.

Why a child: torch and its friends take 1.5 GB and do not let go of it, and FAISS and torch in one process have hung.
The manifest is written last. The model's own folder is only read.
"""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from pipeline.embed.pooling import POOLINGS
from pipeline.embed.prepared import EXIT_UNSUPPORTED, TOKENIZER, PreparedModel, digest_of
from pipeline.errors import ConfigError

_FP32_FILE: Final = "model.onnx"


def main(model_id: str, revision: str, source: Path, target: Path) -> None:
    """Fill the empty folder ``target``.

    Raises:
        ConfigError: the model has a part, or a pooling, that is not supported.
    """
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
    pooling, normalise = _describe(model)
    saved = target / "saved"
    model.save_pretrained(str(saved))
    instructions = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "avx2"
    export_dynamic_quantized_onnx_model(model, instructions, str(saved))
    files = _keep(model, saved, target)
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


def _describe(model: Any) -> tuple[str, bool]:
    """Give the pooling and whether the model normalises; it may have no other part."""
    transformer, *rest = [type(module).__name__ for module in model]
    if transformer != "Transformer" or rest not in (["Pooling"], ["Pooling", "Normalize"]):
        raise ConfigError(f"its parts are {[transformer, *rest]}; supported: Transformer, Pooling, Normalize")
    if model[1].pooling_mode not in POOLINGS:
        raise ConfigError(f"its pooling is {model[1].pooling_mode!r}; supported: {', '.join(POOLINGS)}")
    return str(model[1].pooling_mode), len(rest) > 1


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
