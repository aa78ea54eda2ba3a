"""Measures against cases worked out by hand, data sets as their authors wrote them, and a report that can be read."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.records import Scope, SessionClosed, Turn
from workers.evaluate import datasets, metrics
from workers.evaluate.html import page
from workers.evaluate.run import Answer, Elsewhere, evaluation

RANKED = ["a", "b", "c", "d"]


# --- measures


def test_shares_of_what_is_wanted() -> None:
    """Of a, d and x: one of three in the first two, two of three in all four, never all."""
    wanted = {"a", "d", "x"}
    assert [metrics.share_found(RANKED, wanted, k) for k in (1, 2, 4, 9)] == pytest.approx(
        [1 / 3, 1 / 3, 2 / 3, 2 / 3]
    )
    assert [metrics.all_found(RANKED, wanted, 9), metrics.all_found(RANKED, {"a", "d"}, 4)] == [0, 1]
    assert [metrics.any_found(RANKED, {"d"}, k) for k in (3, 4)] == [0, 1]


def test_reciprocal_rank_is_that_of_the_first() -> None:
    """Third of four; nothing found is 0."""
    assert metrics.reciprocal_rank(RANKED, {"c", "d"}) == pytest.approx(1 / 3)
    assert metrics.reciprocal_rank(RANKED, {"x"}) == 0


def test_ndcg_is_discounted_by_place_and_compared_with_the_best() -> None:
    """Found at places 1 and 4 of 2 wanted: (1 + 1/log2 5) / (1 + 1/log2 3) = 1.430677 / 1.630930."""
    assert metrics.ndcg(RANKED, {"a", "d"}, 10) == pytest.approx(1.4306766 / 1.6309298)
    assert metrics.ndcg(RANKED, {"a", "d"}, 3) == pytest.approx(1 / 1.6309298)
    assert metrics.ndcg(RANKED, {"a", "b", "c"}, 2) == 1, "no more than two of three fit"


def test_longmemeval_discounts_the_second_place_like_the_first() -> None:
    """Its own formula: relevance[0] + sum(relevance[1:] / log2(2, 3, …)), so places 1 to 4 weigh 1, 1, .63, .5."""
    weights = [metrics.longmemeval_discount(place) for place in (1, 2, 3, 4)]
    assert weights == pytest.approx([1, 1, 1 / math.log2(3), 0.5])
    found = metrics.ndcg(RANKED, {"b", "d"}, 10, discount=metrics.longmemeval_discount)
    assert found == pytest.approx((1 + 0.5) / (1 + 1))


def test_percentiles_are_interpolated() -> None:
    """Of 10, 20, 30, 40 the median is 25, and 95 of 100 lie under 38.5."""
    assert metrics.percentile([40, 10, 30, 20], 50) == 25
    assert metrics.percentile([40, 10, 30, 20], 95) == pytest.approx(38.5)
    assert metrics.percentile([], 95) == 0


def test_a_calibrated_score_has_no_error() -> None:
    """Of four hits scored 0.25 one is evidence; of two scored 0.9 none is: 0.9 too much for a third."""
    scored = [(0.25, True)] + [(0.25, False)] * 3 + [(0.9, False)] * 2
    bins = metrics.calibration(scored)
    assert [(part.n, round(part.score, 3), part.share) for part in bins] == [(4, 0.25, 0.25), (2, 0.9, 0)]
    assert metrics.calibration_error(bins) == pytest.approx(0.9 * 2 / 6)
    assert len(metrics.calibration([(0.0, False), (1.0, True)])) == 2


# --- data sets


def locomo(path: Path) -> Path:
    conversation = {
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [{"speaker": "Ana", "dia_id": f"D1:{i}", "text": f"text {i}"} for i in (1, 2)],
        "session_2_date_time": "1:56 pm on 9 May, 2023",
        "session_2": [{"speaker": "Ben", "dia_id": "D2:1", "text": "the zeppelin"}],
    }
    asked = [
        {"question": "both?", "evidence": ["D1:2; D2:1"], "category": 1},
        {"question": "odd?", "evidence": ["D:2:01", "D9:9"], "category": 4},
        {"question": "gone?", "evidence": ["D9:9"], "category": 4},
        {"question": "never?", "evidence": [], "category": 2},
        {"question": "trick?", "evidence": ["D1:1"], "category": 5},
    ]
    path.write_text(json.dumps([{"sample_id": "conv-1", "conversation": conversation, "qa": asked}]))
    return path


def test_locomo_questions_know_their_evidence(tmp_path: Path) -> None:
    """Evidence is written in three ways, some of it points nowhere; the trick questions are not in the mean."""
    found = datasets.load(locomo(tmp_path / "x.json"), "locomo").questions
    assert [(q.text, sorted(q.turns), sorted(q.sessions), q.category, q.is_counted) for q in found] == [
        ("both?", ["D1:2", "D2:1"], ["session_1", "session_2"], "multi-hop", True),
        ("odd?", ["D2:1"], ["session_2"], "single-hop", True),
        ("trick?", ["D1:1"], ["session_1"], "adversarial", False),
    ]


def longmemeval(path: Path, **fields: Any) -> Path:
    said = {"role": "user", "content": "I bought a zeppelin"}
    entry = {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "What did I buy?",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ["s1", "s2", "answer_1", "s1"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21"] * 4,
        "haystack_sessions": [
            [{"role": "user", "content": "hello"}],
            [],
            [{**said, "has_answer": True}, {"role": "assistant", "content": "Nice", "has_answer": False}],
            [{"role": "user", "content": " "}, {"role": "user", "content": "again"}],
        ],
        "answer_session_ids": ["answer_1"],
    }
    path.write_text(json.dumps([entry | fields, {**entry, "question_id": "q2_abs"}]))
    return path


def test_longmemeval_follows_its_protocol(tmp_path: Path) -> None:
    """Questions without an answer are not asked; empty sessions and blank turns do no harm."""
    dataset = datasets.load(longmemeval(tmp_path / "x.json"), "longmemeval")
    (question,) = dataset.questions
    assert (question.scope, question.turns, question.sessions) == (Scope("user", "q1"), {"answer_1_1"}, {"answer_1"})
    assert question.asked_at == "2023-05-30T23:40:00+00:00"
    assert dataset.discount(2) == 1
    told = list(dataset.events())
    turns = [event for event in told if isinstance(event, Turn)]
    assert [(t.turn_id, t.session_id, t.role) for t in turns] == [
        ("s1_1", "s1", "user"),
        ("answer_1_1", "answer_1", "user"),
        ("answer_1_2", "answer_1", "assistant"),
        ("s1#2_2", "s1#2", "user"),
    ]
    assert [e.session_id for e in told if isinstance(e, SessionClosed)] == ["s1", "answer_1", "s1#2"]
    assert len({event.event_id for event in told}) == len(told)


def test_a_question_without_evidence_is_not_asked(tmp_path: Path) -> None:
    """No share of nothing can be found."""
    path = longmemeval(tmp_path / "x.json", haystack_sessions=[[{"role": "user", "content": "hello"}], [], [], []])
    with pytest.raises(ConfigError, match="no question with evidence"):
        datasets.load(path, "longmemeval")


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    """The wrong --format must not end in a traceback or an empty table."""
    with pytest.raises(ConfigError, match=r"question_id: is missing; .* is it of the format longmemeval"):
        datasets.load(locomo(tmp_path / "x.json"), "longmemeval")
    with pytest.raises(ConfigError, match="is it of the format locomo"):
        datasets.load(longmemeval(tmp_path / "y.json"), "locomo")
    with pytest.raises(ConfigError, match="choose one of locomo, longmemeval"):
        datasets.load(tmp_path / "x.json", "beir")


# --- the report


def test_figures_are_means_by_category_and_overall(tmp_path: Path) -> None:
    """The trick question counts among all categories alone."""
    dataset = datasets.load(locomo(tmp_path / "x.json"), "locomo")
    both, odd, trick = dataset.questions
    answers = [
        Answer(both, ["D1:2", "D1:1"], ["session_1"], [(0.8, True), (0.2, False)], 4.0),
        Answer(odd, ["D2:1"], ["session_2", "session_1"], [(0.9, True)], 2.0),
        Answer(trick, [], [], [], 3.0),
    ]
    found = evaluation(dataset, "fused", answers)
    assert list(found.figures) == ["adversarial", "multi-hop", "single-hop", "all categories", "overall"]
    assert found.figures["multi-hop"].share[1] == 0.5
    assert (found.figures["overall"].share[10], found.figures["overall"].all[10]) == (0.75, 0.5)
    assert found.figures["all categories"].any[1] == pytest.approx(2 / 3)
    assert found.figures["overall"].session_share[5] == 0.75
    assert (found.latency_ms["p50"], sum(part.n for part in found.calibration)) == (3.0, 3)
    assert evaluation(dataset, "session", answers).calibration == [], "its score is no probability"
    assert json.loads(json.dumps(found.to_json()))["figures"]["overall"]["mrr"] == 1


class Balanced(HTMLParser):
    """Notes tags that are not closed in order, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.seen.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's
        """Note it."""
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        """Compare it with the last one opened."""
        assert self.open.pop() == tag


def test_the_report_is_one_whole_page(tmp_path: Path) -> None:
    """It is mailed around: it fetches nothing, and a name in it stays a name."""
    dataset = datasets.load(locomo(tmp_path / "<b>.json"), "locomo")
    answers = [
        Answer(question, ["D1:2"], ["session_1"], [(0.8, True), (0.3, False)], 4.0) for question in dataset.questions
    ]
    written = page(evaluation(dataset, "fused", answers, n_turns=3, ingest_per_s=9, elsewhere=Elsewhere(0, 1, 2)))
    reader = Balanced()
    reader.feed(written)
    assert reader.open == []
    assert {"svg", "polyline", "rect", "circle", "table"} <= reader.seen
    assert "&lt;b&gt;.json" in written
    assert "nan" not in written
    assert page(evaluation(dataset, "session", answers[:1]))
