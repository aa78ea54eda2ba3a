"""The two stages keep their contract: defaults, fallbacks with their reasons, edge values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.errors import ModelMismatchError, TransientError
from pipeline.records import Mood, Scope, Turn
from pipeline.shards import Shards
from retrieval.memory_store import MemoryStore
from retrieval.reader import ShardReaders
from retrieval.session_retriever import STAGE1_EMPTY, STAGE2_EMPTY, SessionRetrieval, SessionRetriever, session_of
from retrieval.summary_store import SessionMatch, SessionSummaryStore
from tests.fakes import FakeEmbedder
from tests.ledgers import NOW_MS, remember, summarise, turn

SCOPE = Scope("user", "u1")
TOPICS = {"travel": "lisbon train", "food": "pastry oven", "work": "deadline report", "pets": "cat dog"}


@dataclass
class Setup:
    """A retriever on real stores, and what it is made of."""

    shards: Shards
    embedder: FakeEmbedder
    readers: ShardReaders
    memory_store: MemoryStore = field(init=False)
    summary_store: SessionSummaryStore = field(init=False)

    def __post_init__(self) -> None:
        self.memory_store = MemoryStore(self.readers, self.embedder, clock=lambda: NOW_MS)
        self.summary_store = SessionSummaryStore(self.readers, self.embedder, clock=lambda: NOW_MS)

    def retriever(self, reranker: object = None, **defaults: int) -> SessionRetriever:
        """Make a retriever on these stores."""
        return SessionRetriever(self.summary_store, self.memory_store, self.embedder, reranker, **defaults)  # type: ignore[arg-type]

    def retrieve(self, query: str, **options: object) -> SessionRetrieval:
        """Retrieve in the one scope, without a reranker."""
        return self.retriever().retrieve(query, SCOPE, **options)  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Setup]:
    shards = Shards(tmp_path)
    with closing(ShardReaders(shards)) as readers:
        yield Setup(shards, FakeEmbedder(), readers)


@pytest.fixture
def filled(made: Setup) -> Setup:
    """Four summarised sessions of six turns each, on one topic each."""
    remember(made.shards, SCOPE, topic_turns(), made.embedder)
    for session, words in TOPICS.items():
        summarise(made.shards, SCOPE, session, words, made.embedder)
    made.embedder.n_embedded = 0
    return made


def topic_turns() -> list[Turn]:
    return [
        turn(SCOPE, f"{session}{i}", f"{words} number{i}", session=session, at=1.6e9 + i)
        for session, words in TOPICS.items()
        for i in range(6)
    ]


def sessions_of(result: SessionRetrieval) -> list[str]:
    return [trace.session_id for trace in result.retrieved]


class Reranker:
    """Gives the relevance a test sets for each text, and keeps what it was asked."""

    def __init__(self, relevance: dict[str, float]) -> None:
        self.relevance = relevance
        self.asked: list[str] = []

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:  # noqa: ARG002
        """Give what the test set; 0 for the rest."""
        self.asked = list(texts)
        return [self.relevance.get(text, 0.0) for text in texts]


class Broken:
    """Fails, as foreign code does."""

    def __init__(self, failure: BaseException | list[float]) -> None:
        self.failure = failure

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:  # noqa: ARG002
        """Fail."""
        if isinstance(self.failure, BaseException):
            raise self.failure
        return self.failure


def test_only_traces_of_selected_sessions_are_returned(filled: Setup) -> None:
    """K = 1, M = 2: the two best of the nearest session."""
    result = filled.retrieve("lisbon train", top_sessions=1, chunks_per_session=2)
    assert sessions_of(result) == ["travel", "travel"]
    assert [m.session_id for m in result.diagnostics.sessions] == ["travel"]
    assert result.diagnostics.sessions[0].similarity == pytest.approx(1.0, abs=1e-3)
    assert result.diagnostics.escalations == ()
    assert "session-retriever:stage1-empty" not in result.diagnostics.reasons


def test_defaults_are_five_sessions_of_three_traces_and_ten_hits(made: Setup) -> None:
    """Of seven equal sessions, 5 x 3 = 15 traces are merged and 10 returned."""
    remember(
        made.shards,
        SCOPE,
        [turn(SCOPE, f"{s}{i}", "same words", session=f"s{s}", at=1.6e9) for i in range(9) for s in range(7)],
        made.embedder,
    )
    for s in range(7):
        summarise(made.shards, SCOPE, f"s{s}", "same words", made.embedder)
    result = made.retrieve("same words")
    assert [m.session_id for m in result.diagnostics.sessions] == [f"s{s}" for s in range(5)]
    assert len(result.diagnostics.stages["pool"]) == 45
    assert result.diagnostics.candidates_scanned == 63
    assert len(result.diagnostics.stages["merged"]) == 15
    assert len(result.retrieved) == 10


def test_the_constructor_s_defaults_hold_when_a_retrieve_does_not_say(filled: Setup) -> None:
    """And an argument wins over them."""
    retriever = filled.retriever(default_top_sessions=1, default_chunks_per_session=2)
    assert sessions_of(retriever.retrieve("cat dog", SCOPE)) == ["pets", "pets"]
    assert len(retriever.retrieve("cat dog", SCOPE, chunks_per_session=4).retrieved) == 4


def test_the_query_is_embedded_once(filled: Setup) -> None:
    """The original embeds it for each stage: twice the cost of a retrieve."""
    filled.retrieve("lisbon train")
    assert filled.embedder.n_embedded == 1


def test_without_reranker_the_merged_pool_comes_by_cognitive_score(filled: Setup) -> None:
    """Not session by session."""
    result = filled.retrieve("lisbon cat number3", top_sessions=4, chunks_per_session=3, recall_top_k=12)
    scores = [trace.score for trace in result.retrieved]
    assert scores == sorted(scores, reverse=True)
    assert len(set(sessions_of(result)[:3])) > 1


def test_stage_ids_tell_what_each_stage_kept(filled: Setup) -> None:
    """Each stage narrows the one before it."""
    stages = filled.retrieve("lisbon train", top_sessions=2, chunks_per_session=3, recall_top_k=4).diagnostics.stages
    assert list(stages) == ["pool", "of_selected_sessions", "merged", "returned"]
    assert set(stages["pool"]) >= set(stages["of_selected_sessions"]) >= set(stages["merged"])
    assert set(stages["merged"]) >= set(stages["returned"])
    assert len(stages["returned"]) == 4


def test_timings_are_told_and_fit_into_the_total(filled: Setup) -> None:
    """A slow stage can be found."""
    d = filled.retriever(Reranker({})).retrieve("lisbon", SCOPE).diagnostics
    parts = (d.embedding_ms, d.stage1_ms, d.vector_ms, d.scoring_ms, d.rerank_ms)
    assert all(part > 0 for part in parts)
    assert sum(parts) <= d.total_ms


def test_a_cold_scope_falls_back_to_one_plain_query(made: Setup) -> None:
    """No summaries yet: the best recall_top_k of everything, no rerank, and nothing embedded for stage 1."""
    remember(made.shards, SCOPE, topic_turns(), made.embedder)
    made.embedder.n_embedded = 0
    reranker = Reranker({})
    result = made.retriever(reranker).retrieve("lisbon train", SCOPE, recall_top_k=7)
    assert result.diagnostics.escalations == (STAGE1_EMPTY,)
    assert result.diagnostics.reasons[STAGE1_EMPTY].startswith("cold scope")
    assert len(result.retrieved) == len(result.diagnostics.stages["pool"]) == 7
    assert made.embedder.n_embedded == 1
    assert reranker.asked == []
    expected = made.memory_store.query("lisbon train", SCOPE, top_k=7).scored
    assert result.retrieved == expected


def test_a_missing_scope_gives_nothing_and_makes_nothing(made: Setup, tmp_path: Path) -> None:
    """Nor is anything embedded."""
    result = made.retrieve("anything")
    assert (result.retrieved, result.diagnostics.escalations) == ((), (STAGE1_EMPTY,))
    assert made.embedder.n_embedded == 0
    assert list(tmp_path.iterdir()) == []


def test_traces_of_other_sessions_only_fall_back_to_the_raw_pool(made: Setup) -> None:
    """The selected session has no trace in the pool: the pool itself, no second query, no rerank."""
    remember(made.shards, SCOPE, topic_turns(), made.embedder)
    summarise(made.shards, SCOPE, "empty session", "lisbon train", made.embedder)
    made.embedder.n_embedded = 0
    reranker = Reranker({})
    result = made.retriever(reranker).retrieve("lisbon train", SCOPE, top_sessions=1, recall_top_k=4)
    assert result.diagnostics.escalations == (STAGE2_EMPTY,)
    assert "none of the 9 traces" in result.diagnostics.reasons[STAGE2_EMPTY]
    assert [t.trace_id for t in result.retrieved] == list(result.diagnostics.stages["pool"][:4])
    assert (made.embedder.n_embedded, reranker.asked) == (1, [])


class FailingSummaries:
    """A summary store that fails in stage 1."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def exists(self, scope: Scope) -> bool:  # noqa: ARG002
        """Claim to have summaries."""
        return True

    def query_sessions(self, query: object, scope: Scope, top_k: int) -> list[SessionMatch]:  # noqa: ARG002
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TransientError("locked"), "error: locked"),
        (ModelMismatchError("two models"), "dimension mismatch: two models"),
    ],
)
def test_a_failing_summary_query_falls_back_and_says_why(filled: Setup, error: Exception, reason: str) -> None:
    """The original hides the reason; one embedding still serves both stages."""
    failing = FailingSummaries(error)
    retriever = SessionRetriever(failing, filled.memory_store, filled.embedder)  # type: ignore[arg-type]
    result = retriever.retrieve("lisbon train", SCOPE)
    assert result.diagnostics.escalations == (STAGE1_EMPTY,)
    assert result.diagnostics.reasons[STAGE1_EMPTY] == reason
    assert len(result.retrieved) == 10
    assert filled.embedder.n_embedded == 1


