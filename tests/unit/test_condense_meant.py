"""Sentences that look alike: one tells of its speaker, the other of a wish, a game, somebody else or a moment."""

from __future__ import annotations

import pytest

from pipeline.condense.facts import facts_in
from pipeline.condense.profile import Stated, resolve

NO_FACTS = [
    # clauses that begin before the statement, or after it
    "Until I live in Madrid I'm not at ease.", "While I work at Initech nothing gets done.",
    "As soon as I moved to Vienna it rained.", "By the time I live in Malmö you will be gone.",
    "The moment I'm vegan, you may laugh.", "I was happier when I lived and I moved to Turin only to leave.",
    "I live in Ghent once the papers are signed.", "I work for Initech, unless they find out.",
    # negations after the verb or the value
    "I speak hardly French.", "I speak little Dutch these days.", "I work at Initech no longer than I must.",
    "I live in neither Rome nor Pisa.", "I'm a fan of nobody.", "I live in Porto — not.",
    # what others say or think, or one says oneself
    "Everybody will think I live in Quito.", "I told the landlord I work for Siemens.", "I bet I live in Minsk soon.",
    "They assume I work at Initech.", "I pretended my name is Bond.", "The form has that I live in Kyiv.",
    "Rumour has it, I moved to Paris.", "In your opinion, I live in Bonn.", "You believe my dog is called Fido.",
    # games, dreams, other times
    "In my dream I live in Venice.", "I live in Gotham in this story.", "In our campaign, I'm a doctor.",
    "Some day I live in Tokyo.", "In two years, I live in Lima.", "I live in Delhi next winter.",
    "Back then, I work at Aldi.",
    # no places, no employers, no tastes
    "I live in constant dread.", "I live in the moment.", "I moved to Terraform.", "We moved from Jenkins to GitHub.",
    "I moved to QA.", "I moved to adjourn.", "I work at noon.", "I work for exposure.", "I work for my own sanity.",
    "i work for fun", "i live in denial", "I work at 9 AM.", "I work for Christmas.", "I moved to Phase 2.",
    "I live in Oslo I guess it shows.", "I prefer the second draft.", "I like option B.", "I love your answer.",
    "I live in St. Louis",
    "I'm allergic to stupidity.", "I'm allergic to commitment lol", "My head is spinning.", "My flight is delayed.",
    "I love hiking hahaha",
    # Chinese
    "我女儿今年五岁，今年5岁", "我有个弟弟，今年12岁", "我叫她阿姨", "我叫外卖", "我在晚上工作", "我在努力工作",
    "明年我住在东京", "你觉得我住在广州", "我住在武汉的时候很年轻", "我搬到成都之前很开心",
    "我是一个很懒的人", "我爱你", "游戏里我住在月球",
]  # fmt: skip
FACTS = {
    "Hi, I live in Bergen and I work for Equinor.": [("residence", "Bergen"), ("employer", "Equinor")],
    "Currently I live in Cape Town.": [("residence", "Cape Town")],
    "I live in the Netherlands": [("residence", "the Netherlands")],
    "I live in Rio de Janeiro these days": [("residence", "Rio de Janeiro")],
    "Because I live in Quebec, I speak French.": [("residence", "Quebec"), ("language", "French")],
    "Since I moved to Graz, all is well.": [("residence", "Graz")],
    "In 2019 I moved to Tallinn.": [("residence", "Tallinn")],
    "Two years ago we relocated from Bonn to Kiel.": [("residence", "Kiel")],
    "I live in Ghent, not Bruges.": [("residence", "Ghent")],
    "I live in Utrecht, if you must know.": [("residence", "Utrecht")],
    "i live in buenos aires": [("residence", "buenos aires")],
    "i moved to beijing": [("residence", "beijing")],
    "My husband and I live in Izmir": [("residence", "Izmir")],
    "I moved to NYC": [("residence", "NYC")],
    "I work at the University of Vienna.": [("employer", "the University of Vienna")],
    "I work for a bank.": [("employer", "a bank")],
    "i work at spotify": [("employer", "spotify")],
    "Yes, I work for Marks & Spencer": [("employer", "Marks & Spencer")],
    "I work as a plumber.": [("occupation", "plumber")],
    "I speak some Turkish": [("language", "Turkish")],
    "I'm allergic to penicillin": [("allergy", "penicillin")],
    "I love Italian food": [("likes", "Italian food")],
    "I prefer tea over coffee": [("likes", "tea over coffee")],
    "I really enjoy swimming when it's hot": [("likes", "swimming")],
    "To be honest, I hate mushrooms.": [("dislikes", "mushrooms")],
    "My hobby is climbing": [("hobby", "climbing")],
    "You know I'm vegetarian": [("diet", "vegetarian")],
    "btw I'm 41": [("age", "41")],
    "I'm from Nairobi": [("home town", "Nairobi")],
    "Next month we're flying to Oslo on 3 May": [("plan", "flying to Oslo on 3 May")],
    "I no longer live in Oslo.": [("no longer residence", "Oslo")],
    "I don't live in Riga any more": [("no longer residence", "Riga")],
    "I work for Nokia no longer.": [("no longer employer", "Nokia")],
    "I quit my job at Lidl": [("no longer employer", "Lidl")],
    "We moved away from Leeds": [("no longer residence", "Leeds")],
    "I'm no longer vegan": [("no longer diet", "vegan")],
    "我叫李雷，今年28岁": [("name", "李雷"), ("age", "28")],
    "我今年35岁": [("age", "35")],
    "我在北京工作": [("work place", "北京")],
    "我在腾讯工作": [("employer", "腾讯")],
    "我是一名程序员": [("occupation", "程序员")],
    "其实我住在杭州": [("residence", "杭州")],
    "我不再住在南京": [("no longer residence", "南京")],
    "我女儿叫小红": [("女儿", "小红")],
}


@pytest.mark.parametrize("content", NO_FACTS)
def test_what_only_looks_like_a_statement_makes_no_fact(content: str) -> None:
    """A wrong fact is told to the user's face for years."""
    assert [(fact.key, fact.value) for fact in facts_in(content)] == []


@pytest.mark.parametrize(("content", "facts"), FACTS.items())
def test_a_plain_statement_is_found_all_the_same(content: str, facts: list[tuple[str, str]]) -> None:
    """Else all of the above would be easy."""
    assert sorted((fact.key, fact.value) for fact in facts_in(content)) == sorted(facts)


def stated(*contents: str) -> list[Stated]:
    return [
        Stated(time_ms=at, index=at, turn_id=f"t{at}", ordinal=ordinal, session_id="s", subject="", key=fact.key,
               value=fact.value, confidence=fact.confidence)
        for at, content in enumerate(contents)
        for ordinal, fact in enumerate(facts_in(content))
    ]  # fmt: skip


def test_what_holds_no_longer_is_ended_and_nothing_else_is() -> None:
    """Who left a town and does not say for where lives nowhere that is known."""
    [left] = resolve(stated("I live in Oslo.", "I no longer live in Oslo."))
    assert left.superseded_by is not None
    assert left.superseded_by.turn_id == "t1"
    [kept] = resolve(stated("I live in Oslo.", "I don't live in Rome any more."))
    assert kept.superseded_by is None
    back = resolve(stated("I live in Oslo.", "I no longer live in Oslo.", "I live in Oslo."))
    assert [fact.superseded_by is None for fact in back] == [False, True]
