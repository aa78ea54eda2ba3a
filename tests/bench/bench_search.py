"""Session search in a scope of 5 000 sessions of 40 turns, and the same messages in PraisonAI's two stores.

Every query's order is compared with a scan of the same rows. PraisonAI comes from PyPI, into a temporary folder,
without its dependencies; its time is stated for as many sessions as it was given. Times are the wall's, and the
processor's beside them, because a busy machine stretches the first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline_run import WORDS, report

from pipeline import log
from pipeline.ledger import events
from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from retrieval import Memory, open_memory
from tests.ledgers import open_ledger
from tests.scan import read_sessions, scan

SCOPE = Scope("user", "bench")
TURNS_EACH = 40
FIRST_S = 1_600_000_000
QUERIES = (
    *("museum", "Lisbon", "deploy", "the", "i", "e", "ing", "2021", "zzzz", "C++", "50%", "foo_bar", "user@host"),
    *("/etc/hosts", "weekend dog", "where did david move to", "what did the dog want in lisbon", '"budget"', "AND"),
    *(
        "NEAR(dog cat)",
        "*",
        "...",
        "straße",
        "日本",
        "京都",
        "🙂",
        "museum oslo piano",
        "bought a camera",
        "w4999",
        "w12",
    ),
)
ODD = (
    "C++ and 50% of foo_bar.",
    "user@host:/etc/hosts",
    "STRASSE, Straße",
    "我们去京都",
    "日本語の本",
    "🙂 fine",
    '"quoted" AND *',
)
_CHILD = """
import sys, time
from retrieval import open_memory
memory = open_memory(sys.argv[1])
started = time.perf_counter()
memory.search(sys.argv[2], "user/bench", profile="keyword")
print(1000 * (time.perf_counter() - started))
"""


def texts(n: int) -> Iterator[str]:
    """Make messages: common words, a long tail of rare ones, and now and then what is hard to find."""
    chance = random.Random(7)
    rare = [f"w{number}" for number in range(20_000)]
    weights = [1 / (rank + 2) for rank in range(len(rare))]
    some_rare = chance.choices(rare, weights, k=3 * n)
    for number in range(n):
        words = chance.choices(WORDS, k=chance.randint(6, 30)) + some_rare[3 * number : 3 * number + 3]
        if chance.random() < 0.02:
            words.append(chance.choice(ODD))
        yield " ".join(words).capitalize() + "."


def turns(n_sessions: int) -> Iterator[Turn]:
    """Make sessions, one after the other, with pauses as people make them."""
    chance = random.Random(3)
    at_s = float(FIRST_S)
    for number, text in enumerate(texts(n_sessions * TURNS_EACH)):
        at_s += chance.uniform(3, 200)
        yield Turn(
            scope=SCOPE,
            session_id=f"s{number // TURNS_EACH}",
            role=("user", "assistant")[number % 2],
            content=text,
            timestamp=at_s,
            event_id=f"e{number}",
        )


def fill(data_dir: Path, published: list[Turn]) -> float:
    """Ingest, 2 000 at a time; give turns per second."""
    started = time.perf_counter()
    with closing(open_ledger(Shards(data_dir), SCOPE)) as ledger:
        for start in range(0, len(published), 2_000):
            events.apply(ledger, published[start : start + 2_000], now_ms=0)
    return len(published) / (time.perf_counter() - started)


def bench(data_dir: Path, n_sessions: int) -> dict[str, Any]:
    """Measure everything on one filled scope."""
    published = list(turns(n_sessions))
    per_second = fill(data_dir, published)
    shards = Shards(data_dir)
    with closing(open_memory(data_dir)) as memory:
        first_ms = [_first_query_ms(data_dir, query) for query in ("museum", "weekend dog", "京都")]
        memory.search("warm", SCOPE, profile="keyword")
        took = [
            _took(lambda q=query: memory.search(q, SCOPE, profile="keyword")) for _ in range(5) for query in QUERIES
        ]
        times, cpu = [wall for wall, _ in took], [used for _, used in took]
        figures = {
            "first_query_fresh_process_ms": round(max(first_ms), 1),
            "keyword_p50_ms": round(statistics.median(times), 2),
            "keyword_p95_ms": round(sorted(times)[int(len(times) * 0.95)], 2),
            "keyword_cpu_p50_ms": round(statistics.median(cpu), 2),
            "keyword_cpu_p95_ms": round(sorted(cpu)[int(len(cpu) * 0.95)], 2),
            "browse_ms": round(_median_ms(lambda: memory.recent(SCOPE)), 3),
            "scroll_ms": round(_median_ms(lambda: memory.window("s77", SCOPE, "20")), 3),
            "best_words_p50_ms": round(_median_ms(lambda: memory.search("where did david move to", SCOPE)), 2),
            "same_as_scan": f"{_n_same(memory, shards)}/{len(QUERIES)}",
        }
    return {
        "n_turns": len(published),
        "ingested_per_s": round(per_second),
        "ledger_mb": round(shards.ledger_path(SCOPE).stat().st_size / 1e6),
        **figures,
        **_appending(data_dir, published[-1]),
    }


def _n_same(memory: Memory, shards: Shards) -> int:
    sessions, n_same = read_sessions(shards, SCOPE), 0
    for query in QUERIES:
        hits = [(hit.session_id, hit.score) for hit in memory.search(query, SCOPE, limit=50, profile="keyword")]
        n_same += hits == [(found.session_id, found.score) for found in scan(sessions, query)][:50]
    return n_same


def _appending(data_dir: Path, last: Turn) -> dict[str, float]:
    """Compare one append, flush apart, in the full scope and in an empty one, taking turns."""
    costs: dict[str, list[float]] = {"full": [], "empty": []}
    empty = data_dir / "empty"
    empty.mkdir(mode=0o700)
    with (
        closing(open_ledger(Shards(data_dir), SCOPE)) as full,
        closing(open_ledger(Shards(empty), SCOPE)) as fresh,
    ):
        for number in range(4_500):
            said = Turn(
                scope=SCOPE,
                session_id=f"n{number // TURNS_EACH}",
                role="user",
                content=last.content,
                timestamp=last.timestamp_ms / 1000 + 60 * number,
                event_id=f"n{number}",
            )
            for name, ledger in (("full", full), ("empty", fresh)):
                costs[name].append(_ms(lambda ledger=ledger, said=said: events.apply(ledger, [said], now_ms=0)))
    p50 = {name: statistics.median(values) for name, values in costs.items()}
    mean = {name: statistics.fmean(values) for name, values in costs.items()}
    return {
        "append_p50_ms": round(p50["full"], 3),
        "append_ratio_p50": round(p50["full"] / p50["empty"], 3),
        "append_ratio_mean": round(mean["full"] / mean["empty"], 3),
    }


def _first_query_ms(data_dir: Path, query: str) -> float:
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(data_dir), query], check=True, capture_output=True, text=True
    )
    return float(child.stdout)


def _took(call: Callable[[], Any]) -> tuple[float, float]:
    """Give the milliseconds a call takes by the clock, and of the processor."""
    started, used = time.perf_counter(), time.process_time()
    call()
    return 1000 * (time.perf_counter() - started), 1000 * (time.process_time() - used)


def _ms(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def _median_ms(call: Callable[[], Any], n: int = 50) -> float:
    return statistics.median(_ms(call) for _ in range(n))


_THEIRS = """
import json, statistics, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
folder, queries = Path(sys.argv[2]), json.loads(sys.argv[3])
from praisonaiagents.session.store import DefaultSessionStore
from praisonaiagents.session.sqlite_store import SqliteSessionStore
figures = {}
for name, make in (("scan", DefaultSessionStore), ("fts", SqliteSessionStore)):
    started = time.perf_counter()
    store = make(session_dir=str(folder))
    store.search(queries[0])
    first = time.perf_counter() - started
    times, found = [], {}
    for query in queries:
        started = time.perf_counter()
        found[query] = [hit.session_id for hit in store.search(query)]
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    store.recent()
    browse = time.perf_counter() - started
    started = time.perf_counter()
    store.add_message("appended", "user", "one more message")
    append = time.perf_counter() - started
    figures[name] = {"first_ms": first, "p50_ms": statistics.median(times), "browse_ms": browse, "append_ms": append}
    figures[name] = {key: round(1000 * value, 2) for key, value in figures[name].items()}
    figures[name]["found_nothing"] = sum(not some for some in found.values())
