"""The word hash that stands in for a model."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

from pipeline.embed.hashing import HashingEmbedder


def test_hashing_is_the_same_on_every_machine() -> None:
    """Python's own hash is salted per process; a snapshot must outlive the process."""
    digest = hashlib.sha256(HashingEmbedder().embed(["Hello world", "", "你好 世界"]).tobytes()).hexdigest()
    assert digest.startswith("f609d8ce09eabfd3")


def test_hashing_ranks_by_shared_words() -> None:
    """Load tests check their answers, too."""
    query, same, other = HashingEmbedder().embed(["The RED fox", "red fox, the", "an unrelated sentence"])
    assert query @ same > 0.99
    assert query @ other < 0.5


def test_hashing_survives_words_that_cancel_out() -> None:
    """Two words in one dimension with opposite signs leave zeros, which cannot be normalised."""
    embedder = HashingEmbedder()
    embedder._slots.update(plus=7, minus=7 + 384)
    assert np.linalg.norm(embedder.embed(["plus minus"])[0]) == pytest.approx(1)


def test_hashing_keeps_no_endless_list_of_words(monkeypatch) -> None:
    """A load test makes up new words for hours."""
    monkeypatch.setattr("pipeline.embed.hashing._MAX_CACHED_WORDS", 100)
    embedder = HashingEmbedder()
    for start in range(0, 1_000, 50):
        embedder.embed([f"word{i}" for i in range(start, start + 50)])
    assert len(embedder._slots) <= 150


def test_hashing_costs_next_to_nothing() -> None:
    """It stands in for the model so that everything else can be measured."""
    embedder, texts = HashingEmbedder(), ["A short chat turn about nothing much, really."] * 4_000
    started = time.process_time()
    embedder.embed(texts)
    assert time.process_time() - started < 1.0
