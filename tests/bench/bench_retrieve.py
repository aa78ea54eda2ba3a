"""What a retrieve costs, query embedding included, as a ratio to embedding the query and one bare FAISS search.

For profile `fused` the bare reader also asks FTS5 for the ten turns that match best, by the words that `fused` looks
for. Both are measured in one process, query by query and in changing order, so that a busy machine is busy for both.
The bare search asks the scope's own published index for the ten nearest: what the cheapest possible reader would do.
FAISS keeps to one thread for both (building the index here has seen to that), as a retrieve does in any process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import faiss
import numpy as np
from filled import QUESTIONS, SCOPE, fill, time_of
from pipeline_run import report

from pipeline import log
from pipeline.embed import Embedder, load_embedder
from pipeline.ledger import passage_reads
from pipeline.shards import Shards
from retrieval import Memory, open_memory
from retrieval.embedded_question import ask

PARTS = ("embedding_ms", "stage1_ms", "words_ms", "vector_ms", "scoring_ms")
ORDERS = ("rank", "bm25(fulltext)")
"""The ways to ask FTS5 for the best first: the one its documentation names, and the one that `fused` takes."""


def bench(n_traces: int, embedder: Embedder, n_rounds: int) -> None:
    """Fill a scope and ask it, with and without a range of time."""
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        started = time.perf_counter()
        fill(Path(folder), n_traces, embedder)
        filled_s = round(time.perf_counter() - started, 1)
        memory = open_memory(folder, embedder=embedder)
        index = _published_index(Path(folder))
        by_meaning = partial(_by_meaning, embedder, index)
        middle = time_of(n_traces // 2)
        for name, limits in (
            ("any_time", {}),
            ("after_half", {"after": middle}),
            ("before_half", {"before": middle}),
        ):
            report(
                "retrieve",
                n_traces=n_traces,
                asked=name,
                filled_s=filled_s,
                load=os.getloadavg()[0],
                **_index_of(index),
                **_ask(memory, "session", by_meaning, limits, n_rounds),
            )
        for order in ORDERS:
            by_words = _by_words(Path(folder), embedder, order)

            def bare(question: str, by_words: Callable[[str], None] = by_words) -> None:
                by_meaning(question)
                by_words(question)

            load = os.getloadavg()[0]
            figures = _ask(memory, "fused", bare, {}, n_rounds)
            report("retrieve_fused", n_traces=n_traces, order=order, load=load, **figures)
        report("retrieve_profiles", n_traces=n_traces, load=os.getloadavg()[0], **_compare(memory, n_rounds))
        memory.close()


def _compare(memory: Memory, n_rounds: int) -> dict[str, Any]:
    """Ask with both profiles in turn; in processor time, which others' work disturbs less, and by the clock."""
    taken: dict[str, list[tuple[float, float]]] = {"fused": [], "session": []}
    for number in range(-1, n_rounds):
        for place, question in enumerate(QUESTIONS):
            for profile in ("fused", "session") if (number + place) % 2 else ("session", "fused"):
                used = time.process_time()
                by_clock = _milliseconds(partial(memory.retrieve, question, SCOPE, profile=profile))
                if number >= 0:
                    taken[profile].append((1000 * (time.process_time() - used), by_clock))
    times = {profile: np.percentile(found, [50, 95], axis=0) for profile, found in taken.items()}
    return {
        "ratio_cpu_p50_p95": (times["fused"] / times["session"])[:, 0].round(2).tolist(),
        "ratio_p50_p95": (times["fused"] / times["session"])[:, 1].round(2).tolist(),
        **{f"{profile}_cpu_ms_p50_p95": found[:, 0].round(1).tolist() for profile, found in times.items()},
    }


def _by_meaning(embedder: Embedder, index: Any, question: str) -> None:
    index.search(embedder.embed([question]), 10)


def _by_words(data_dir: Path, embedder: Embedder, order: str) -> Callable[[str], None]:
    """Give a bare search for the words that profile `fused` looks for; which they are is found out beforehand."""
    ledger = apsw.Connection(str(Shards(data_dir).ledger_path(SCOPE)), flags=apsw.SQLITE_OPEN_READONLY)
    n_turns, _ = passage_reads.fulltext_totals(ledger)
    queries = {}
    for question in QUESTIONS:
        asked = ask(question, [], embedder)
        sought = asked.sought(passage_reads.document_frequencies(ledger, asked.asking.counted_words), n_turns)
        queries[question] = " OR ".join(f'"{word}"' for word in sought)

    statement = f"SELECT rowid FROM fulltext WHERE fulltext MATCH ? ORDER BY {order} LIMIT 10"

    def search(question: str) -> None:
        if queries[question]:
            ledger.execute(statement, (queries[question],)).fetchall()

    return search


def _index_of(index: Any) -> dict[str, Any]:
    inner = faiss.downcast_index(index)
    return {"index": type(inner).__name__, "nprobe": getattr(inner, "nprobe", None)}


def _ask(
    memory: Memory, profile: str, ask_bare: Callable[[str], Any], limits: dict[str, float], n_rounds: int
) -> dict[str, Any]:
    retrieve_ms, bare_ms, parts, n_hits = [], [], [], []
    for number in range(-1, n_rounds):
        for place, question in enumerate(QUESTIONS):
            retrieved: list[Any] = []

            def retrieve(question: str = question, retrieved: list[Any] = retrieved) -> None:
                retrieved.append(memory.retrieve(question, SCOPE, profile=profile, **limits))

            def bare(question: str = question) -> None:
                ask_bare(question)

            calls = [retrieve, bare] if (number + place) % 2 else [bare, retrieve]
            taken = {call: _milliseconds(call) for call in calls}
            if number >= 0:  # the first round warms up
                retrieve_ms.append(taken[retrieve])
                bare_ms.append(taken[bare])
                diagnostics = retrieved[0].diagnostics
                known = [getattr(diagnostics, part) for part in PARTS]
                parts.append([*known, diagnostics.total_ms - sum(known), taken[retrieve] - diagnostics.total_ms])
                n_hits.append(len(retrieved[0].hits))
    medians = np.median(np.array(parts), axis=0).round(3).tolist()
    retrieve_p50, retrieve_p95 = np.percentile(retrieve_ms, [50, 95])
    bare_p50, bare_p95 = np.percentile(bare_ms, [50, 95])
    return {
        "n_queries": len(retrieve_ms),
        "n_hits_mean": round(float(np.mean(n_hits)), 1),
        "ratio": round(float(retrieve_p50 / bare_p50), 3),
        "ratio_p95": round(float(retrieve_p95 / bare_p95), 3),
        "p50_ms": round(float(retrieve_p50), 3),
        "p95_ms": round(float(retrieve_p95), 3),
        "bare_p50_ms": round(float(bare_p50), 3),
        "bare_p95_ms": round(float(bare_p95), 3),
        "parts_ms": dict(zip([*PARTS, "between_ms", "neighbours_and_hits_ms"], medians, strict=True)),
    }


def _milliseconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def _published_index(data_dir: Path) -> Any:
    (path,) = Shards(data_dir).folder(SCOPE).glob("traces.*.faiss")
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models-dir", type=Path, default=Path(".pytest_cache/d/models"))
    parser.add_argument("--traces", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=14)
    chosen = parser.parse_args()
    log.configure("warning", "console")
    embedder = load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=chosen.models_dir, n_threads=1, batch_tokens=4096
    )
    for n_traces in chosen.traces:
        bench(n_traces, embedder, chosen.rounds)


if __name__ == "__main__":
    main()
