"""Traces are found by cognitive score among the nearest, and nothing is embedded for nobody."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import DimensionMismatchError
from pipeline.records import Mood, Scope
from retrieval.cognitive_score import Weights
from retrieval.memory_store import MemoryStore
from tests.ledgers import NOW_MS, remember, turn

SCOPE = Scope("user", "u1")
DAY_S = 86_400
NOW_S = NOW_MS / 1000


@pytest.fixture
def store(readers, embedder) -> MemoryStore:
    return MemoryStore(readers, embedder, clock=lambda: NOW_MS)


def test_collection_is_named_after_the_scope() -> None:
    """The name the contract gives; a diagnostic, never a path."""
    assert MemoryStore.collection(Scope("user", "u42")) == "cogmem_user_u42"


def test_a_hit_carries_its_turn_and_the_parts_of_its_score(shards, store, embedder) -> None:
    """A bot shows who said it and when; a developer sees why it was chosen."""
    said = turn(
        SCOPE, "t1", "we met in Lisbon", session="s:7", at=NOW_S, speaker="Ana", tags=("travel",), role="user"
    )
    remember(shards, SCOPE, [said], embedder)
    (hit,) = store.query("Lisbon met in we", SCOPE, top_k=5).scored
    assert (hit.turn_id, hit.session_id, hit.role, hit.speaker) == ("t1", "s:7", "user", "Ana")
    assert (hit.text, hit.timestamp_ms) == ("we met in Lisbon", NOW_MS)
    assert hit.tags == ("bench-session:s:7", "travel")
    assert hit.parts == pytest.approx((0.2875, 1.0, 1.0, 0.0, 0.0, 0.9), abs=1e-3)
    assert hit.score == pytest.approx(0.25 * 0.2875 + 0.35 + 0.10 + 0.05 * 0.9, abs=1e-3)


def test_recency_decides_between_equal_texts(shards, store, embedder) -> None:
    """A turn's own time is its last access, so a replayed old turn stays old."""
    remember(
        shards,
        SCOPE,
        [turn(SCOPE, "old", "same words", at=NOW_S - 3 * DAY_S), turn(SCOPE, "new", "same words", at=NOW_S - 60)],
        embedder,
    )
    assert [t.turn_id for t in store.query("same words", SCOPE, top_k=2).scored] == ["new", "old"]


def test_mood_prefers_what_was_felt_alike(shards, store, embedder) -> None:
    """Emotional congruence is 0.15 of the score."""
    glad, sad = Mood(valence=1.0), Mood(valence=-1.0)
    remember(
        shards, SCOPE, [turn(SCOPE, "glad", "words", mood=glad), turn(SCOPE, "sad", "words", mood=sad)], embedder
    )
    assert store.query("words", SCOPE, top_k=2, mood=sad).scored[0].turn_id == "sad"
    assert store.query("words", SCOPE, top_k=2, mood=glad).scored[0].turn_id == "glad"


def test_twice_as_many_are_scored_as_returned(shards, store, embedder) -> None:
    """The fourth nearest of 2 x 2 may win by recency; the fifth is never looked at."""
    texts = ["a b c d", "a b c e", "a b f g", "a h i j", "k l m n"]
    ages = [9, 9, 9, 0, 0]
    remember(
        shards,
        SCOPE,
        [
            turn(SCOPE, f"t{i}", text, at=NOW_S - age * DAY_S)
            for i, (text, age) in enumerate(zip(texts, ages, strict=True))
        ],
        embedder,
    )
    only_recency = Weights(strength=0, similarity=0, recency=1, emotion=0, graph=0, importance=0)
    store = MemoryStore(store._readers, embedder, weights=only_recency, clock=lambda: NOW_MS)
    result = store.query("a b c d", SCOPE, top_k=2)
    assert result.candidates_scanned == 4
    assert result.scored[0].turn_id == "t3"
    assert "t4" not in {t.turn_id for t in result.scored}


def test_equal_scores_come_in_the_order_of_their_traces(shards, store, embedder) -> None:
    """The same question gets the same answer, every time."""
    remember(shards, SCOPE, [turn(SCOPE, f"t{i}", "same", at=5) for i in range(30)], embedder)
    first = [t.trace_id for t in store.query("same", SCOPE, top_k=10).scored]
    assert first == sorted(first) == list(range(1, 11))


def test_the_clock_can_be_given(shards, store, embedder) -> None:
    """A benchmark asks as of a past moment."""
    remember(shards, SCOPE, [turn(SCOPE, "t", "words", at=NOW_S)], embedder)
    (now,) = store.query("words", SCOPE, top_k=1).scored
    (later,) = store.query("words", SCOPE, top_k=1, now_ms=NOW_MS + 1000 * DAY_S).scored
    assert now.parts.recency == 1.0
    assert later.parts.recency == pytest.approx(np.exp(-1), abs=1e-9)


@pytest.mark.parametrize("query", ["words", np.ones(64, dtype=np.float32)])
def test_a_missing_scope_gives_nothing_and_embeds_nothing(store, embedder, query, data_dir) -> None:
    """A first-time user costs neither a model call nor a folder."""
    result = store.query(query, SCOPE, top_k=5)
    assert (result.scored, result.candidates_scanned, embedder.n_embedded) == ((), 0, 0)
    assert list(data_dir.iterdir()) == []


def test_a_vector_is_compared_by_its_direction(shards, store, embedder) -> None:
    """The similarity is a cosine, however long the caller's vector is."""
    remember(shards, SCOPE, [turn(SCOPE, "t", "words")], embedder)
    (hit,) = store.query(7 * embedder.embed(["words"])[0], SCOPE, top_k=1).scored
    assert hit.parts.similarity == pytest.approx(1.0, abs=1e-3)


def test_times_are_read_as_a_turn_s_timestamp_is(shards, store, embedder) -> None:
    """ISO text, epoch seconds and datetimes mean the same; both ends are included."""
    remember(shards, SCOPE, [turn(SCOPE, f"t{i}", "words", at=f"2023-05-0{i}T12:00:00") for i in (1, 2, 3)], embedder)
    hits = store.query("words", SCOPE, top_k=9, after="2023-05-02T12:00:00Z", before=1_683_115_200).scored
    assert {t.turn_id for t in hits} == {"t2", "t3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1, "after": "yesterday"}, "after: .*ISO 8601"),
        ({"top_k": 1, "before": float("nan")}, "before"),
        ({"top_k": 1, "after": 20, "before": 10}, "after: is later"),
        ({"top_k": 1, "query": " \n"}, "query: is blank"),
        ({"top_k": 1, "query": np.full(64, np.nan)}, "query: a vector"),
    ],
)
def test_arguments_that_cannot_work_are_named(shards, store, embedder, arguments, message) -> None:
    """A ValueError tells which argument to change."""
    remember(shards, SCOPE, [turn(SCOPE, "t", "words")], embedder)
    with pytest.raises(ValueError, match=message):
        store.query(**{"query": "words", "scope": SCOPE} | arguments)


def test_a_vector_of_another_dimension_is_an_error(shards, store, embedder) -> None:
    """Never a silent loss."""
    remember(shards, SCOPE, [turn(SCOPE, "t", "words")], embedder)
    with pytest.raises(DimensionMismatchError):
        store.query(np.ones(3), SCOPE, top_k=1)
