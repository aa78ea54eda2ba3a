"""Profile fused: what it finds, what it says about how, and what it does without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from pipeline.errors import ModelMismatchError
from pipeline.records import Scope
from pipeline.shards import Shards
from retrieval import Memory
from retrieval.fused_retriever import NO_TOKEN_VECTORS, NO_VECTORS, NO_WORDS
from tests.fakes import FakeEmbedder, FakeTokenEmbedder
from tests.ledgers import NOW_MS, open_ledger, remember, summarise, turn

SCOPE = Scope("user", "u1")
SAID = {
    "travel": ["we took the train to lisbon", "was it late", "no it was early and nearly empty"],
    "food": ["the pastry oven is broken", "call the baker about the oven", "the baker comes on monday"],
    "pets": ["the cat sleeps on the report", "what report", "the one that was due in lisbon"],
}


class Reading:
    """A reranker that prefers one word; counts what it read."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.n_read = 0

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Give 1 to texts with the word."""
        self.n_read = len(texts)
        if self.word in query:
            raise RuntimeError("cannot read this")
        return [float(self.word in text) for text in texts]


def opened(shards: Shards, embedder: FakeEmbedder, reranker: Reading | None = None) -> Memory:
    return Memory(shards, lambda: embedder, reranker=reranker, clock=lambda: NOW_MS)


def fill(shards: Shards, embedder: FakeEmbedder) -> None:
    for number, (session, texts) in enumerate(SAID.items()):
        turns = [
            turn(SCOPE, f"{session}{i}", text, session=session, at=1.6e9 + 1000 * number + i, index=i)
            for i, text in enumerate(texts)
        ]
        remember(shards, SCOPE, turns, embedder)
        summarise(shards, SCOPE, session, " ".join(texts), embedder)


@pytest.fixture
def memory(shards: Shards) -> Iterator[Memory]:
    embedder = FakeTokenEmbedder()
    fill(shards, embedder)
    with closing(opened(shards, embedder)) as made:
        yield made


def test_it_is_the_default_and_says_how_it_came_to_its_answer(memory: Memory) -> None:
    """A developer sees why a hit was chosen, a bot how sure it may be."""
    found = memory.retrieve("Who repairs the oven?", SCOPE)
    assert found.hits[0].session_id == "food"
    assert all(0 < hit.score < 1 for hit in found.hits)
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
    assert {"speaker", "maxsim_rare_far"} <= found.hits[0].score_parts.keys()
    told = found.diagnostics
    assert told.escalations == ()
    assert told.candidates_scanned == len(told.stages["pool"]) == 9
    assert told.stages["returned"] == tuple(hit.trace_id for hit in found.hits)
    assert told.sessions[0] == ("food", found.hits[0].score)
    assert min(told.embedding_ms, told.vector_ms, told.words_ms, told.scoring_ms) > 0
    assert told.total_ms >= told.embedding_ms


def test_a_hit_has_its_neighbours(memory: Memory) -> None:
    """An answer is often understood by the question before it."""
    hit = next(hit for hit in memory.retrieve("Was the train early?", SCOPE).hits if hit.turn_id == "travel1")
    assert [said.turn_id for said in (*hit.preceding, *hit.following)] == ["travel0", "travel2"]


def test_a_scope_without_anything_embeds_nothing(shards: Shards) -> None:
    """Asking about nobody costs nothing, and makes no folder."""
    embedder = FakeTokenEmbedder()
    with closing(opened(shards, embedder)) as memory:
        assert memory.retrieve("anything", "user/nobody").hits == ()
    assert embedder.n_embedded == 0
    assert not shards.folder(Scope("user", "nobody")).exists()


def test_without_token_vectors_it_says_so_and_answers(shards: Shards) -> None:
    """A model of somebody's own may give none."""
    embedder = FakeEmbedder()
    fill(shards, embedder)
    with closing(opened(shards, embedder)) as memory:
        found = memory.retrieve("Who repairs the oven?", SCOPE)
    assert found.hits[0].session_id == "food"
    assert found.diagnostics.escalations == (NO_TOKEN_VECTORS,)
    assert embedder.model_key in found.diagnostics.reasons[NO_TOKEN_VECTORS]