def test_no_sessions_wanted_is_stage1_empty(filled: Setup) -> None:
    """K = 0 is honoured."""
    result = filled.retrieve("lisbon train", top_sessions=0)
    assert result.diagnostics.escalations == (STAGE1_EMPTY,)
    assert result.diagnostics.reasons[STAGE1_EMPTY] == "top_sessions is 0"
    assert len(result.retrieved) == 10


def test_no_chunks_wanted_is_an_empty_stage_2(filled: Setup) -> None:
    """M = 0 is honoured: a pool of 0."""
    result = filled.retrieve("lisbon train", chunks_per_session=0)
    assert (result.retrieved, result.diagnostics.escalations) == ((), (STAGE2_EMPTY,))
    assert result.diagnostics.stages["pool"] == ()


def test_no_hits_wanted_gives_none(filled: Setup) -> None:
    """recall_top_k = 0 is honoured in every path."""
    assert filled.retrieve("lisbon train", recall_top_k=0).retrieved == ()
    assert filled.retrieve("lisbon train", recall_top_k=0, top_sessions=0).retrieved == ()


@pytest.mark.parametrize("name", ["top_sessions", "chunks_per_session", "recall_top_k"])
def test_a_negative_count_is_refused_by_name(filled: Setup, name: str) -> None:
    """ValueError naming the parameter."""
    with pytest.raises(ValueError, match=name):
        filled.retrieve("lisbon", **{name: -1})