print(json.dumps(figures))
"""


def theirs(n_sessions: int) -> dict[str, Any]:
    """Measure PraisonAI's stores on the first sessions, or tell why not."""
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as name:
        packages, sessions = Path(name, "packages"), Path(name, "sessions")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
        installed = subprocess.run([*pip, "praisonaiagents"], capture_output=True, text=True, check=False)
        if installed.returncode:
            return {"skipped": f"praisonaiagents cannot be installed: {installed.stderr.strip()[-200:]}"}
        sessions.mkdir()
        by_session: dict[str, list[dict[str, Any]]] = {}
        for turn in turns(n_sessions):
            message = {"role": turn.role, "content": turn.content, "timestamp": turn.timestamp_ms / 1000}
            by_session.setdefault(turn.session_id, []).append(message)
        for session_id, messages in by_session.items():
            whole = {"session_id": session_id, "messages": messages, "updated_at": "2026-01-01T00:00:00"}
            Path(sessions, f"{session_id}.json").write_text(json.dumps(whole))
        given = [str(packages), str(sessions), json.dumps(QUERIES)]
        child = subprocess.run([sys.executable, "-c", _THEIRS, *given], capture_output=True, text=True, check=False)
        if child.returncode:
            return {"skipped": f"praisonaiagents does not run here: {child.stderr.strip()[-300:]}"}
        return {"n_sessions": n_sessions, **json.loads(child.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=5_000)
    parser.add_argument("--their-sessions", type=int, default=5_000)
    chosen = parser.parse_args()
    log.configure("warning", "console")
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        ours = bench(Path(folder), chosen.sessions)
    report("session_search", load=os.getloadavg()[0], **ours)
    others = theirs(chosen.their_sessions) if chosen.their_sessions else {"skipped": "not asked for"}
    report("session_search_praisonai", load=os.getloadavg()[0], **others)
    for name in ("scan", "fts"):
        if name in others:
            times = others[name]["p50_ms"] / ours["keyword_p50_ms"]
            first = others[name]["first_ms"] / ours["first_query_fresh_process_ms"]
            report("session_search_ratio", store=name, p50=round(times, 1), first_query=round(first, 1))


if __name__ == "__main__":
    main()
