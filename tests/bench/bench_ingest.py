"""How fast published turns become searchable, as a ratio to the bare embedder and with the embedding taken away."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_run import Running, pipeline, report, sentences

from pipeline.embed import load_embedder
from pipeline.importers import Imported, reader
from pipeline.records import Event, Scope, Turn

LOCOMO = Path(__file__).resolve().parents[3] / "shared" / "data" / "locomo-dev.json"
T0 = 1_700_000_000


def bench_locomo(models_dir: Path, n_workers: int) -> None:
    """The five conversations, from first publish to all searchable, against their texts through the bare embedder."""
    events = [item.event for item in reader("locomo")(LOCOMO) if isinstance(item, Imported)]
    texts = [event.content for event in events if isinstance(event, Turn)]
    bare_before = _bare_rate(texts, models_dir, n_workers)
    with pipeline(
        backend="onnx-int8", models_dir=models_dir, TURNSTREAM_WORKERS__N_WORKERS=str(n_workers)
    ) as running:
        start = time.perf_counter()
        running.publish(events)
        running.wait(n_searchable=len(texts) + 1)
        searchable_s = time.perf_counter() - start
        running.wait_quiet()
        summarised_s = time.perf_counter() - start
    bare_after = _bare_rate(texts, models_dir, n_workers)
    bare = (bare_before + bare_after) / 2
    report(
        "ingest_locomo",
        n_turns=len(texts),
        turns_per_s=round(len(texts) / searchable_s, 1),
        bare_embedder_turns_per_s=[round(bare_before, 1), round(bare_after, 1)],
        ratio=round(len(texts) / searchable_s / bare, 3),
        until_summarised_s=round(summarised_s, 2),
        ratio_with_summaries=round(len(texts) / summarised_s / bare, 3),
    )


def _bare_rate(texts: list[str], models_dir: Path, n_threads: int) -> float:
    """Texts per second of the embedder alone, its batches sorted by length, on as many cores as the pipeline has."""
    embedder = load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=models_dir, n_threads=1, batch_tokens=4096
    )
    embedder.embed(texts[:64])
    shares = [texts[number::n_threads] for number in range(n_threads)]
    start = time.perf_counter()
    threads = [threading.Thread(target=embedder.embed, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(texts) / (time.perf_counter() - start)


def bench_without_embedding(models_dir: Path, n_turns: int, n_scopes: int) -> None:
    """Publish, ledger, chunk, trace and full text, with vectors that cost next to nothing."""
    with pipeline(backend="hashing", models_dir=models_dir, TURNSTREAM_REDIS__MEMORY_BYTES=str(4 << 30)) as running:
        _run(running, n_turns, n_scopes)


def _run(running: Running, n_turns: int, n_scopes: int) -> None:
    events = list(_turns(n_turns, n_scopes))
    cpu_before, start = running.cpu_s(), time.perf_counter()
    publishing = threading.Thread(target=running.publish, args=(events,))
    publishing.start()
    running.wait(n_searchable=n_turns + 1)
    elapsed_s = time.perf_counter() - start
    publishing.join()
    cpu_s = {name: round(used - cpu_before.get(name, 0), 2) for name, used in running.cpu_s().items()}
    report(
        "ingest_without_embedding",
        n_turns=n_turns,
        n_scopes=n_scopes,
        seconds=round(elapsed_s, 2),
        turns_per_s=round(n_turns / elapsed_s),
        cpu_s=cpu_s,
        turns_per_cpu_s=round(n_turns / sum(cpu_s.values())),
    )


def _turns(n_turns: int, n_scopes: int) -> Iterator[Event]:
    chance = random.Random(1)
    for number, text in enumerate(sentences(n_turns)):
        scope = chance.randrange(n_scopes)
        yield Turn(
            scope=Scope("user", f"u{scope}"),
            session_id=f"s{number * 20 // n_turns}",
            role="user",
            content=text,
            timestamp=T0 + number,
            event_id=f"e{number}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models-dir", type=Path, default=Path(".pytest_cache/d/models"))
    parser.add_argument("--only", choices=["locomo", "one-scope", "many-scopes"])
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--scopes", type=int, default=10_000)
    chosen = parser.parse_args()
    if chosen.only in {None, "locomo"} and LOCOMO.exists():
        bench_locomo(chosen.models_dir, 2)
    if chosen.only in {None, "one-scope"}:
        bench_without_embedding(chosen.models_dir, chosen.turns, 1)
    if chosen.only in {None, "many-scopes"}:
        bench_without_embedding(chosen.models_dir, chosen.turns, chosen.scopes)


if __name__ == "__main__":
    main()
