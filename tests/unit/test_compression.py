"""Shortened texts keep what no other words can stand for, and as much of the rest as was asked."""

from __future__ import annotations

import random

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.context.condensing import compression, protected
from retrieval.context.condensing.compression import MARK, n_bytes, shorten, vocabulary
from retrieval.context.layout.cutting import cut
from tests.planted_facts import planted, told

KEPT = [
    ("It rotates every 90 days, as far as I can remember it.", ["90 days"]),
    ("The whole thing weighs about 2.5 kg and it cost € 40,50 in the end.", ["2.5 kg", "€ 40,50"]),
    ("We really have two kids and well over a dozen chickens here.", ["two kids", "dozen chickens"]),
    ("We could perhaps meet on 3 May 2024 or otherwise last week already.", ["3 May 2024", "last week"]),
    ("The order was called ORD-7731 by them, with v2.4 and #112 beside it.", ["ORD-7731", "v2.4", "#112"]),
    ("You find it at https://a.example/x?y=1 or else somewhere around there.", ["https://a.example/x?y=1"]),
    (
        "It is stored under /var/lib/data, beside config/settings.toml, I think.",
        ["/var/lib/data", "config/settings.toml"],
    ),
    (
        "Just run `git push --force` and then load_settings() once more please.",
        ["`git push --force`", "load_settings()"],
    ),
    ("The value maxRetries goes together with --dry-run in such cases.", ["maxRetries", "--dry-run"]),
    ("So then we went for a walk with Anna Berg in Lyon one evening.", ["Anna Berg", "Lyon"]),
    (
        "All things considered, it is not safe, and as it seems, nobody ever checked.",
        ["it is not safe", "nobody ever checked"],
    ),
    ("After all that talk, the kitchen will not be painted green.", ["the kitchen will not be painted green"]),
    (
        "It is not, as far as we know, safe there. Thank you for the nice talk.",
        ["It is not, as far as we know, safe there"],
    ),
    ("They have three very old dogs in the garden behind it.", ["three very old dogs"]),
    ("Well, it doesn't work like that, as you can certainly see.", ["doesn't work"]),
    ("After a lot of talk we decided to keep the old boiler, which was fine.", ["we decided to keep the old boiler"]),
    ("Please write to ana@example.org or else to @ben about such things.", ["ana@example.org", "@ben"]),
    ("今天天气很好，大家都很开心。我不喜欢咖啡。真的非常高兴。", ["我不喜欢咖啡"]),
    ("今天天气很好，大家都很开心。房租是三千块。真的非常高兴。", ["房租是三千块"]),
]
COMMON = (
    "the",
    "a",
    "of",
    "in",
    "and",
    "it",
    "is",
    "that",
    "was",
    "for",
    "on",
    "as",
    "with",
    "they",
    "be",
    "at",
    "this",
)
HANZI = "我们去公园散步天气好开心朋友吃饭看书喝茶买菜回家"


def prose(seed: int) -> str:
    """Make sentences of common and of made-up words."""
    chance = random.Random(seed)
    rare = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 11))) for _ in range(60)]
    words = [chance.choice(COMMON if chance.random() < 0.4 else rare) for _ in range(chance.randint(80, 200))]
    marks = [chance.choices(["", ",", "."], [8, 1, 1])[0] for _ in words]
    return " ".join(word + mark for word, mark in zip(words, marks, strict=True))


def chinese(seed: int) -> str:
    chance = random.Random(seed)
    return "，".join("".join(chance.choices(HANZI, k=chance.randint(3, 9))) for _ in range(chance.randint(60, 90)))


SEEDS = st.integers(0, 2**32)
PROSE = SEEDS.map(prose)
CHINESE = SEEDS.map(chinese)
SHARES = st.sampled_from([0.8, 0.5, 0.25])
ANY_TEXT = st.text(max_size=200) | PROSE | CHINESE


def alone(text: str, share: float, objective: str = "") -> str:
    return shorten(text, share, vocabulary([text]), objective)


@pytest.mark.parametrize(("text", "kept"), KEPT)
@pytest.mark.parametrize("share", [0.25, 0.0])
def test_what_nothing_else_can_stand_for_stays(text: str, kept: list[str], share: float) -> None:
    """Whatever the share: a memory that lost the number, the name or the "not" would tell something else."""
    shortened = alone(text, share)
    assert [one for one in kept if one not in shortened] == []
    assert n_bytes(shortened) < n_bytes(text), "the rest is left out"


def test_spans_tell_why_they_stay() -> None:
    """The kinds are those of the table in the module."""
    text = "We decided on `x`. See /a/b, v2; 3 May; 90 days; not sure. I met Anna."
    kinds = [(text[span.start : span.stop], span.kind) for span in protected.spans(text)]
    assert kinds == [
        ("We decided on `x`", "decision"),
        ("/a/b", "address"),
        ("v2", "id"),
        ("3 May", "date"),
        ("90 days", "number"),
        ("not sure", "negation"),
        ("Anna", "name"),
    ]


@settings(max_examples=50, deadline=None)
@given(PROSE | CHINESE, SHARES)
def test_the_share_is_held(text: str, share: float) -> None:
    """Within five points; of texts long enough that one word more or less is not more than that."""
    kept = n_bytes(alone(text, share)) / n_bytes(text)
    assert abs(kept - max(share, compression.protected_share([text]))) <= 0.05


