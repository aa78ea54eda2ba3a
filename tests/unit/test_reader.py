"""A shard answers from its snapshot and its ledger as if they were one, whatever state either is in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import DimensionMismatchError, ModelMismatchError, ShardError
from pipeline.records import Scope, Turn, TurnDeleted
from retrieval.reader import ShardReaders
from retrieval.tail import Tail
from retrieval.trace_search import Nearest, is_among
from tests.fakes import FakeEmbedder
from tests.ledgers import open_ledger, publish_snapshot, remember, turn

SCOPE = Scope("user", "u1")
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


def turns(first: int, stop: int, *, session: str = "s1") -> list[Turn]:
    """Turns of differing words, a second apart."""
    return [
        turn(SCOPE, f"t{i}", f"{WORDS[i % 8]} {WORDS[i // 8 % 8]} number{i}", session=session, at=1.6e9 + i)
        for i in range(first, stop)
    ]


def nearest(readers: ShardReaders, embedder: FakeEmbedder, query: str, k: int, **limits: int) -> Nearest:
    with readers.view(SCOPE, embedder.model_key) as view:
        assert view is not None
        return view.nearest(embedder.embed([query])[0], k, **limits)


def found(readers: ShardReaders, embedder: FakeEmbedder, query: str = "ant", k: int = 10, **limits: int) -> list[str]:
    return [trace.turn_id for trace in nearest(readers, embedder, query, k, **limits).traces]


def forget(*turn_ids: str) -> list[TurnDeleted]:
    return [
        TurnDeleted(scope=SCOPE, session_id="s1", turn_id=t, timestamp_ms=1_600_000_000_000, event_id=f"forget {t}")
        for t in turn_ids
    ]


def test_a_turn_is_found_before_any_snapshot_knows_it(shards, readers, embedder) -> None:
    """Searchable means committed, not indexed."""
    remember(shards, SCOPE, turns(0, 20), embedder)
    result = nearest(readers, embedder, "number7", 1)
    assert [t.turn_id for t in result.traces] == ["t7"]
    assert "no snapshot yet" in result.snapshot_problem


def test_snapshot_and_tail_answer_as_one(shards, readers, embedder) -> None:
    """Where a trace rests must not show in the answer: same ids, same cosines as from the ledger alone."""
    remember(shards, SCOPE, turns(0, 30), embedder)
    remember(shards, SCOPE, turns(30, 50), embedder)
    alone = nearest(readers, embedder, "ant bee number31", 50)
    with closing(ShardReaders(shards)) as fresh:
        publish_snapshot(shards, SCOPE, embedder)
        remember(shards, SCOPE, turns(50, 60), embedder)
        together = nearest(fresh, embedder, "ant bee number31", 60)
    assert together.snapshot_problem == ""
    shared = [(t.turn_id, s) for t, s in zip(together.traces, together.similarities, strict=True)]
    expected = {t.turn_id: s for t, s in zip(alone.traces, alone.similarities, strict=True)}
    assert len(shared) == 60
    for turn_id, similarity in shared:
        if turn_id in expected:
            assert similarity == pytest.approx(expected[turn_id], abs=1e-6)
    assert list(together.similarities) == sorted(together.similarities, reverse=True)


def test_new_commits_and_new_generations_are_noticed_by_an_open_reader(shards, readers, embedder) -> None:
    """No reload call: a bot runs for weeks."""
    remember(shards, SCOPE, turns(0, 5), embedder)
    assert len(found(readers, embedder)) == 5
    remember(shards, SCOPE, turns(5, 8), embedder)
    assert len(found(readers, embedder)) == 8
    publish_snapshot(shards, SCOPE, embedder)
    result = nearest(readers, embedder, "ant", 10)
    assert (len(result.traces), result.snapshot_problem) == (8, "")
    remember(shards, SCOPE, turns(8, 9), embedder)
    publish_snapshot(shards, SCOPE, embedder)
    remember(shards, SCOPE, turns(9, 10), embedder)
    assert sorted(found(readers, embedder, k=20)) == sorted(f"t{i}" for i in range(10))


@pytest.mark.parametrize("in_snapshot", [True, False])
def test_forgotten_turns_never_come_back_and_never_cost_a_hit(shards, readers, embedder, in_snapshot) -> None:
    """The search widens: k live traces are found as long as k exist, though the best 90 are gone."""
    remember(shards, SCOPE, [turn(SCOPE, f"x{i}", "wanted words", at=1.6e9 + i) for i in range(90)], embedder)
    remember(shards, SCOPE, turns(0, 12), embedder)
    if in_snapshot:
        publish_snapshot(shards, SCOPE, embedder)
    assert len(found(readers, embedder, "wanted words", 10)) == 10
    remember(shards, SCOPE, forget(*(f"x{i}" for i in range(90))), embedder)
    hits = found(readers, embedder, "wanted words", 10)
    assert set(hits) <= {f"t{i}" for i in range(12)}
    assert len(hits) == 10
    assert len(found(readers, embedder, "wanted words", 100)) == 12


def test_an_edited_turn_is_found_by_its_new_text_alone(shards, readers, embedder) -> None:
    """The old revision's vector is still in the snapshot; its row is gone."""
    remember(shards, SCOPE, [turn(SCOPE, "e1", "old words", turn_id="t1"), *turns(2, 6)], embedder)
    publish_snapshot(shards, SCOPE, embedder)
    remember(shards, SCOPE, [turn(SCOPE, "e2", "new text", turn_id="t1", revision=1)], embedder)
    result = nearest(readers, embedder, "old words", 10)
    similarity = dict(zip([t.turn_id for t in result.traces], result.similarities, strict=True))
    assert similarity["t1"] == pytest.approx(0, abs=0.01)
    assert found(readers, embedder, "new text", 1) == ["t1"]


