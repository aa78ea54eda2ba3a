"""From a model's states to vectors: pooling, batches and projections, worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.embed import pooling, projection
from pipeline.embed.onnx_embedder import MAX_BATCH_ROWS, cut_batches
from pipeline.embed.protocol import reject_non_numbers
from pipeline.errors import ConfigError, TransientError

TOKENS = np.array([[[1, 8], [3, -4], [90, 90]], [[-5, 2], [90, 90], [90, 90]]], np.float32)
MASK = np.array([[1, 1, 0], [1, 0, 0]], np.int64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", [[2, 2], [-5, 2]]),
        ("cls", [[1, 8], [-5, 2]]),
        ("max", [[3, 8], [-5, 2]]),
        ("mean_sqrt_len_tokens", [[4 / 2**0.5, 4 / 2**0.5], [-5, 2]]),
    ],
)
def test_pooling_ignores_padding(name, expected) -> None:
    """Padding depends on the neighbours in a batch; a text's meaning does not."""
    assert np.allclose(pooling.POOLINGS[name](TOKENS, MASK), expected)


@given(lengths=st.lists(st.integers(1, 256), max_size=120), budget=st.integers(64, 4_096))
@settings(max_examples=150, deadline=None)
def test_batches_hold_every_text_once_within_the_budget(lengths, budget) -> None:
    """A text left out keeps whatever was in memory as its vector."""
    batches = list(cut_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= MAX_BATCH_ROWS
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_what_is_no_number_is_never_returned() -> None:
    """Stored, it would stay at the bottom of every ranking for ever."""
    vectors = np.ones((5, 4), np.float32)
    assert reject_non_numbers(vectors, "m") is vectors
    vectors[2, 1], vectors[4, 0] = np.nan, np.inf
    with pytest.raises(TransientError, match="2 of 5 texts, first for number 2"):
        reject_non_numbers(vectors, "m")


def test_a_projection_is_the_same_each_time(tmp_path: Path) -> None:
    """Two machines must be able to read each other's ledgers; the sign of a component is otherwise left to chance."""
    states = np.random.default_rng(1).standard_normal((300, 96)).astype(np.float32) * np.linspace(3, 0.1, 96)
    made = projection.of_states(states.astype(np.float32))
    again = projection.of_states(np.flipud(states).astype(np.float32))
    assert made.components.shape == (96, 64)
    assert np.allclose(made.components, again.components, atol=1e-3)
    made.write(tmp_path / "p.npz")
    assert (projection.Projection.read(tmp_path / "p.npz").components == made.components).all()


def test_a_file_that_is_no_projection_is_named(tmp_path: Path) -> None:
    """It is checked by its digest; this is for who edits the manifest too."""
    (tmp_path / "p.npz").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"p\.npz"):
        projection.Projection.read(tmp_path / "p.npz")
