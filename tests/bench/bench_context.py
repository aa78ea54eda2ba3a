"""A block for a prompt from a session of 10 000 exchanges, by strategy; and what shortening leaves of LoCoMo's facts.

The session is as a pipeline would leave it: two turns an exchange, embedded (by hashing: the model is not what is
measured, and a question's vector costs it little). The first block of a session is stated apart: it reads everything.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from filled import QUESTIONS
from pipeline_run import report, sentences

from pipeline import log
from pipeline.embed.hashing import HashingEmbedder
from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from retrieval import Memory, open_memory
from retrieval.context.condensing.compression import n_bytes, shorten, vocabulary
from retrieval.context.context import STRATEGIES
from retrieval.context.layout.cutting import cut
from retrieval.fused.lexical import STOP_WORDS
from tests.ledgers import remember
from workers.evaluate import datasets

SCOPE = Scope("user", "bench")
FIRST_S = 1_700_000_000
_WORD = re.compile(r"\w+")


def fill(folder: Path, n_entries: int, embedder: HashingEmbedder) -> None:
    """Put one session of so many exchanges into a scope."""
    chance = random.Random(1)
    said = sentences(6 * n_entries)
    turns = [
        Turn(
            scope=SCOPE,
            session_id="s",
            role=("user", "assistant")[number % 2],
            content=" ".join(next(said) for _ in range(chance.randint(1, 3))),
            timestamp=FIRST_S + 40 * number,
            event_id=f"e{number}",
        )
        for number in range(2 * n_entries)
    ]
    for start in range(0, len(turns), 4_000):
        remember(Shards(folder), SCOPE, turns[start : start + 4_000], embedder)


def bench(memory: Memory, strategy: str, n_entries: int, max_tokens: int, n_rounds: int) -> None:
    """Build blocks for all questions, again and again."""
    first_ms = _took(memory, strategy, "warm", max_tokens)[0]
    took = [_took(memory, strategy, question, max_tokens) for _ in range(n_rounds) for question in QUESTIONS]
    wall, cpu = np.array(took).T
    report(
        "context",
        strategy=strategy,
        n_entries=n_entries,
        max_tokens=max_tokens,
        first_ms=round(first_ms, 1),
        p50_ms=round(float(np.percentile(wall, 50)), 1),
        p95_ms=round(float(np.percentile(wall, 95)), 1),
        cpu_p50_ms=round(float(np.percentile(cpu, 50)), 1),
        cpu_p95_ms=round(float(np.percentile(cpu, 95)), 1),
        load=os.getloadavg()[0],
    )


def _took(memory: Memory, strategy: str, question: str, max_tokens: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    memory.context("s", SCOPE, objective=question, strategy=strategy, max_tokens=max_tokens)
    return 1_000 * (time.perf_counter() - wall), 1_000 * (time.process_time() - cpu)


def bench_facts(path: Path) -> None:
    """Tell which share of the answers' words that the evidence turns hold they still hold when shortened."""
    dataset = datasets.load(path, "locomo")
    said = {(e.scope, e.turn_id): e.content for e in dataset.events() if isinstance(e, Turn)}
    known = vocabulary(said.values())
    cuts = {place: cut(text, 200) for place, text in said.items()}
    whole = sum(map(n_bytes, said.values()))
    share = sum(map(n_bytes, cuts.values())) / whole
    ways = {"whole": said, "cut at 200 characters": cuts}
    for kept in (0.8, share, 0.5, 0.25):
        ways[f"shortened to {kept:.3f}"] = {place: shorten(text, kept, known) for place, text in said.items()}
    answers = _answers(path, dataset)
    for way, texts in ways.items():
        held = [word in _words(texts[place]) for place, word in answers if word in _words(said[place])]
        size = sum(map(n_bytes, texts.values())) / whole
        report("facts", way=way, bytes_kept=round(size, 3), answer_words=len(held), recall=round(np.mean(held), 3))


def _answers(path: Path, dataset: datasets.Dataset) -> list[tuple[tuple[Scope, str], str]]:
    """List evidence turns with the words of the answers that they are evidence for."""
    import json  # noqa: PLC0415 - the answers alone are not read by the data set

    told = {item["sample_id"]: item["qa"] for item in json.loads(path.read_text())}
    pairs = []
    for question in dataset.questions:
        answer = told[question.scope.id][int(question.id.rpartition("#")[2])].get("answer", "")
        words = _words(str(answer)) if question.is_counted else set()
        pairs += [((question.scope, turn), word) for turn in sorted(question.turns) for word in sorted(words)]
    return pairs


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold())) - STOP_WORDS


def main() -> None:
    """Measure every strategy, and facts where a data set is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--max-tokens", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--locomo", type=Path, default=None, help="LoCoMo's file, for the facts that are left")
    chosen = parser.parse_args()
    log.configure("error", "console")
    if chosen.locomo is not None:
        bench_facts(chosen.locomo)
    embedder = HashingEmbedder()
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        fill(Path(folder), chosen.entries, embedder)
        with closing(open_memory(folder, embedder=embedder)) as memory:
            for strategy in chosen.strategies.split(","):
                bench(memory, strategy, chosen.entries, chosen.max_tokens, chosen.rounds)


if __name__ == "__main__":
    main()