@pytest.mark.parametrize("query", ["", "  \n"])
def test_a_blank_query_is_refused(filled: Setup, query: str) -> None:
    """Nothing is asked; an arbitrary answer would look like memory."""
    with pytest.raises(ValueError, match="query: is blank"):
        filled.retrieve(query)


def test_a_very_long_query_works(filled: Setup) -> None:
    """A pasted document is cut at the model's limit, not refused."""
    result = filled.retrieve("lisbon train " * 5_000, top_sessions=1)
    assert set(sessions_of(result)) == {"travel"}


def test_reranking_blends_seven_tenths_cognitive_with_three_tenths_relevance(filled: Setup) -> None:
    """And sorts by the blend."""
    plain = filled.retrieve("lisbon train", top_sessions=1, chunks_per_session=3)
    last = plain.retrieved[-1]
    reranker = Reranker({last.text: 1.0})
    result = filled.retriever(reranker).retrieve("lisbon train", SCOPE, top_sessions=1, chunks_per_session=3)
    first = result.retrieved[0]
    assert first.trace_id == last.trace_id
    assert first.score == pytest.approx(0.7 * last.score + 0.3)
    assert (first.cognitive_score, first.relevance) == (last.score, 1.0)
    assert len(reranker.asked) == 3


def test_reranking_sees_the_whole_merged_pool_before_it_is_cut(filled: Setup) -> None:
    """Otherwise the reranker could not lift anything."""
    reranker = Reranker({})
    filled.retriever(reranker).retrieve("lisbon cat", SCOPE, top_sessions=4, chunks_per_session=3, recall_top_k=2)
    assert len(reranker.asked) == 12


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("no GPU"), type("Foreign", (Exception,), {})("odd"), [1.0], [float("nan")] * 6, ["x"] * 6],
)
def test_a_failing_reranker_leaves_the_pool_session_by_session(filled: Setup, failure: object) -> None:
    """Session after session in the pool's order, each best first; the reason is told."""
    query = "lisbon cat number3"
    result = filled.retriever(Broken(failure)).retrieve(query, SCOPE, top_sessions=2, chunks_per_session=3)  # type: ignore[arg-type]
    assert result.diagnostics.reasons["rerank"].startswith("rerank failed")
    assert result.diagnostics.stages["returned"] == result.diagnostics.stages["merged"]
    names = sessions_of(result)
    assert names == [names[0]] * 3 + [names[3]] * 3
    assert all(trace.relevance is None for trace in result.retrieved)
    plain = filled.retrieve(query, top_sessions=2, chunks_per_session=3)
    assert [t.trace_id for t in result.retrieved] != [t.trace_id for t in plain.retrieved]


