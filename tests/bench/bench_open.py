"""How long a bot that has just started waits for its first answer, and that it need not load torch for it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from filled import QUESTIONS, SCOPE, fill
from pipeline_run import report

from pipeline import log
from pipeline.embed import load_embedder

_CHILD = """
import json, sys, time
times = [time.perf_counter()]
from retrieval import open_memory
open_memory
times.append(time.perf_counter())
memory = open_memory(sys.argv[1])
times.append(time.perf_counter())
memory.embedder
times.append(time.perf_counter())
hits = memory.retrieve(sys.argv[3], sys.argv[2]).hits
times.append(time.perf_counter())
memory.retrieve(sys.argv[3], sys.argv[2])
times.append(time.perf_counter())
assert hits
heavy = {"torch", "transformers", "sentence_transformers", "celery", "redis"} & set(sys.modules)
assert not heavy, heavy
print(json.dumps([1000 * (later - sooner) for sooner, later in zip(times, times[1:])]))
"""
STEPS = ("import_ms", "open_ms", "load_model_ms", "first_retrieve_ms", "second_retrieve_ms")


def bench(n_traces: int, models_dir: Path, n_processes: int) -> None:
    """Ask one question in each of several fresh processes; the first one, which warms the disk cache, is left out."""
    embedder = load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=models_dir, n_threads=1, batch_tokens=4096
    )
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        fill(Path(folder), n_traces, embedder, n_tail=100)
        runs = [_first_answer(folder, models_dir) for _ in range(n_processes + 1)][1:]
    steps = dict(zip(STEPS, np.median([run[:-1] for run in runs], axis=0).round(1).tolist(), strict=True))
    answers = [sum(run[1:4]) for run in runs]
    with_import = [sum(run[:4]) for run in runs]
    report(
        "open_to_first_answer",
        n_traces=n_traces,
        n_processes=n_processes,
        median_ms=round(float(np.median(answers)), 1),
        slowest_ms=round(max(answers), 1),
        with_import_ms=round(float(np.median(with_import)), 1),
        **steps,
        whole_process_ms=round(float(np.median([run[-1] for run in runs])), 1),
        load=os.getloadavg()[0],
    )


def _first_answer(folder: str, models_dir: Path) -> list[Any]:
    environment = {**os.environ, "TURNSTREAM_EMBEDDING__CACHE_DIR": str(models_dir.resolve())}
    started = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, folder, SCOPE.key, QUESTIONS[8]],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    return [*json.loads(child.stdout), 1000 * (time.perf_counter() - started)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models-dir", type=Path, default=Path(".pytest_cache/d/models"))
    parser.add_argument("--traces", type=int, nargs="*", default=[400, 10_000])
    parser.add_argument("--processes", type=int, default=5)
    chosen = parser.parse_args()
    log.configure("warning", "console")
    for n_traces in chosen.traces:
        bench(n_traces, chosen.models_dir, chosen.processes)


if __name__ == "__main__":
    main()