def test_token_vectors_that_are_lost_are_told_of(shards: Shards, memory: Memory) -> None:
    """The answer is worse, and nobody would know why."""
    with closing(open_ledger(shards, SCOPE)) as ledger, ledger.write() as connection:
        connection.execute("DELETE FROM token_vectors")
    found = memory.retrieve("Who repairs the oven?", SCOPE)
    assert "doctor" in found.diagnostics.reasons[NO_TOKEN_VECTORS]
    assert found.hits[0].session_id == "food"


def test_without_a_word_in_common_meaning_alone_finds(memory: Memory) -> None:
    """A question of stop words, or of words nobody used."""
    for question in ("what is it about?", "zeppelin", "¿?"):
        found = memory.retrieve(question, SCOPE)
        assert NO_WORDS in found.diagnostics.escalations
        assert found.hits


def test_without_vectors_words_alone_find(shards: Shards, memory: Memory) -> None:
    """What a damaged ledger still holds is still an answer."""
    with closing(open_ledger(shards, SCOPE)) as ledger, ledger.write() as connection:
        connection.execute("DELETE FROM vectors")
    found = memory.retrieve("Who repairs the oven?", SCOPE)
    assert NO_VECTORS in found.diagnostics.escalations
    assert found.hits[0].session_id == "food"


def test_coverage_gives_each_session_its_best(memory: Memory) -> None:
    """A question about several sessions is not answered by the loudest of them."""
    loud = memory.retrieve("the oven and the baker", SCOPE, recall_top_k=3)
    assert {hit.session_id for hit in loud.hits} == {"food"}
    covered = memory.retrieve(
        "the oven and the baker", SCOPE, recall_top_k=3, coverage=True, top_sessions=3, chunks_per_session=1
    )
    assert {hit.session_id for hit in covered.hits} == {"food", "travel", "pets"}


@pytest.mark.usefixtures("memory")
def test_a_reranker_is_blended_in(shards: Shards) -> None:
    """Seven parts of the probability, three of the relevance."""
    reading = Reading("monday")
    with closing(opened(shards, FakeTokenEmbedder(), reading)) as reread:
        found = reread.retrieve("Who repairs the oven?", SCOPE, recall_top_k=2)
    hit = next(hit for hit in found.hits if "monday" in hit.text)
    assert hit.score == pytest.approx(0.7 * hit.score_parts["fused"] + 0.3)
    assert reading.n_read == 9
    assert found.diagnostics.rerank_ms > 0


def test_a_reranker_that_fails_changes_nothing(shards: Shards, memory: Memory) -> None:
    """It is somebody else's code."""
    plain = memory.retrieve("What of monday?", SCOPE, recall_top_k=4)
    with closing(opened(shards, FakeTokenEmbedder(), Reading("monday"))) as reread:
        found = reread.retrieve("What of monday?", SCOPE, recall_top_k=4)
    assert [hit.trace_id for hit in found.hits] == [hit.trace_id for hit in plain.hits]
    assert "cannot read this" in found.diagnostics.reasons["rerank"]


def test_only_the_time_that_is_asked_for_answers(memory: Memory) -> None:
    """Both ends of a range bind, whatever else fits."""
    found = memory.retrieve("oven", SCOPE, after=1.6e9 + 2000)
    assert {hit.session_id for hit in found.hits} == {"pets"}


@pytest.mark.usefixtures("memory")
def test_another_model_is_refused(shards: Shards) -> None:
    """Two models' vectors look as if they could be compared."""
    with closing(opened(shards, FakeEmbedder())) as other, pytest.raises(ModelMismatchError):
        other.retrieve("oven", SCOPE)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("query", {"query": " "}), ("recall_top_k", {"recall_top_k": -1}), ("after", {"after": 5, "before": 3})],
)
def test_what_makes_no_sense_is_refused_by_name(memory: Memory, name: str, wanted: dict) -> None:
    """The same as in the other profile."""
    with pytest.raises(ValueError, match=name):
        memory.retrieve(**{"query": "oven", "scope": SCOPE, **wanted})


def test_session_profile_with_coverage_leaves_no_selected_session_empty_handed(memory: Memory) -> None:
    """Its pool is the nearest of the whole scope; a selected session may have none there."""
    asked = {"profile": "session", "top_sessions": 3, "chunks_per_session": 1, "recall_top_k": 3}
    covered = memory.retrieve("the oven and the baker", SCOPE, coverage=True, **asked)
    assert {hit.session_id for hit in covered.hits} == {"food", "travel", "pets"}
    assert "completed" in covered.diagnostics.stages