@pytest.mark.parametrize("in_snapshot", [True, False])
def test_both_ends_of_a_time_range_filter_inside_the_search(shards, readers, embedder, in_snapshot) -> None:
    """The 40 nearest lie outside the range: filtering afterwards would find nothing."""
    remember(shards, SCOPE, [turn(SCOPE, f"x{i}", "wanted", at=1.5e9 + i) for i in range(40)], embedder)
    remember(shards, SCOPE, turns(0, 10), embedder)
    if in_snapshot:
        publish_snapshot(shards, SCOPE, embedder)
        remember(shards, SCOPE, turns(10, 12), embedder)
    at = 1_600_000_000_000
    assert found(readers, embedder, "wanted", 5, after_ms=at + 3_000, before_ms=at + 5_000) != []
    assert set(found(readers, embedder, "wanted", 5, after_ms=at + 3_000, before_ms=at + 5_000)) == {"t3", "t4", "t5"}
    assert len(found(readers, embedder, "wanted", 100, before_ms=at - 1)) == 40
    assert set(found(readers, embedder, "wanted", 100, after_ms=at + 9_000)) >= {"t9"}
    assert found(readers, embedder, "wanted", 5, after_ms=at + 10**9) == []


@pytest.mark.parametrize("flat_max", [50_000, 100])
def test_a_time_range_follows_commits_edits_and_forgetting(shards, readers, embedder, flat_max) -> None:
    """The times a reader keeps in memory are not the last word: what is forgotten or moved stays out."""
    remember(shards, SCOPE, turns(0, 600), embedder)
    publish_snapshot(shards, SCOPE, embedder, flat_max=flat_max)
    last_five = {"after_ms": 1_600_000_595_000}
    assert sorted(found(readers, embedder, **last_five)) == ["t595", "t596", "t597", "t598", "t599"]
    moved = turn(SCOPE, "moved", "ant", turn_id="t597", revision=1, at=1.5e9)
    remember(shards, SCOPE, [*forget("t596"), moved, *turns(600, 602)], embedder)
    expected = ["t595", "t598", "t599", "t600", "t601"]
    assert sorted(found(readers, embedder, **last_five)) == expected
    publish_snapshot(shards, SCOPE, embedder, flat_max=flat_max)
    assert sorted(found(readers, embedder, **last_five)) == expected
    assert found(readers, embedder, before_ms=1_500_000_000_000) == ["t597"]


@settings(max_examples=60)
@given(st.sets(st.integers(0, 300)), st.sets(st.integers(0, 300)))
def test_membership_is_that_of_sets(ids: set[int], allowed: set[int]) -> None:
    """Both ends of a sorted list, and an empty one, are where a search by halves goes wrong."""
    some = np.array(sorted(ids), dtype=np.int64)
    kept = some[is_among(some, np.array(sorted(allowed), dtype=np.int64))]
    assert set(kept.tolist()) == ids & allowed


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "manifest"])
def test_a_damaged_snapshot_costs_no_answer_and_says_so(shards, readers, embedder, damage) -> None:
    """The ledger is the truth: it answers alone, with the reason."""
    remember(shards, SCOPE, turns(0, 20), embedder)
    path = publish_snapshot(shards, SCOPE, embedder)
    before = found(readers, embedder, "ant bee", 20)
    if damage == "missing":
        path.unlink()
    elif damage == "manifest":
        (path.parent / "traces.manifest.json").write_text("{")
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content if damage == "flip" else content[:-100])
    with closing(ShardReaders(shards)) as fresh:
        result = nearest(fresh, embedder, "ant bee", 20)
    assert [t.turn_id for t in result.traces] == before
    assert result.snapshot_problem.startswith("not used: ")


