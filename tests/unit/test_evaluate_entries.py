"""Labelled files with something wrong in them: refused by file, entry and field, before anything is put in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract import MAX_CONTENT_BYTES
from pipeline.errors import ConfigError
from pipeline.records import Turn
from tests.commands import CommandLine
from workers.evaluate import context, datasets

TOLD = {"role": "user", "content": "The harbour is in Porto.", "has_answer": True}
UTC_DATE = "2023/05/20 (Sat) 02:21"
FAR_DATE = "9999/12/31 (Fri) 23:59"
MISSING = object()


def written(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps(entries))
    return path


def longmemeval(**fields: Any) -> dict[str, Any]:
    entry = {
        "question_id": "q1",
        "question_type": "single",
        "question": "Where is the harbour?",
        "answer": 7,
        "question_date": UTC_DATE,
        "haystack_session_ids": ["a", "b"],
        "haystack_dates": [UTC_DATE] * 2,
        "haystack_sessions": [[TOLD], []],
        "answer_session_ids": ["a"],
    }
    return {name: value for name, value in (entry | fields).items() if value is not MISSING}


def locomo(**fields: Any) -> dict[str, Any]:
    said = [{"speaker": "Ana", "dia_id": "D1:1", "text": "The harbour is in Porto."}]
    entry: dict[str, Any] = {
        "sample_id": "c1",
        "conversation": {"session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": said},
        "qa": [asked()],
    }
    return entry | fields


def asked(**fields: Any) -> dict[str, Any]:
    return {"question": "Where?", "evidence": ["D1:1"], "category": 1, **fields}


def turn(**fields: Any) -> dict[str, Any]:
    return {"haystack_sessions": [[], [TOLD, TOLD | fields]]}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"haystack_sessions": None}, "haystack_sessions: "),
        ({"haystack_sessions": {"a": []}}, "haystack_sessions: "),
        ({"haystack_sessions": [{"session": [TOLD]}, []]}, r"haystack_sessions\.0: .* list"),
        ({"haystack_sessions": [[None], []]}, r"haystack_sessions\.0\.0: is no JSON object"),
        ({"haystack_sessions": [["hi"], []]}, r"haystack_sessions\.0\.0: is no JSON object"),
        ({"haystack_session_ids": 5}, "haystack_session_ids: .* list"),
        ({"haystack_session_ids": ["a"]}, "haystack_session_ids: has 1 for 2"),
        ({"haystack_dates": 5}, "haystack_dates: .* list"),
        ({"haystack_dates": [UTC_DATE]}, "haystack_dates: has 1 for 2"),
        ({"haystack_dates": [UTC_DATE, "20 May"]}, r"haystack_dates\.1: '20 May' is no date"),
        ({"haystack_dates": [UTC_DATE, FAR_DATE]}, r"haystack_dates\.1: .*1900-2199"),
        ({"question_date": FAR_DATE}, "question_date: .*1900-2199"),
        ({"answer_session_ids": 7}, "answer_session_ids: .* list"),
        ({"answer_session_ids": "a"}, "answer_session_ids: .* list"),
        ({"question": " "}, "question: is blank"),
        ({"question": None}, "question: .* string"),
        ({"question": MISSING}, "question: is missing"),
        ({"question": "a\x00"}, "question: holds a NUL"),
        (turn(has_answer="false"), r"haystack_sessions\.1\.1\.has_answer: .* boolean"),
        (turn(content=[{"text": "y"}]), r"haystack_sessions\.1\.1\.content: .* string"),
        (turn(role=5), r"haystack_sessions\.1\.1\.role: .* string"),
        (turn(role="two words"), r"haystack_sessions\.1\.1: role: "),
        (turn(content="y" * (MAX_CONTENT_BYTES + 1)), r"haystack_sessions\.1\.1: content: has 1048577 bytes"),
    ],
)
def test_a_wrong_field_of_longmemeval_is_named(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    """Read as something else it would give a figure, or a traceback an hour later."""
    assert len(datasets.load(written(tmp_path / "good.json", longmemeval()), "longmemeval").questions) == 1
    path = written(tmp_path / "x.json", longmemeval(question_id="q0"), longmemeval(**fields))
    with pytest.raises(ConfigError, match=rf"x\.json, element 2, q1: {told}"):
        datasets.load(path, "longmemeval")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"qa": 5}, "qa: .* list"),
        ({"qa": {"a": 1}}, "qa: .* list"),
        ({"qa": [asked(), "x"]}, r"qa\.1: is no JSON object"),
        ({"qa": [asked(evidence="D1:1")]}, r"qa\.0\.evidence: .* list"),
        ({"qa": [asked(evidence=5)]}, r"qa\.0\.evidence: .* list"),
        ({"qa": [asked(evidence=[5])]}, r"qa\.0\.evidence\.0: .* string"),
        ({"qa": [asked(category="5")]}, r"qa\.0\.category: .* integer"),
        ({"qa": [asked(category=[1])]}, r"qa\.0\.category: .* integer"),
        ({"qa": [asked(category=6)]}, r"qa\.0\.category: .* 5"),
        ({"qa": [asked(question=" ")]}, r"qa\.0\.question: is blank"),
        ({"conversation": []}, "conversation: .* dictionary"),
    ],
)
def test_a_wrong_field_of_locomo_is_named(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    """A category "5" counted in the mean, and evidence that was a text was joined letter by letter."""
    path = written(tmp_path / "x.json", locomo(sample_id="c0"), locomo(**fields))
    with pytest.raises(ConfigError, match=rf"x\.json, element 2, c1: {told}"):
        datasets.load(path, "locomo")


def test_a_turn_of_locomo_that_cannot_go_in_is_named(tmp_path: Path) -> None:
    """Left out, it would be evidence that nobody can find."""
    said = [{"speaker": "Ana", "dia_id": f"D1:{i}", "text": text} for i, text in ((1, "hello"), (2, None))]
    conversation = {"session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": said}
    path = written(tmp_path / "x.json", locomo(conversation=conversation))
    with pytest.raises(ConfigError, match=r"x\.json, c1, session_1, D1:2: text: is missing"):
        datasets.load(path, "locomo")


@pytest.mark.parametrize(("form", "entry"), [("longmemeval", longmemeval()), ("locomo", locomo())])
def test_an_id_that_occurs_twice_is_refused(tmp_path: Path, form: str, entry: dict[str, Any]) -> None:
    """What one says would answer the other's questions."""
    with pytest.raises(ConfigError, match=r"element 2, .*_id: element 1 has the same"):
        datasets.load(written(tmp_path / "x.json", entry, entry), form)


