from __future__ import annotations

import faiss
import numpy as np
import pytest

from pipeline import index
from pipeline.errors import DimensionMismatchError

D = 32


def unit_vectors(n, *, seed=0, n_clusters=40) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_clusters, D))
    rows = centres[rng.integers(0, n_clusters, n)] + 0.5 * rng.standard_normal((n, D))
    return as_kept(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def as_kept(vectors) -> np.ndarray:
    """Round as the ledger does."""
    return vectors.astype(np.float16).astype(np.float32)


def nearest(ids, vectors, queries, k) -> np.ndarray:
    return ids[np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :k]]


@pytest.mark.parametrize(
    ("n_tail", "n_snapshot", "due"),
    [(0, 0, False), (127, 0, False), (128, 0, True), (249, 1_000, False), (250, 1_000, True), (128, 513, False)],
)
def test_a_snapshot_is_due_when_the_tail_outgrows_it(n_tail, n_snapshot, due) -> None:
    """Publishing at every turn would cost more than it saves; never publishing makes queries slow."""
    assert index.is_due(n_tail, n_snapshot, min_tail=128, growth=0.25) is due


def test_a_forced_snapshot_is_due_without_a_tail() -> None:
    """After a deletion the old file still holds what was forgotten, however short the tail."""
    assert index.is_due(0, 1_000, min_tail=128, growth=0.25, forced=True)


def test_an_empty_tail_is_never_due_by_itself() -> None:
    """Bounds of zero must not make every sweep rebuild."""
    assert not index.is_due(0, 0, min_tail=0, growth=0.0)


@pytest.mark.parametrize(
    ("n", "spec"),
    [(0, "Flat"), (50_000, "Flat"), (50_001, "IVF512,SQ8"), (500_000, "IVF1024,SQ8"), (100_000_000, "IVF4096,SQ8")],
)
def test_exact_up_to_the_bound_approximate_above(n, spec) -> None:
    """One policy in one place: what operators read in the runbook is what is built."""
    assert index.choose_index(n, 384, 50_000) == spec


def test_an_exact_index_takes_two_bytes_a_number_and_loses_nothing() -> None:
    """The ledger keeps no more than float16: four bytes would be disk and time for nothing."""
    vectors = unit_vectors(500)
    built = index.build(np.arange(500), vectors, flat_max=1_000, min_recall=0.97)
    assert (built.index.reconstruct_n(0, 500) == vectors).all()
    assert len(faiss.serialize_index(built)) < 500 * (2 * D + 8) + 200


@pytest.mark.parametrize("n_blocks", [1, 7])
def test_flat_returns_the_given_ids_in_order_of_similarity(n_blocks) -> None:
    """A position instead of a trace id would point at somebody's other sentence."""
    vectors, ids = unit_vectors(500), np.arange(500, dtype=np.int64) * 3 + 10
    blocks = zip(np.array_split(ids, n_blocks), np.array_split(vectors, n_blocks), strict=True)
    built = index.build_from_blocks(blocks, D, flat_max=1_000, min_recall=0.97)
    queries = unit_vectors(20, seed=1)
    assert (built.search(queries, 10)[1] == nearest(ids, vectors, queries, 10)).all()


def test_ivf_above_the_bound_finds_enough() -> None:
    """The speed is only worth having while the neighbours are the right ones."""
    vectors, ids = unit_vectors(6_000), np.arange(6_000, dtype=np.int64) * 7 + 1
    built = index.build(ids, vectors, flat_max=1_000, min_recall=0.9)
    assert isinstance(built, faiss.IndexIVFScalarQuantizer)
    queries = unit_vectors(100, seed=2)
    found, true = built.search(queries, 10)[1], nearest(ids, vectors, queries, 10)
    assert np.mean([len(set(f) & set(t)) / 10 for f, t in zip(found, true, strict=True)]) >= 0.85


def test_ids_need_not_be_sorted() -> None:
    """Rows may be read in any order; recall is measured by id."""
    vectors = unit_vectors(4_000)
    ids = np.random.default_rng(3).permutation(4_000).astype(np.int64)
    built = index.build(ids, vectors, flat_max=1_000, min_recall=0.9)
    assert isinstance(built, faiss.IndexIVFScalarQuantizer)
    assert (built.search(vectors[:50], 1)[1][:, 0] == ids[:50]).mean() > 0.95


def test_an_approximate_index_that_misses_too_much_is_not_used() -> None:
    """Without clusters IVF cannot work: then slow and right is published."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4_000, D)).astype(np.float32)
    vectors = as_kept(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    ids = np.arange(4_000, dtype=np.int64)
    built = index.build(ids, vectors, flat_max=1_000, min_recall=0.999)
    assert isinstance(built, faiss.IndexIDMap)
    assert (built.search(vectors[:20], 10)[1] == nearest(ids, vectors, vectors[:20], 10)).all()


def test_equal_texts_do_not_count_as_misses() -> None:
    """Thousands of "ok" and "thanks" tie; which of them is found says nothing about recall."""
    vectors = np.repeat(unit_vectors(60), 50, axis=0)
    built = index.build(np.arange(3_000, dtype=np.int64), vectors, flat_max=1_000, min_recall=0.97)
    assert isinstance(built, faiss.IndexIVFScalarQuantizer)


def test_the_same_rows_give_the_same_index() -> None:
    """A rebuild after damage must not change answers."""
    vectors, ids = unit_vectors(3_000), np.arange(3_000, dtype=np.int64)
    first, second = (index.build(ids, vectors, flat_max=1_000, min_recall=0.5) for _ in range(2))
    assert bytes(faiss.serialize_index(first)) == bytes(faiss.serialize_index(second))


def test_an_index_of_nothing_can_be_built() -> None:
    """Everything may be forgotten, and the snapshot must then say so."""
    assert index.build_from_blocks([], D, flat_max=10, min_recall=0.97).ntotal == 0


def test_blocks_must_fit_the_dimension_and_their_ids() -> None:
    """FAISS itself reads past the end of a short array."""
    with pytest.raises(DimensionMismatchError, match="d=32"):
        index.build_from_blocks([(np.arange(3), np.zeros((3, 16), np.float32))], D, flat_max=10, min_recall=0.97)
    with pytest.raises(DimensionMismatchError, match="2 ids"):
        index.build(np.arange(2), np.zeros((3, D), np.float32), flat_max=10, min_recall=0.97)