def test_a_damaged_new_generation_makes_the_open_reader_read_the_ledger_again(shards, readers, embedder) -> None:
    """The tail once began above the old watermark; now it must reach down to the first trace."""
    remember(shards, SCOPE, turns(0, 20), embedder)
    publish_snapshot(shards, SCOPE, embedder)
    remember(shards, SCOPE, turns(20, 24), embedder)
    assert len(found(readers, embedder, k=50)) == 24
    path = publish_snapshot(shards, SCOPE, embedder)
    path.write_bytes(bytes(path.stat().st_size))
    assert len(found(readers, embedder, k=50)) == 24
    publish_snapshot(shards, SCOPE, embedder)
    result = nearest(readers, embedder, "ant", 50)
    assert (len(result.traces), result.snapshot_problem) == (24, "")


def test_a_snapshot_ahead_of_a_restored_ledger_is_not_used(shards, readers, embedder) -> None:
    """After a restore, ids are given out again: the snapshot's id 6 is another trace than the ledger's."""
    remember(shards, SCOPE, turns(0, 5), embedder)
    ledger_path = shards.ledger_path(SCOPE)
    with closing(open_ledger(shards, SCOPE)) as ledger:
        ledger.truncate_wal()
    backup = ledger_path.read_bytes()
    remember(shards, SCOPE, turns(5, 10), embedder)
    publish_snapshot(shards, SCOPE, embedder)
    assert len(found(readers, embedder, k=50)) == 10
    for file in ledger_path.parent.glob("ledger.sqlite*"):
        file.unlink()
    ledger_path.write_bytes(backup)
    result = nearest(readers, embedder, "number7", 50)
    assert len(result.traces) == 5
    assert "ahead of its ledger" in result.snapshot_problem
    remember(shards, SCOPE, [turn(SCOPE, "other", "other words")], embedder)
    assert found(readers, embedder, "other words", 1) == ["other"]


def test_an_approximate_index_does_not_lose_hits(shards, readers, embedder) -> None:
    """An IVF index visits some of its lists; asked for more than they hold, the ledger completes the answer."""
    remember(shards, SCOPE, turns(0, 600), embedder)
    publish_snapshot(shards, SCOPE, embedder, flat_max=100)
    assert len(found(readers, embedder, "ant bee", 600)) == 600


def test_reading_a_missing_scope_makes_nothing(readers, embedder, data_dir) -> None:
    """A typing mistake in a scope must not leave a folder."""
    with readers.view(SCOPE, embedder.model_key) as view:
        assert view is None
    assert list(data_dir.iterdir()) == []


def test_a_removed_and_recreated_scope_is_noticed(shards, readers, embedder) -> None:
    """After a purge the open file is a ghost; what it held must not be found again."""
    remember(shards, SCOPE, turns(0, 5), embedder)
    assert len(found(readers, embedder)) == 5
    for file in shards.folder(SCOPE).iterdir():
        file.unlink()
    with readers.view(SCOPE, embedder.model_key) as view:
        assert view is None
    remember(shards, SCOPE, turns(7, 9), embedder)
    assert sorted(found(readers, embedder)) == ["t7", "t8"]


def test_another_model_is_refused_naming_both(shards, readers, embedder) -> None:
    """Vectors of two models never mix, and the operator learns what to set."""
    remember(shards, SCOPE, turns(0, 2), embedder)
    other = FakeEmbedder(model_key="other@1")
    with pytest.raises(ModelMismatchError, match=r"fake@1/words/64.*other@1.*TURNSTREAM_EMBEDDING__MODEL"):
        found(readers, other)


def test_a_vector_of_another_dimension_is_refused(shards, readers, embedder) -> None:
    """Silently comparing prefixes would answer nonsense."""
    remember(shards, SCOPE, turns(0, 2), embedder)
    with (
        readers.view(SCOPE, embedder.model_key) as view,
        pytest.raises(DimensionMismatchError, match=r"shape \(3,\).*64 numbers"),
    ):
        view.nearest(np.zeros(3, dtype=np.float32), 5)


