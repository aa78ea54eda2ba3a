"""A long backfill through the command line: whether it slows down, or anybody's memory grows, as it goes on."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pipeline_run import Running, pipeline, report, sentences

from pipeline.ledger.connection import connect
from pipeline.records import Scope
from pipeline.shards import Shards

SCOPE = Scope("user", "years-of-chat")
TURNS_PER_SESSION = 20
T0 = 1_700_000_000
_EVERY_S = 0.1


@dataclass
class Watch:
    """What was seen while the backfill ran: searchable turns by time, resident bytes by process and time."""

    searchable: list[tuple[float, int]] = field(default_factory=list)
    resident: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    published_s: float = 0.0
    backfill_cpu_s: float = 0.0

    def time_of(self, n: int) -> float:
        """Give when the n-th turn became searchable, between two looks in proportion."""
        before = (0.0, 0)
        for at, count in self.searchable:
            if count >= n:
                return before[0] + (at - before[0]) * (n - before[1]) / max(count - before[1], 1)
            before = (at, count)
        raise AssertionError(f"only {before[1]} turns were seen")

    def resident_at(self, n: int) -> dict[str, int]:
        """Give the resident megabytes of each process when n turns were searchable."""
        return next(by_name for count, by_name in self.resident if count >= n)


def bench(n_turns: int, models_dir: Path) -> None:
    """Backfill one file of closed sessions into one scope."""
    with tempfile.TemporaryDirectory(prefix="turnstream-bench-") as folder:
        transcript = Path(folder) / "transcript.jsonl"
        _write(transcript, n_turns)
        with pipeline(backend="hashing", models_dir=models_dir) as running:
            cpu_before = running.cpu_s()
            watch = _backfill(running, transcript, n_turns)
            cpu_s = {name: round(used - cpu_before.get(name, 0), 1) for name, used in running.cpu_s().items()}
            started = time.perf_counter()
            running.wait_quiet()
            until_summarised_s = watch.searchable[-1][0] + time.perf_counter() - started
    tenth = n_turns // 10
    rates = [tenth / (watch.time_of((i + 1) * tenth) - watch.time_of(i * tenth + 1)) for i in range(10)]
    report(
        "backfill",
        n_turns=n_turns,
        seconds=round(watch.time_of(n_turns), 1),
        published_s=round(watch.published_s, 1),
        until_summarised_s=round(until_summarised_s, 1),
        turns_per_s=round(n_turns / watch.time_of(n_turns)),
        turns_per_s_by_tenth=[round(rate) for rate in rates],
        last_to_first_tenth=round(rates[-1] / rates[0], 3),
        resident_mb_at_10_percent=watch.resident_at(tenth),
        resident_mb_at_50_percent=watch.resident_at(5 * tenth),
        resident_mb_at_end=watch.resident[-1][1],
        cpu_s={**cpu_s, "backfill": round(watch.backfill_cpu_s, 1)},
        load=os.getloadavg()[0],
    )


def _backfill(running: Running, transcript: Path, n_turns: int) -> Watch:
    command = [sys.executable, "-m", "workers.cli", "backfill", str(transcript), "--format", "openai"]
    watch, started = Watch(), time.perf_counter()
    child = subprocess.Popen([*command, "--scope", SCOPE.key], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    ledger = Shards(running.settings.data_dir).ledger_path(SCOPE)
    deadline = time.monotonic() + 170
    while not watch.searchable or watch.searchable[-1][1] < n_turns:
        assert time.monotonic() < deadline, watch.searchable[-1]
        n_searchable = _n_traces(ledger)
        watch.searchable.append((time.perf_counter() - started, n_searchable))
        watch.resident.append((n_searchable, _resident(running, child)))
        if child.poll() is None:
            watch.published_s = time.perf_counter() - started
            watch.backfill_cpu_s = sum(psutil.Process(child.pid).cpu_times()[:2])
        time.sleep(_EVERY_S)
    assert child.wait() == 0
    return watch


def _n_traces(ledger: Path) -> int:
    """Count the searchable turns; every one of them has one trace, and none is forgotten."""
    if not ledger.exists():
        return 0
    with closing(connect(ledger, query_only=True)) as connection:
        return int(connection.execute("SELECT ifnull(max(trace_id), 0) FROM traces").fetchone()[0])


def _resident(running: Running, child: subprocess.Popen[bytes]) -> dict[str, int]:
    """Give the resident megabytes of the pipeline's processes, and of the backfill while there is one."""
    found = {}
    own = [psutil.Process(child.pid)] if child.poll() is None else []
    for process in [*psutil.Process(running.process.pid).children(), *own]:
        try:
            line, used = " ".join(process.cmdline()), process.memory_info().rss >> 20
        except psutil.NoSuchProcess:
            continue
        name = next((n for n in ("backfill", "ingester", "worker-0", "worker-1", "valkey") if n in line), "ended")
        found[name] = used
    return found


def _write(path: Path, n_turns: int) -> None:
    texts = sentences(n_turns)
    with path.open("w") as file:
        for number in range(n_turns // TURNS_PER_SESSION):
            messages = [
                {"role": "user" if place % 2 == 0 else "assistant", "content": next(texts)}
                for place in range(TURNS_PER_SESSION)
            ]
            session = {"session_id": f"s{number}", "created_at": T0 + 3_600 * number, "messages": messages}
            file.write(json.dumps(session) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models-dir", type=Path, default=Path(".pytest_cache/d/models"))
    parser.add_argument("--turns", type=int, default=100_000)
    chosen = parser.parse_args()
    bench(chosen.turns, chosen.models_dir)


if __name__ == "__main__":
    main()