@settings(max_examples=50, deadline=None)
@given(ANY_TEXT, SHARES, SHARES)
def test_compressing_twice_is_compressing_once(text: str, share: float, again: float) -> None:
    """A block that is condensed on each call would wear away to nothing."""
    once = alone(text, share)
    assert alone(once, share) == once
    if compression.is_shortened(once):
        assert alone(once, again) == once


@settings(max_examples=50, deadline=None)
@given(ANY_TEXT, SHARES)
def test_nothing_is_written_that_was_not_said(text: str, share: float) -> None:
    """What is left are its own words in their order, whole; no letter as people see it is cut."""
    shortened = alone(text, share)
    assert n_bytes(shortened) <= n_bytes(text)
    letters = regex.findall(r"\X", text)
    left = regex.findall(r"\X", shortened.removesuffix(MARK))
    said = iter(letters)
    assert all(letter in said for letter in left if not letter.isspace())


def test_fillers_go_first_and_whole_clauses_next() -> None:
    """What is left can still be read."""
    text = "Oh yeah, sure, the boiler in the cellar is leaking again, and it was really very nice of you all."
    assert alone(text, 0.5) == f"the boiler in the cellar is leaking again. {MARK}"


def test_words_of_the_objective_stay() -> None:
    """Of two halves the one that is asked about is kept."""
    text = "the gardener planted roses behind the wall. the plumber fixed a pipe under the floor."
    assert "plumber" in alone(text, 0.5, "who fixed the pipe?")
    assert "gardener" in alone(text, 0.5, "who planted the roses?")


def test_rare_words_stay_rather_than_common_ones() -> None:
    """A word that every text has tells one from another the least."""
    texts = [
        f"the morning report says something about {word} in the morning" for word in ("otters", "badgers", "foxes")
    ]
    known = vocabulary(texts)
    assert all(texts[i].split()[6] in shorten(texts[i], 0.4, known) for i in range(3))


def test_what_a_session_comes_back_to_is_as_good_as_what_is_said_once() -> None:
    """It is what people ask about: weighed by how few texts have it, the topic would go before any aside."""
    others = [f"note {i} about item {i}" for i in range(20)]
    texts = ["yoga became relaxing despite knees aching", "yoga suits beginners", "yoga needs patience", *others]
    assert "yoga" in shorten(texts[0], 0.5, vocabulary(texts))
    assert "yoga" not in shorten(texts[0], 0.5, vocabulary([*texts, *["yoga again"] * 9]))


def test_code_is_kept_as_it_stands() -> None:
    """Lines and indentation of code mean something."""
    code = "```\ndef f():\n    return  1\n```"
    assert code in alone(
        f"This is more or less what I would write in such a case:\n{code}\nI hope it helps a bit.", 0.3
    )


@pytest.mark.parametrize("text", ["", "   ", "ok", MARK, f"a b {MARK}", "e\u0301" * 300, "x" * 5_000, "\n\n", "…"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_odd_texts_do_no_harm(text: str, share: float) -> None:
    """One long word cannot be cut, and nothing cannot be shortened."""
    assert alone(text, share) in {text, MARK}


def test_facts_survive_half_of_the_text() -> None:
    """Within three points of the whole text, and above plain cuts at the same length."""
    texts = [text for text, _ in planted()]
    known = vocabulary(texts)
    cuts = [cut(text, 200) for text in texts]
    share = sum(map(n_bytes, cuts)) / sum(map(n_bytes, texts))
    halves = [shorten(text, 0.5, known) for text in texts]
    as_long_as_cuts = [shorten(text, share, known) for text in texts]
    assert sum(map(n_bytes, halves)) == pytest.approx(0.5 * sum(map(n_bytes, texts)), rel=0.1)
    assert sum(map(n_bytes, as_long_as_cuts)) == pytest.approx(sum(map(n_bytes, cuts)), rel=0.05)
    assert told(texts) == 1
    assert told(halves) >= 0.97
    assert told(as_long_as_cuts) > told(cuts) + 0.3


def test_of_a_very_long_text_the_beginning_is_read() -> None:
    """A pasted log of a megabyte would take seconds; what is left of it is what it began with, and says so."""
    line = "the gardener planted roses behind the wall of number 7. "
    text = line * 20_000
    for share in (0.9, 0.02, 0.0):
        shortened = alone(text, share)
        assert compression.is_shortened(shortened)
        assert n_bytes(shortened) <= compression.MAX_CHARS + 10
        assert not set(shortened.split()) - {*line.split(), "7.", MARK}, "no word is cut"
    assert alone(text, 1.0) == text
    assert 0 < compression.protected_share([text]) < 0.01


def test_what_is_kept_of_texts_read_has_a_bound() -> None:
    """Long texts took three quarters of a gigabyte; short ones are found again."""
    kept = compression._UnitsKept(1_000)
    first = kept.of("the first of them")
    assert kept.of("the first of them") is first
    for i in range(50):
        kept.of(f"{i} " * 100)
        assert kept.n_chars <= 1_000
    assert kept.of("the first of them") is not first
    kept.of("x " * 1_000)
    assert kept.n_chars == 0
