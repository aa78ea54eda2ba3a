"""Many processes at one scope: every write counts once, and readers never see a snapshot half replaced."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.synchronize import Event as Signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import TurnstreamError
from pipeline.ledger import Ledger, LedgerPool, disk, events, upkeep, work
from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from pipeline.snapshot import SnapshotStore
from retrieval.reader import ShardReaders
from tests.crash.in_process import InProcess, settings_of
from workers.checkup import verify_data

SCOPE = Scope("user", "u1")
N_PROCESSES, N_WRITERS = 4, 400
PER_WRITER = 3
"""Turns of each writer; the last is one that every process writes."""
N_PUBLICATIONS = 200
N_RACES = 1_000
SPAWN = multiprocessing.get_context("spawn")


def numbered(number: int, name: str) -> Turn:
    return Turn(
        scope=SCOPE, session_id=f"s{number % 40}", role="user", content=f"{name} word{number % 50} other{number % 7}",
        timestamp=1.6e9 + number, event_id=name,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[InProcess]:
    settings = settings_of(tmp_path / "data", summary={"idle_s": 1e6}, index={"min_tail": 1, "growth": 0.0})
    with InProcess(settings) as running:
        yield running


def write_all(data_dir: Path, process: int) -> dict[str, int]:
    """Be 400 writers, each with a connection of its own; give what became of their events."""
    outcomes = Counter[str]()
    counting = threading.Lock()

    def write(writer: int) -> None:
        own = [numbered(writer, f"p{process}-w{writer}-{n}") for n in range(PER_WRITER - 1)]
        with closing(LedgerPool(Shards(data_dir), max_open=1, busy_timeout_ms=120_000, is_flushed=True)) as ledgers:
            ledger = ledgers.open(SCOPE)
            done = events.apply(ledger, [*own, numbered(writer, f"shared-{writer}")], now_ms=1)
            disk.flush([ledger])
        with counting:
            outcomes.update(done)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(N_WRITERS)))
    return dict(outcomes)


@pytest.mark.timeout(240)
def test_every_write_of_four_times_four_hundred_writers_counts_once(run: InProcess, row) -> None:
    """They begin with no file at all: whoever comes first makes it, nobody may make it twice."""
    name = f"{N_PROCESSES} processes with {N_WRITERS} writers each on one scope"
    row.expect(name)
    with SPAWN.Pool(N_PROCESSES) as processes:
        done = processes.starmap(write_all, [(run.settings.data_dir, n) for n in range(N_PROCESSES)])
    outcomes = sum(map(Counter, done), Counter[str]())
    n_own, n_shared = N_PROCESSES * N_WRITERS * (PER_WRITER - 1), N_WRITERS
    assert outcomes == {"applied": n_own + n_shared, "duplicate": (N_PROCESSES - 1) * N_WRITERS}
    run.flow.registry.mark([SCOPE.key], now_ms=1)
    run.finish()
    with closing(Ledger.open(Shards(run.settings.data_dir).ledger_path(SCOPE), SCOPE)) as ledger:
        counts = upkeep.status(ledger, idle_ms=10**12, settle_ms=0).counts
    assert (counts.turns, counts.searchable, counts.traces) == (n_own + n_shared,) * 3
    assert verify_data(run.settings) == []
    row(name, n=N_PROCESSES * N_WRITERS, outcome=f"{n_own + n_shared} turns, each once")


def read_until(data_dir: Path, queries: list[tuple[Any, str]], model_key: str, reports: Any, enough: Signal) -> None:
    """Ask again and again; report how often, and every answer that is not right."""
    n_asked, wrong = 0, []
    with closing(ShardReaders(Shards(data_dir))) as readers:
        while not enough.wait(0.005):
            vector, expected = queries[n_asked % len(queries)]
            n_asked += 1
            try:
                with readers.view(SCOPE, model_key) as view:
                    found = view.nearest(np.asarray(vector, np.float32), 5) if view else None
                    texts = view.contents([t.turn_offset for t in found.traces]) if view and found else {}
            except (TurnstreamError, OSError, RuntimeError) as error:
                wrong.append(repr(error))
                continue
            first = texts[found.traces[0].turn_offset] if found and found.traces else ""
            if len(texts) != 5 or first != expected or (found and found.snapshot_problem):
                wrong.append(f"{first!r} for {expected!r}: {found and found.snapshot_problem}")
    reports.put(json.dumps([n_asked, wrong[:5]]))


@pytest.mark.timeout(240)
def test_readers_never_err_while_snapshots_are_published(run: InProcess, row, long: int) -> None:
    """Each publication replaces the manifest and takes away the file that a reader may be opening."""
    name = "snapshots published while 4 processes read"
    row.expect(name)
    run.publish(*(numbered(n, f"first{n}") for n in range(300)))
    run.finish()
    embedder, store = run.flow.embedder, SnapshotStore(Shards(run.settings.data_dir).folder(SCOPE))
    texts = [numbered(n, f"first{n}").content for n in range(0, 300, 37)]
    queries = [(vector.tolist(), text) for vector, text in zip(embedder.embed(texts), texts, strict=True)]
    reports, enough = SPAWN.Queue(), SPAWN.Event()
    arguments = (run.settings.data_dir, queries, embedder.model_key, reports, enough)
    readers = [SPAWN.Process(target=read_until, args=arguments) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        n_published = 0
        while n_published < N_PUBLICATIONS * long:
            run.publish(numbered(n_published, f"later{n_published}"))
            run.embed()
            before = store.generation("traces")
            run.flow.publish_snapshots([SCOPE.key])
            n_published += store.generation("traces") == before + 1
    finally:
        enough.set()
        found = [json.loads(reports.get(timeout=60)) for _ in readers]
        for reader in readers:
            reader.join(60)
    n_asked, wrong = sum(n for n, _ in found), [problem for _, problems in found for problem in problems]
    assert wrong == []
    assert all(n > 10 for n, _ in found)
    row(name, n=n_published, outcome=f"0 errors, 0 wrong answers of {n_asked}")


@pytest.mark.timeout(240)
def test_two_workers_given_the_same_event_at_once_do_it_once(run: InProcess, row) -> None:
    """Redelivery while the first is still at it: one turn, one set of chunks, one of the two was told so."""
    name = "one event given to two workers at once"
    row.expect(name)
    path = LedgerPool(Shards(run.settings.data_dir), max_open=1).open(SCOPE).path
    together = threading.Barrier(2)

    def be_worker(worker: str) -> Counter[str]:
        outcomes = Counter[str]()
        with closing(Ledger.open(path, SCOPE)) as ledger:
            for number in range(N_RACES):
                together.wait(60)
                outcomes.update(events.apply(ledger, [numbered(number, f"e{number}")], now_ms=1))
                outcomes["searchable"] += make_searchable(run, ledger, worker)
        return outcomes

    with ThreadPoolExecutor(2) as threads:
        outcomes = sum(threads.map(be_worker, ["w1", "w2"]), Counter[str]())
    assert outcomes == {"applied": N_RACES, "duplicate": N_RACES, "searchable": N_RACES}
    run.flow.registry.mark([SCOPE.key], now_ms=1)
    run.finish()
    assert verify_data(run.settings) == []
    row(name, n=N_RACES, outcome="1 turn, 1 set of chunks each")


def make_searchable(run: InProcess, ledger: Ledger, worker: str) -> int:
    """Claim what there is and commit it; give how many turns this worker made searchable."""
    embedder, chunker = run.flow.embedder, run.flow.chunker
    claimed = work.claim(
        ledger, worker, limit=9, max_attempts=3, is_alive=lambda _: True, model_key=embedder.model_key
    )
    done = []
    for turn in claimed:
        chunks = chunker.chunk(turn.content)
        vectors = embedder.embed([chunk.text for chunk in chunks])
        traces = [work.NewTrace(c, v, 0.3, 1e7, 0.0, 0.8) for c, v in zip(chunks, vectors, strict=True)]
        done.append(work.TurnWork(turn, turn.content, traces))
    return work.commit(ledger, worker, done, model_key=embedder.model_key, dimension=embedder.dimension)
