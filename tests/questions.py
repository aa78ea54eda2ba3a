"""Passages and questions for ranking, made of a few words."""

from __future__ import annotations

import numpy as np

from pipeline.ledger.words import word_ids
from retrieval.fused.passages import Passages, Question

NO_TOKENS = np.empty((0, 2), np.int8)


def passages(*texts: str, **given: object) -> Passages:
    """Make passages of one session, all of them candidates; ``given`` replaces fields, or ``vectors``."""
    found = [word_ids(text) for text in texts]
    n = len(texts)
    fields: dict[str, object] = {
        "session": np.zeros(n, np.int64),
        "place": np.arange(n),
        "speaker": ["Melanie"] * n,
        "time_ms": np.zeros(n, np.int64),
        "marks": np.zeros(n, np.int64),
        "words": np.concatenate(found) if n else np.empty(0, np.uint32),
        "word_ends": np.cumsum([len(ids) for ids in found], dtype=np.int64),
        "tokens": NO_TOKENS,
        "token_ends": np.zeros(n, np.int64),
        "candidates": np.arange(n),
    }
    vectors = np.asarray(given.pop("vectors", np.tile(np.float32([1, 0]), (n, 1))))
    return Passages(**(fields | given), vectors_of=lambda rows: vectors[rows])  # type: ignore[arg-type]


def question(text: str, **given: object) -> Question:
    """Make a question all of whose words weigh 1."""
    ids = word_ids(text)
    fields: dict[str, object] = {
        "text": text,
        "vector": np.float32([1, 0]),
        "words": ids,
        "weights": np.ones(len(ids), np.float32),
        "is_name": np.zeros(len(ids), np.bool_),
        "token_vectors": np.empty((0, 2), np.float32),
        "token_weights": np.empty(0, np.float32),
    }
    return Question(**(fields | given))  # type: ignore[arg-type]
