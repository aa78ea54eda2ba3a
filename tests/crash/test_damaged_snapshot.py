"""Snapshots damaged in every way: a reader's answers stay right, and the workers build them anew."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pipeline.ledger import Ledger
from pipeline.ledger.reads import vectors_above
from pipeline.records import Scope, Turn, TurnDeleted
from pipeline.shards import Shards
from retrieval.reader import ShardReaders
from tests.crash.in_process import InProcess, settings_of
from workers.checkup import repair, verify_data

SEED = 20_260_303
N_DAMAGES = 300
REBUILT_WITHIN_S = 5.0
SCOPE, OTHER = Scope("user", "u1"), Scope("user", "u2")
WORDS = [f"{first}{second}" for first in ("ant", "bee", "cat", "dog") for second in ("hill", "line", "ward", "fold")]
INDEX, MANIFEST = "traces.{}.faiss", "traces.manifest.json"


def said(scope: Scope, first: int, stop: int, chance: random.Random) -> list[Turn]:
    """Turns of a few words each."""
    return [
        Turn(
            scope=scope,
            session_id="s",
            role="user",
            content=" ".join([*chance.choices(WORDS, k=5), f"number{number}"]),
            timestamp=1.6e9 + number,
            event_id=f"e{number}",
            index=number,
        )
        for number in range(first, stop)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """Two scopes with a first generation kept aside, some turns forgotten since, and a second one served."""
    chance = random.Random(SEED)
    settings = settings_of(tmp_path_factory.mktemp("data"), index={"min_tail": 20, "growth": 0.05})
    with InProcess(settings) as running:
        for scope in (SCOPE, OTHER):
            running.publish(*said(scope, 0, 160, chance))
            running.finish()
        shutil.copytree(folder_of(running), folder_of(running).with_name("kept"))
        running.publish(*said(SCOPE, 160, 200, chance), *(forgotten(n) for n in range(0, 60, 3)))
        running.finish()
        running.publish(*said(SCOPE, 200, 210, chance))  # the ledger alone knows these
        running.embed()
        yield running


def forgotten(number: int) -> TurnDeleted:
    return TurnDeleted(scope=SCOPE, session_id="s", turn_id=f"e{number}", timestamp_ms=0, event_id=f"d{number}")


def folder_of(run: InProcess, scope: Scope = SCOPE) -> Path:
    return Shards(run.settings.data_dir).folder(scope)


class Asked:
    """Queries with what exact search over the ledger says to them."""

    def __init__(self, run: InProcess, chance: random.Random) -> None:
        self._model_key = run.flow.embedder.model_key
        with closing(Ledger.open(folder_of(run) / "ledger.sqlite", SCOPE)) as ledger, ledger.read() as db:
            ids, vectors = vectors_above(db, 0, run.flow.embedder.dimension)
        texts = [" ".join(chance.choices(WORDS, k=3)) for _ in range(3)]
        self.queries = run.flow.embedder.embed(texts)
        self._scores = [dict(zip(ids.tolist(), (vectors @ query).tolist(), strict=True)) for query in self.queries]

    def problem(self, readers: ShardReaders, k: int = 10) -> str:
        """Assert that a reader answers right; give what it says of its snapshot."""
        for query, scores in zip(self.queries, self._scores, strict=True):
            with readers.view(SCOPE, self._model_key) as view:
                assert view is not None
                found = view.nearest(query, k)
            ids = [trace.trace_id for trace in found.traces]
            assert len(set(ids)) == len(ids) == k
            assert np.allclose(found.similarities, sorted(scores.values(), reverse=True)[:k], atol=1e-5)
            assert np.allclose(found.similarities, [scores[i] for i in ids], atol=1e-5)
        return found.snapshot_problem


def write(path: Path, content: bytes, chance: random.Random) -> None:
    """Change a file as a bad disk or a careless copy does: in its place, or by a new one."""
    if chance.random() < 0.5:
        path.write_bytes(content)
    else:
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").replace(path)


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    write(path, bytes(content), chance)


def cut(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.5:
        os.truncate(path, chance.randrange(path.stat().st_size))
    else:
        write(path, path.read_bytes()[: chance.randrange(path.stat().st_size)], chance)


Damage = Callable[[Path, Path, Path, random.Random], object]
"""Gets the index, the manifest, another scope's folder and the first generation's."""


def _swapped(index: Path, manifest: Path, other: Path, chance: random.Random) -> None:
    (their_index,) = other.glob("traces.*.faiss")
    whole = chance.random() < 0.5
    write(index, their_index.read_bytes(), chance)
    if whole:
        write(manifest, (other / MANIFEST).read_bytes(), chance)


def _stale(index: Path, manifest: Path, kept: Path, chance: random.Random) -> None:
    (old,) = kept.glob("traces.*.faiss")
    if chance.random() < 0.5:
        index.unlink()
    shutil.copy(old, index.with_name(old.name))
    write(manifest, (kept / MANIFEST).read_bytes(), chance)


DAMAGES: dict[str, Damage] = {
    "flipped": lambda index, _m, _o, chance: flip(index, chance),
    "cut": lambda index, _m, _o, chance: cut(index, chance),
    "zeros": lambda index, _m, _o, chance: write(index, bytes(4_096), chance),
    "missing": lambda index, _m, _o, _c: index.unlink(),
    "manifest missing": lambda _i, manifest, _o, _c: manifest.unlink(),
    "manifest flipped": lambda _i, manifest, _o, chance: flip(manifest, chance),
    "manifest cut": lambda _i, manifest, _o, chance: cut(manifest, chance),
    "swapped": _swapped,
    "stale": _stale,
}


NOT_WRONG = {"stale", "manifest missing"}
"""The ledger knows more than such a snapshot, as it always does."""


@pytest.mark.timeout(300)
def test_no_damage_to_a_snapshot_changes_an_answer(run: InProcess, row, long: int) -> None:
    """A wrong neighbour looks like any other hit: nobody would ever notice."""
    name = "snapshot flipped, cut, swapped, stale, missing, zeros; its manifest too"
    row.expect(name)
    chance, slowest = random.Random(SEED), 0.0
    asked = Asked(run, chance)
    folder, kept = folder_of(run), folder_of(run).with_name("kept")
    with closing(ShardReaders(Shards(run.settings.data_dir))) as before:
        for number in range(N_DAMAGES * long):
            what = list(DAMAGES)[number % len(DAMAGES)]
            (index,) = folder.glob("traces.*.faiss")
            DAMAGES[what](index, folder / MANIFEST, kept if what == "stale" else folder_of(run, OTHER), chance)
            asked.problem(before)
            with closing(ShardReaders(Shards(run.settings.data_dir))) as after:
                asked.problem(after)
            findings = verify_data(run.settings, scopes=[SCOPE])
            assert findings or what in NOT_WRONG, what
            started = time.monotonic()
            if findings:
                repair(run.settings, scopes=[SCOPE])
            run.finish()
            slowest = max(slowest, time.monotonic() - started)
            assert asked.problem(before) == "", what
            assert number % 10 or verify_data(run.settings, scopes=[SCOPE]) == [], what
    assert slowest <= REBUILT_WITHIN_S
    row(name, n=N_DAMAGES * long, outcome=f"0 wrong answers, rebuilt in {slowest:.2f} s at most")