def test_an_interrupt_in_the_reranker_is_no_failure_to_hide(filled: Setup) -> None:
    """Ctrl-C ends the retrieve."""
    with pytest.raises(KeyboardInterrupt):
        filled.retriever(Broken(KeyboardInterrupt())).retrieve("lisbon", SCOPE)


def test_mood_reaches_the_score(made: Setup) -> None:
    """The bot's mood is part of the question."""
    moods = {"glad": Mood(valence=1.0), "sad": Mood(valence=-1.0)}
    remember(made.shards, SCOPE, [turn(SCOPE, n, "words", mood=m) for n, m in moods.items()], made.embedder)
    summarise(made.shards, SCOPE, "s1", "words", made.embedder)
    for name, mood in moods.items():
        assert made.retrieve("words", mood=mood).retrieved[0].turn_id == name


def test_a_time_range_holds_in_every_path(filled: Setup) -> None:
    """Both ends, with sessions and without."""
    limits = {"after": 1.6e9 + 2, "before": 1.6e9 + 3}
    for options in ({}, {"top_sessions": 0}):
        hits = filled.retrieve("lisbon train", recall_top_k=50, **options, **limits).retrieved
        assert {t.timestamp_ms for t in hits} == {1_600_000_002_000, 1_600_000_003_000}


@pytest.mark.parametrize(
    ("tags", "session"),
    [
        (("bench-session:s1",), "s1"),
        (("bench-session:a:b:c", "bench-session:z"), "a:b:c"),
        (("other", "bench-session: s1 "), " s1 "),
        (("bench-session:",), ""),
        (("Bench-Session:s1",), None),
        (("x bench-session:s1",), None),
        ((), None),
    ],
)
def test_the_session_is_what_follows_the_first_tag_with_the_prefix(
    tags: tuple[str, ...], session: str | None
) -> None:
    """May contain colons, case-sensitive, not trimmed."""
    assert session_of(tags, "bench-session:") == session


def test_sessions_with_colons_and_another_prefix_work_end_to_end(made: Setup) -> None:
    """A platform may tag sessions its own way."""
    said = [turn(SCOPE, "t1", "words", session="s:1:x", tags=("room:blue",)), turn(SCOPE, "t2", "words", session="y")]
    remember(made.shards, SCOPE, said, made.embedder)
    summarise(made.shards, SCOPE, "s:1:x", "words", made.embedder)
    assert [t.turn_id for t in made.retrieve("words", top_sessions=1).retrieved] == ["t1"]
    summarise(made.shards, SCOPE, "blue", "words exactly", made.embedder)
    result = made.retrieve("words exactly", top_sessions=1, session_tag_prefix="room:")
    assert [t.turn_id for t in result.retrieved] == ["t1"]


def test_a_retrieve_reads_one_scope_only(filled: Setup) -> None:
    """The same ids in another scope stay there."""
    other = Scope("user", "u2")
    remember(filled.shards, other, [turn(other, "travel0", "lisbon train", session="travel")], filled.embedder)
    assert len(filled.retriever().retrieve("lisbon train", other).retrieved) == 1
    assert len(filled.retrieve("lisbon train", top_sessions=1, chunks_per_session=50).retrieved) == 6