def test_what_is_optional_may_be_absent(tmp_path: Path) -> None:
    """Or null: one's own questions have no dates and no names of sessions."""
    optional = ("question_type", "question_date", "haystack_session_ids", "haystack_dates", "answer_session_ids")
    entries = [longmemeval(**dict.fromkeys(optional, absent)) for absent in (MISSING, None)]
    for entry in entries:
        dataset = datasets.load(written(tmp_path / "x.json", entry), "longmemeval")
        assert [question.turns for question in dataset.questions] == [{"session_0_1"}]


def test_sessions_of_one_id_stay_apart(tmp_path: Path) -> None:
    """Even from one whose id looks like the number another was given."""
    entry = longmemeval(
        haystack_session_ids=["a", "a#2", "a"], haystack_sessions=[[TOLD]] * 3, haystack_dates=[UTC_DATE] * 3
    )
    told = datasets.load(written(tmp_path / "x.json", entry), "longmemeval").events()
    assert [event.session_id for event in told if isinstance(event, Turn)] == ["a", "a#2", "a#3"]


def test_a_mean_of_nothing_is_refused(tmp_path: Path, turnstream: CommandLine) -> None:
    """A comparison of trick questions alone was an empty table, without a word why."""
    path = written(tmp_path / "x.json", locomo(qa=[asked(category=5)]))
    with pytest.raises(ConfigError, match=r"x\.json: none of its questions is in the mean, all are adversarial"):
        context.compare(path, form="locomo")
    for verb in (["evaluate", "--compare-beside"], ["fit", "--output", str(tmp_path / "mine.toml")]):
        ended = turnstream(*verb, str(path), "--format", "locomo")
        assert (ended.code, "all are adversarial" in ended.err) == (2, True)