def test_another_scopes_ledger_is_refused(shards, readers, embedder) -> None:
    """A folder moved by hand must not answer for somebody else."""
    other = Scope("user", "u2")
    remember(shards, other, [turn(other, "secret", "ant")], embedder)
    shards.folder(SCOPE).parent.mkdir(parents=True, exist_ok=True)
    shards.folder(other).rename(shards.folder(SCOPE))
    with pytest.raises(ShardError, match="another scope"):
        found(readers, embedder)


def test_few_shards_stay_open_and_all_can_be_read(shards, embedder) -> None:
    """A platform has more scopes than a process has file descriptors."""
    scopes = [Scope("user", f"u{i}") for i in range(6)]
    for scope in scopes:
        remember(shards, scope, [turn(scope, scope.id, f"only {scope.id}")], embedder)
    with closing(ShardReaders(shards, max_open=2)) as readers:
        for scope in scopes * 2:
            with readers.view(scope, embedder.model_key) as view:
                assert view is not None
                assert [t.turn_id for t in view.nearest(embedder.embed(["only"])[0], 5).traces] == [scope.id]
            assert len(readers._open) <= 2


def test_threads_share_readers_while_the_ledger_grows(shards, readers, embedder) -> None:
    """Eight threads ask while one writes: everyone sees whole answers that only grow."""
    remember(shards, SCOPE, turns(0, 10), embedder)
    stop = threading.Event()

    def ask(_: int) -> list[int]:
        counts = []
        while not stop.is_set():
            counts.append(len(found(readers, embedder, k=1000)))
        return counts

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, n) for n in range(8)]
        for first in range(10, 50, 10):
            remember(shards, SCOPE, turns(first, first + 10), embedder)
            if first == 30:
                publish_snapshot(shards, SCOPE, embedder)
        stop.set()
        counts = [future.result() for future in asking]
    assert all(list(seen) == sorted(seen) and set(seen) <= {10, 20, 30, 40, 50} for seen in counts)
    assert len(found(readers, embedder, k=1000)) == 50


def test_neighbours_come_in_session_order_whatever_the_arrival(shards, readers, embedder) -> None:
    """Turns of one second are ordered by index; another session's turns are no neighbours."""
    arrived = [
        turn(SCOPE, "c", "third", at=100, index=2),
        turn(SCOPE, "a", "first", at=100, index=0),
        turn(SCOPE, "d", "fourth", at=101, index=0),
        turn(SCOPE, "b", "second", at=100, index=1),
        turn(SCOPE, "z", "elsewhere", at=100, index=1, session="s2"),
    ]
    remember(shards, SCOPE, arrived, embedder)
    with readers.view(SCOPE, embedder.model_key) as view:
        assert view is not None
        offsets = {t.turn_id: t.turn_offset for t in view.nearest(embedder.embed(["third"])[0], 5).traces}
        around = view.neighbours(list(offsets.values()), 2)
    sides = {t: tuple([row.turn_id for row in side] for side in around[offset]) for t, offset in offsets.items()}
    assert sides == {
        "a": ([], ["b", "c"]),
        "b": (["a"], ["c", "d"]),
        "c": (["a", "b"], ["d"]),
        "d": (["b", "c"], []),
        "z": ([], []),
    }


def test_reading_changes_no_byte_of_the_ledger(shards, readers, embedder) -> None:
    """A retrieve has no side effects on stored memory."""
    remember(shards, SCOPE, turns(0, 5), embedder)
    with closing(open_ledger(shards, SCOPE)) as ledger:
        ledger.truncate_wal()
    path = shards.ledger_path(SCOPE)
    before = path.read_bytes()
    found(readers, embedder)
    assert path.read_bytes() == before
    assert (path.parent / "ledger.sqlite-wal").stat().st_size == 0


blocks = st.lists(st.integers(0, 70), max_size=6)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(blocks, st.integers(0, 400))
def test_a_tail_grows_without_moving_what_others_hold(sizes: list[int], watermark: int) -> None:
    """Threads search old tails while newer ones share their buffers."""
    tails, last = [Tail(2)], 0
    for size in sizes:
        ids = np.arange(last + 1, last + 1 + size)
        tails.append(tails[-1].extended(ids, np.stack([ids, -ids], axis=1).astype(np.float32)))
        last += size
    for n, tail in enumerate(tails):
        expected = np.arange(1, 1 + sum(sizes[:n]))
        assert (tail.ids == expected).all()
        assert (tail.vectors == np.stack([expected, -expected], axis=1)).all()
    rest = tails[-1].above(watermark)
    assert (rest.ids == np.arange(watermark + 1, last + 1)).all()
    assert (rest.vectors[:, 0] == rest.ids).all()
