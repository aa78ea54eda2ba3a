"""Small indexes, and their snapshots in a shard's folder."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np

from pipeline.snapshot import Kind, Manifest, SnapshotStore

D = 16
MODEL = "m@1/hashing/16"


def unit_vectors(n: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, D)).astype(np.float32)
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float16).astype(np.float32)  # as the ledger keeps them


def flat_index(n: int, seed: int = 0, kept: faiss.Index | None = None) -> faiss.IndexIDMap:
    half = faiss.IndexScalarQuantizer(D, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexIDMap(half if kept is None else kept)
    index.add_with_ids(unit_vectors(n, seed), np.arange(n, dtype=np.int64) * 2 + 1)
    return index


def publish(
    store: SnapshotStore,
    index: faiss.Index | None = None,
    *,
    kind: Kind = "traces",
    watermark: int = 7,
    **options: int,
) -> Manifest:
    index = flat_index(40) if index is None else index
    return store.publish(kind, index=index, watermark=watermark, model_key=MODEL, dimension=D, **options)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}
