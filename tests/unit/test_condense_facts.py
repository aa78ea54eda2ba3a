"""What users state about themselves, and what only looks like it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.condense.facts import facts_in

STATED = {
    "I live in Oslo.": [("residence", "Oslo")],
    "btw i moved to lyon last month, love it": [("residence", "lyon")],
    "We moved from Oslo to Lyon in 2024.": [("residence", "Lyon")],
    "As I told you, I live in New York City now": [("residence", "New York City")],
    "I work as a nurse at St. Mary's hospital": [("occupation", "nurse")],
    "I'm a software engineer at Google": [("occupation", "software engineer")],
    "I work for Acme Corp.": [("employer", "Acme Corp")],
    "My name is Jürgen Müller": [("name", "Jürgen Müller")],
    "my wife Anna and I have two kids": [("wife", "Anna"), ("children", "two kids")],
    "We have a cat named Miso": [("cat", "Miso"), ("pets", "a cat")],
    "My dog is called Rex!": [("dog", "Rex")],
    "I love hiking": [("likes", "hiking")],
    "I don't like cilantro.": [("dislikes", "cilantro")],
    "My favourite colour is blue": [("favorite colour", "blue")],
    "my birthday is on 5 March": [("birthday", "5 March")],
    "I'm 34 years old": [("age", "34")],
    "I speak English, French and German": [("language", "English"), ("language", "French"), ("language", "German")],
    "I'm allergic to peanuts and shellfish": [("allergy", "peanuts"), ("allergy", "shellfish")],
    "I have a nut allergy": [("allergy", "nut")],
    "I'm vegan": [("diet", "vegan")],
    "I don't eat pork": [("does not eat", "pork")],
    "I'm flying to Porto on 3 May": [("plan", "flying to Porto on 3 May")],
    "I have a dentist appointment next Tuesday": [("plan", "a dentist appointment next Tuesday")],
    "My car is a red Fiat": [("car", "a red Fiat")],
    "my email is a.b@c.org": [("email", "a.b@c.org")],
    "I don't like Oslo, but I live in Oslo": [("dislikes", "Oslo"), ("residence", "Oslo")],
    "我住在上海。": [("residence", "上海")],
    "我搬到了北京": [("residence", "北京")],
    "我叫小明，今年30岁": [("name", "小明"), ("age", "30")],
    "我对花生过敏": [("allergy", "花生")],
    "我不喜欢香菜": [("dislikes", "香菜")],
    "我的狗叫旺财": [("狗", "旺财")],
}
NOT_MEANT = [
    "I don't live in Oslo.", "I never moved to Lyon", "It's not true that I live in Paris",  # negations
    "Do I live in Oslo?", "I live in Oslo?", "Where should I say I live in?", "我住在哪里？",
    "我住在上海吗",  # questions
    "If I lived in Oslo I would ski", "Imagine I live in Rome", "I wish I lived in Rome", "Suppose I moved to Rome",
    "I would love to live in Japan", "Maybe I live in Rome", "I'd like a table for two",
    "如果我住在北京",  # suppositions
    'She said "I live in Oslo"', "Anna says I live in Oslo too often", "Anna told me: I moved to Rome",
    "My brother wrote that I live in Rome", "> I live in Rome", "Bob: I live in Rome", "他说我住在北京",  # others
    "Translate: I live in Rome", "Write a story: I live in a castle", "```\nI live in Rome\n```", "I live in `Rome`",
    "I live in fear", "I live in a small flat", "I'm 10 minutes late", "call me later",
    "my problem is that it breaks",
    "I used to live in Bergen", "I'm not vegan", "I like it", "我不住在上海", "I live in Oslo, just kidding",
    "", "I", "my", "Please fix this function.",
]  # fmt: skip


@pytest.mark.parametrize(("content", "facts"), STATED.items())
def test_what_a_user_states_is_found(content: str, facts: list[tuple[str, str]]) -> None:
    """By patterns that can be read: what one finds, anybody can look up."""
    assert sorted((fact.key, fact.value) for fact in facts_in(content)) == sorted(facts)


@pytest.mark.parametrize("content", NOT_MEANT)
def test_what_is_not_meant_makes_no_fact(content: str) -> None:
    """A wrong fact is told to the user's face; a missing one is asked for."""
    assert facts_in(content) == []


def test_a_line_with_the_speakers_own_name_is_his() -> None:
    """Transcripts name who speaks in the text itself."""
    assert facts_in("Bob: I live in Rome", speaker="Bob")[0].value == "Rome"
    assert facts_in("Ann: I live in Rome\nBob: I live in Pisa", speaker="Bob")[0].value == "Pisa"


def test_what_is_doubted_is_less_sure() -> None:
    """'I think' is no lie and no promise."""
    sure, unsure = facts_in("I live in Oslo")[0], facts_in("I think I live in Oslo")[0]
    assert unsure.confidence < sure.confidence


def test_two_facts_of_one_turn_are_both_kept_and_a_repetition_once() -> None:
    """People introduce themselves in one go."""
    found = facts_in("Hi! My name is Ada. I live in London. I live in London! I'm allergic to nuts.")
    assert [(fact.key, fact.value) for fact in found] == [
        ("name", "Ada"), ("residence", "London"), ("allergy", "nuts"),
    ]  # fmt: skip


@given(st.text(st.sampled_from("I my live in Oslo .?,'\"`\n我住在") | st.characters(codec="utf-8"), max_size=400))
@settings(max_examples=150, deadline=None)
def test_any_text_can_be_read(content: str) -> None:
    """Users paste what they like."""
    for fact in facts_in(content):
        assert fact.key.strip()
        assert fact.value.strip()
        assert 0 < fact.confidence <= 1


@pytest.mark.parametrize(
    "content",
    ["I live in " + "a " * 40_000, "my " * 50_000 + "is", "I " * 60_000, "'" * 100_000, "I have a " + "x" * 99_000],
)
def test_a_long_hostile_text_takes_no_time(content: str) -> None:
    """A pattern that goes back and forth would hold up a worker for ever."""
    started = time.process_time()
    facts_in(content)
    assert time.process_time() - started < 2.0
