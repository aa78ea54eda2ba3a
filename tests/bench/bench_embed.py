"""The embedding backends side by side: rate, one question's time, nearness to the full-precision vectors, recall.

Each runs in a process of its own (torch brings threads that the others do not have), one thread each, on the turns
and questions of one LoCoMo conversation. Rate: all turns with their token vectors, as ingest makes them; the best of
some rounds, because a busy machine only ever makes it slower. Recall: share of evidence among the ten turns whose
vectors are nearest the question's, over the whole conversation, categories 1 to 4.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import numpy as np
from pipeline_run import report

from pipeline.embed import load_embedder
from pipeline.records import Scope, Turn
from workers.evaluate import datasets
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.metrics import share_found

BACKENDS = ("torch", "onnx-fp32", "onnx-int8")
YARDSTICK = "onnx-fp32"
N_ASKED_AGAIN = 3


def measured(data: Path, backend: str, models_dir: Path, n_rounds: int) -> dict[str, np.ndarray]:
    """Embed a conversation with one backend, in this process."""
    turns, questions = _read(data)
    texts, asked = [turn.content for turn in turns], [question.text for question in questions]
    embedder = load_embedder(
        model="all-MiniLM-L6-v2", backend=backend, models_dir=models_dir, n_threads=1, batch_tokens=4_096
    )
    embedder.embed_with_tokens(texts[:32])
    rates, times = [], []
    for _ in range(n_rounds):
        started = time.perf_counter()
        vectors, _ = embedder.embed_with_tokens(texts)
        rates.append(len(texts) / (time.perf_counter() - started))
    for text in asked * N_ASKED_AGAIN:
        started = time.perf_counter()
        embedder.embed_question(text)
        times.append(1000 * (time.perf_counter() - started))
    return {
        "vectors": vectors,
        "asked": np.stack([embedder.embed_question(text).vector for text in asked]),
        "rate": np.array(max(rates)),
        "question_ms": np.percentile(times, [50, 95]),
    }


def _read(data: Path) -> tuple[list[Turn], list[AskedQuestion]]:
    dataset = datasets.load(data, "locomo")
    scope: Scope = dataset.questions[0].scope
    turns = [event for event in dataset.events() if isinstance(event, Turn) and event.scope == scope]
    return turns, [question for question in dataset.within(scope).questions if question.is_counted]


def _recall(data: Path, found: dict[str, np.ndarray]) -> float:
    turns, questions = _read(data)
    ranked = np.argsort(-(found["asked"] @ found["vectors"].T), axis=1, kind="stable")[:, :10]
    return fmean(
        share_found([turns[i].turn_id for i in row], question.turns, 10)
        for row, question in zip(ranked.tolist(), questions, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/locomo-dev.json"))
    parser.add_argument("--models-dir", type=Path, default=Path(".pytest_cache/d/models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", choices=BACKENDS, help="measure one, and write it to --to")
    parser.add_argument("--to", type=Path)
    chosen = parser.parse_args()
    if chosen.backend:
        np.savez(chosen.to, **measured(chosen.data, chosen.backend, chosen.models_dir, chosen.rounds))
        return
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        found = {}
        for backend in BACKENDS:
            file = Path(folder) / f"{backend}.npz"
            own = [*sys.argv[1:], "--backend", backend, "--to", str(file)]
            subprocess.run([sys.executable, "-W", "ignore", __file__, *own], check=True)
            found[backend] = dict(np.load(file))
    for backend in BACKENDS:
        cosines = np.sum(found[backend]["vectors"] * found[YARDSTICK]["vectors"], axis=1)
        p50, p95 = found[backend]["question_ms"].tolist()
        report(
            "embed",
            backend=backend,
            n_turns=len(cosines),
            texts_per_s=round(float(found[backend]["rate"]), 1),
            question_p50_ms=round(p50, 2),
            question_p95_ms=round(p95, 2),
            cosine_to_fp32_mean=round(float(cosines.mean()), 4),
            cosine_to_fp32_min=round(float(cosines.min()), 4),
            recall_at_10=round(_recall(chosen.data, found[backend]), 4),
            load=os.getloadavg()[0],
        )


if __name__ == "__main__":
    main()
