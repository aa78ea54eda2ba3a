"""Groups of exchanges: those about one thing together in any order, and none changed by what is unrelated."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.condense.clustering import MOST_MEMBERS, Clustering
from pipeline.condense.terms import terms
from pipeline.embed import load_embedder
from tests.fakes import FakeEmbedder
from tests.topics import TOPICS

TOLD = [(topic, f"{asked}\n{answered}") for topic, told in TOPICS.items() for asked, answered in told]
UNRELATED = "Who won the chess match in Reykjavik?\nSpassky lost it to Fischer."


def adjusted_rand(one: Sequence[object], other: Sequence[object]) -> float:
    """How far two groupings agree, 0 by chance, 1 wholly. Source: Hubert and Arabie 1985."""
    both, left, right = Counter(zip(one, other, strict=True)), Counter(one), Counter(other)
    pairs = [sum(comb(n, 2) for n in counts.values()) for counts in (both, left, right)]
    by_chance = pairs[1] * pairs[2] / comb(len(one), 2)
    return (pairs[0] - by_chance) / ((pairs[1] + pairs[2]) / 2 - by_chance)


def grouped(vectors: np.ndarray, texts: Sequence[str]) -> Clustering:
    clustering = Clustering(vectors.shape[1])
    clustering.add(vectors, [terms(text) for text in texts])
    return clustering


@pytest.fixture(scope="module")
def real_vectors(models_dir: Path) -> np.ndarray:
    """Of the exchanges, as the archive makes them: the mean of what was asked and what was answered."""
    embedder = load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=models_dir, n_threads=1, batch_tokens=4_096
    )
    sums = sum(embedder.embed([text.split("\n")[side] for _, text in TOLD]) for side in (0, 1))
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), np.float32)


def mean_agreement(vectors: np.ndarray) -> tuple[float, float]:
    """The mean and the least over twelve orders."""
    found = []
    for seed in range(12):
        order = random.Random(seed).sample(range(len(TOLD)), len(TOLD))
        clustering = grouped(vectors[order], [TOLD[i][1] for i in order])
        found.append(adjusted_rand([TOLD[i][0] for i in order], clustering.labels))
    return sum(found) / len(found), min(found)


def test_three_topics_are_three_groups_whatever_their_order(real_vectors: np.ndarray) -> None:
    """The rule of the specification, with the model that comes with the program."""
    assert mean_agreement(real_vectors)[1] >= 0.9


def test_words_alone_tell_topics_apart_too() -> None:
    """Without a model there are still groups, if not as good ones."""
    mean, least = mean_agreement(np.zeros((len(TOLD), 0), np.float32))
    assert mean >= 0.75
    assert least >= 0.5


def test_an_unrelated_exchange_leaves_all_groups_and_their_names_as_they_were(real_vectors: np.ndarray) -> None:
    """A summary that is made anew is paid for anew, and an index that moves cannot be relied on."""
    clustering = grouped(real_vectors, [text for _, text in TOLD])
    before = {group: (list(members), clustering.theme(group)) for group, members in clustering.members.items()}
    clustering.add(-real_vectors[:1], [terms(UNRELATED)])
    after = {group: (list(members), clustering.theme(group)) for group, members in clustering.members.items()}
    assert after == before | {max(after): ([len(TOLD)], clustering.theme(max(after)))}


def test_a_theme_is_named_by_words_that_others_lack(real_vectors: np.ndarray) -> None:
    """A name made of words that all groups have would name nothing."""
    clustering = grouped(real_vectors, [text for _, text in TOLD])
    names = [set(clustering.theme(group)) for group in clustering.members]
    for word in ("lisbon", "garden"):
        assert sum(word in name for name in names) >= 1
    assert not any(one & other for i, one in enumerate(names) for other in names[:i])


def test_a_full_group_takes_no_more() -> None:
    """A year about one thing cannot be told in one paragraph."""
    vectors = FakeEmbedder(dimension=32).embed(["the same again"] * (2 * MOST_MEMBERS + 1))
    sizes = [len(members) for members in grouped(vectors, ["the same again"] * len(vectors)).members.values()]
    assert sizes == [MOST_MEMBERS, MOST_MEMBERS, 1]


def test_groups_that_turn_out_to_be_one_are_merged() -> None:
    """The first texts of a topic may have little in common but what later ones add."""
    texts = ["red apple", "green pear", *["red green apple pear"] * 4]
    vectors = FakeEmbedder(dimension=64).embed(texts)
    assert set(grouped(vectors, texts).labels) == {0}


WORDS = st.lists(
    st.sampled_from(["sea", "river", "boat", "tent", "code", "bug", "query", "plant", "seed"]), min_size=1, max_size=6
)


@given(said=st.lists(WORDS, max_size=40), cut=st.integers(0, 40), with_vectors=st.booleans())
@settings(max_examples=60, deadline=None)
def test_going_on_is_the_same_as_starting_anew(said: list[list[str]], cut: int, *, with_vectors: bool) -> None:
    """Workers start anew, readers go on: they must know a group by the same members."""
    texts = [" ".join(words) for words in said]
    vectors = FakeEmbedder(dimension=32).embed(texts) if with_vectors else np.zeros((len(texts), 0), np.float32)
    vectors[::3] = 0  # not embedded yet
    anew, continued = grouped(vectors, texts), grouped(vectors[:cut], texts[:cut])
    continued.add(vectors[cut:], [terms(text) for text in texts[cut:]])
    assert continued.members == anew.members
    assert [continued.theme(group) for group in anew.members] == [anew.theme(group) for group in anew.members]
    assert sorted(place for members in anew.members.values() for place in members) == list(range(len(texts)))


def test_many_unrelated_texts_that_share_words_are_grouped_as_fast_as_they_are_read() -> None:
    """A long session that is not embedded was compared with itself: a thousand exchanges took half a minute."""
    rng = random.Random(1)
    told = [tuple(f"word{n}" for n in sorted(rng.sample(range(2_000), 20))) for _ in range(1_000)]
    clustering, start_s = Clustering(0), time.process_time()
    clustering.add(np.zeros((len(told), 0), np.float32), told)
    assert time.process_time() - start_s < 3, "it takes 0.4 s"
    assert len(clustering.labels) == len(told)


def test_words_of_any_script_count() -> None:
    """A script without spaces has no words to split; plurals are the same thing."""
    assert terms("Trains and boxes, queries; the user's train") == ("train", "box", "query")
    assert terms("我住在上海") == ("我住", "住在", "在上", "上海")
    assert terms("") == terms("the and of 42") == ()
