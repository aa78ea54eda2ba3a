"""Strategy `adaptive`: how a session goes decides how much is kept, and relevance decides of what."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.settings import ContextSettings
from retrieval.context.condensing import compression, pacing, protected
from retrieval.context.condensing.pacing import INITIAL, RULES, SHARES, Degree, Level, Topic
from retrieval.context.entries.entry import Entry
from retrieval.context.layout import budget
from retrieval.context.protocol import Asked, Offer
from retrieval.context.strategies.adaptive import Adaptive, spread
from tests.planted_facts import planted, told

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
NO_VECTORS = np.zeros((0, 0), np.float32)

ROWS = """
engagement complexity topic    level
low        low        kept     aggressive
low        low        changed  aggressive
low        medium     kept     balanced
low        medium     changed  aggressive
low        high       kept     balanced
low        high       changed  balanced
medium     low        kept     balanced
medium     low        changed  aggressive
medium     medium     kept     balanced
medium     medium     changed  balanced
medium     high       kept     conservative
medium     high       changed  balanced
high       low        kept     balanced
high       low        changed  balanced
high       medium     kept     conservative
high       medium     changed  balanced
high       high       kept     conservative
high       high       changed  conservative
"""
TABLE = [tuple(row.split()) for row in ROWS.strip().splitlines()[1:]]
N_TOOLS = {"low": 0, "medium": 4, "high": 15}
LEVELS = st.sampled_from(list(Level))


def entry(number: int, objective: str, conclusion: str = "", **fields: object) -> Entry:
    made = Entry(
        entry_id=f"e{number}",
        session_id="s",
        time_ms=NOW_MS - (1_000 - number) * MINUTE_MS,
        objective=objective,
        conclusion=conclusion,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def asked(
    entries: Sequence[Entry], objective: str | None = None, *, level: str = "auto", max_tokens: int = 1_024
) -> Asked:
    return Asked(
        entries=entries,
        vectors=NO_VECTORS,
        objective=objective,
        objective_vector=None,
        now_ms=NOW_MS,
        settings=ContextSettings.model_validate({"compression_level": level}),
        max_tokens=max_tokens,
    )


def word(number: int) -> str:
    """Make words that do not even begin alike."""
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(3)) + "q"


def session_of(engagement: str, complexity: str, topic: str) -> list[Entry]:
    """Make a session whose last entry gives this verdict: pace, length and follow-ups, tools, and words of before."""
    n_words = 26 if engagement == "high" else 3
    gap_ms = 60 * MINUTE_MS if engagement == "low" else MINUTE_MS
    objectives = [" ".join(word(100 * number + i) for i in range(n_words)) for number in range(6)]
    if engagement == "high":
        objectives[2:5] = [f"{text} {objectives[1]}" for text in objectives[2:5]]
    if topic == "kept":
        objectives[5] = objectives[3]
    return [
        entry(number, objective, time_ms=NOW_MS + number * gap_ms, tools=("grep",) * N_TOOLS[complexity])
        for number, objective in enumerate(objectives)
    ]


def chatter(seed: int, n: int = 12) -> list[Entry]:
    """Make a session of prose without anything that must stay."""
    chance = random.Random(seed)
    little = ("the", "of", "and", "it", "is", "that", "for", "with", "on", "as")
    rare = [word(i) for i in range(300)]

    def text() -> str:
        said = [chance.choice(little if chance.random() < 0.4 else rare) for _ in range(chance.randint(20, 70))]
        return " ".join(one + chance.choices(["", ",", "."], [8, 1, 1])[0] for one in said)

    return [entry(number, text(), text()) for number in range(n)]


def kept_share(offer: Offer, entries: Sequence[Entry]) -> float:
    """Tell which share of its entries' text an offer keeps: what stands around the texts left out."""
    said = {one.entry_id: one for one in entries}
    kept = whole = 0
    for piece in offer.pieces:
        source = said[piece.entry_ids[0]]
        whole += compression.n_bytes(source.objective + source.conclusion)
        kept += compression.n_bytes(piece.text.partition(": ")[2].replace("\nResult: ", ""))
    return kept / whole


# --- how the session goes


@pytest.mark.parametrize(("engagement", "complexity", "topic", "level"), TABLE)
def test_each_rule(engagement: str, complexity: str, topic: str, level: str) -> None:
    """All 18, and each from a session that is like it."""
    assert RULES[Degree(engagement), Degree(complexity), Topic(topic)] == level
    found = pacing.verdict(session_of(engagement, complexity, topic))
    assert (found.engagement, found.complexity, found.topic, found.level) == (engagement, complexity, topic, level)


def test_the_rules_are_whole() -> None:
    """Each of the 3 x 3 x 2 cases has one rule, and the test above knows them all."""
    assert set(RULES) == set(itertools.product(Degree, Degree, Topic))
    assert len(TABLE) == 18


@given(st.lists(LEVELS, max_size=40))
def test_reading_back_is_counting_from_the_start(verdicts: list[Level]) -> None:
    """Nothing is stored between calls; a machine that steps through all verdicts must be in the same state."""
    level, before = INITIAL, None
    for verdict in verdicts:
        if verdict == before:
            level = verdict
        before = verdict
    assert pacing.settled(reversed(verdicts)) == level


def test_verdicts_that_come_and_go_switch_nothing() -> None:
    """Two in a row, then to and fro: the level stays where it was settled."""
    verdicts = [Level.CONSERVATIVE] * 2 + [Level.AGGRESSIVE, Level.CONSERVATIVE, Level.BALANCED] * 10
    levels = [pacing.settled(reversed(verdicts[:n])) for n in range(2, len(verdicts) + 1)]
    assert set(levels) == {Level.CONSERVATIVE}


def test_one_odd_entry_switches_nothing() -> None:
    """It takes two of them."""
    calm = [entry(n, f"{word(3 * n)} please", time_ms=NOW_MS + n * 60 * MINUTE_MS) for n in range(8)]
    odd = [replace(calm[n], entry_id=f"odd{n}", tools=("grep",) * 300) for n in (0, 1)]
    assert pacing.level_of(calm) == Level.AGGRESSIVE
    assert pacing.verdict([*calm, odd[0]]).level != Level.AGGRESSIVE
    assert pacing.level_of([*calm, odd[0]]) == Level.AGGRESSIVE
    assert pacing.level_of([*calm, *odd]) != Level.AGGRESSIVE


def test_identifiers_and_length_make_a_session_complex() -> None:
    """Not tools alone: a page of text, or four paths in an answer, are details that matter."""
    paths = [entry(n, "where?", "/a/b.py /c/d.py /e/f.py /g/h.py") for n in range(3)]
    pages = [entry(n, "tell me", "of this and that " * 60) for n in range(3)]
    assert pacing.verdict(paths).complexity == pacing.verdict(pages).complexity == Degree.HIGH


def test_a_reference_keeps_the_topic() -> None:
    """Whoever names an earlier entry goes on with it, in whatever words."""
    before = [entry(0, "paint the fence")]
    assert pacing.verdict([*before, entry(1, "zebra crossing")]).topic == Topic.CHANGED
    assert pacing.verdict([*before, entry(1, "zebra crossing", refs=("e0",))]).topic == Topic.KEPT
    assert pacing.verdict([*before, entry(1, "why?")]).topic == Topic.KEPT


# --- how much is kept


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), LEVELS)
def test_the_share_of_the_level_is_kept(seed: int, level: Level) -> None:
    """Within five points, over all that is offered."""
    entries = chatter(seed)
    offer = Adaptive().offer(asked(entries, level=level, max_tokens=2_000))
    assert abs(kept_share(offer, entries) - SHARES[level]) <= 0.05


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.sampled_from(list(SHARES.values())))
def test_shares_fall_and_add_up(lengths: list[int], share: float) -> None:
    """However long the texts are, the first keeps most and together they keep what was asked."""
    shares = spread([["x" * n] for n in lengths], share)
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= one <= 1 for one in shares)
    kept = sum(one * n for one, n in zip(shares, lengths, strict=True))
    assert kept == pytest.approx(share * sum(lengths), rel=0.01)


def test_what_is_protected_is_paid_by_the_others() -> None:
    """Texts that cannot be shortened leave less to the rest, so that the whole keeps its share."""
    loose, fixed = "some words that can go away again and again", "`a b c d e f g h i j k l m n o p q r s t`"
    shares = spread([[loose], [loose], [fixed]], 0.5)
    assert shares[2] == 1
    assert sum(one * len(text) for one, text in zip(shares, [loose, loose, fixed], strict=True)) == pytest.approx(
        0.5 * len(loose + loose + fixed), rel=0.02
    )


def test_the_relevant_entry_keeps_more() -> None:
    """However old it is."""
    entries = chatter(1)
    entries[3] = replace(entries[3], objective=f"the plumber came about the drain and {entries[3].objective}")
    offer = Adaptive().offer(asked(entries, "What about the drain, did the plumber come?", level="balanced"))
    lengths = {piece.entry_ids[0]: len(piece.text) for piece in offer.pieces}
    whole = {one.entry_id: len(one.objective + one.conclusion) for one in entries}
    shares = {entry_id: lengths[entry_id] / whole[entry_id] for entry_id in lengths}
    assert shares["e3"] == max(shares.values())
    assert shares["e3"] > 0.8


def test_without_an_objective_the_latest_keep_more() -> None:
    """Nothing else tells them apart."""
    offer = Adaptive().offer(asked(chatter(2), level="balanced"))
    assert [piece.entry_ids[0] for piece in offer.pieces][:3] == ["e11", "e10", "e9"]


def test_what_must_stay_stays_in_every_piece() -> None:
    """The last and least relevant keep their numbers, names and negations too."""
    texts = [text for text, _ in planted()]
    entries = [entry(n, "tell me", text) for n, text in enumerate(texts)]
    offer = Adaptive().offer(asked(entries, level="aggressive", max_tokens=4_000))
    written = {piece.entry_ids[0]: piece.text for piece in offer.pieces}
    assert len(written) == len(entries)
    lost = [
        text[span.start : span.stop]
        for n, text in enumerate(texts)
        for span in protected.spans(text)
        if text[span.start : span.stop].strip(" ,;:") not in written[f"e{n}"]
    ]
    assert lost == []


def test_facts_are_told_by_half_of_the_history() -> None:
    """Within three points of the whole history: 23 facts in 20 answers, at `balanced`."""
    entries = [entry(n, "tell me", text) for n, (text, _) in enumerate(planted())]
    offer = Adaptive().offer(asked(entries, level="balanced", max_tokens=4_000))
    texts = {piece.entry_ids[0]: piece.text for piece in offer.pieces}
    assert told([texts[one.entry_id] for one in entries]) >= 0.97


# --- with little room

SHORT = {
    "What medicine am I allergic to?": (
        "I am allergic to penicillin, please remember it for the doctor visit",
        "We decided not to paint the kitchen green",
        "The invoice INV-2044 is due on 3 May",
    ),
    "我对什么过敏？": ("我对青霉素过敏请记住", "我们去公园散步天气好", "朋友们来家吃饭喝茶"),
}


@pytest.mark.parametrize("objective", SHORT)
@pytest.mark.parametrize("max_tokens", [50, 60, 80, 100])
def test_what_was_asked_about_is_there_in_words(objective: str, max_tokens: int) -> None:
    """Not as a mark, which tells nothing; whole where there is room, since all else comes after it."""
    entries = [entry(n, text) for n, text in enumerate(SHORT[objective])]
    found = budget.fit(Adaptive().offer(asked(entries, objective, max_tokens=max_tokens)), max_tokens)
    assert found.taken[0].is_kept
    assert found.taken[0].entry_ids == ("e0",)
    assert f": {compression.MARK}" not in found.block
    assert max_tokens < 80 or SHORT[objective][0] in found.block


@pytest.mark.parametrize("level", SHARES)
def test_no_item_is_made_of_marks(level: str) -> None:
    """What would be nothing else is not offered; at a set level the most relevant one is, whole."""
    entries = [entry(n, text, "ok") for n, text in enumerate(SHORT["我对什么过敏？"])]
    offer = Adaptive().offer(asked(entries, "我对什么过敏？", level=level))
    assert offer.pieces
    assert not [
        text
        for piece in offer.pieces
        for text in (piece.text, *piece.shorter)
        if text.endswith(f": {compression.MARK}")
    ]


def test_an_entry_that_was_a_mark_is_left_out() -> None:
    """It has no words to fall back on."""
    offer = Adaptive().offer(asked([entry(0, compression.MARK), entry(1, "")], "what?"))
    assert not offer.pieces
    assert len(offer.left) == 2


# --- as a strategy


def test_the_same_history_gives_the_same_block() -> None:
    """A second run without a new entry changes nothing; the trace says how much was kept, and why."""
    entries = chatter(3)
    first, second = (budget.fit(Adaptive().offer(asked(list(entries), "aaaq?")), 400) for _ in range(2))
    assert first == second or (first.block, first.trace) == (second.block, second.trace)
    assert all("% kept" in decision.why for decision in first.taken)
    assert {one for decision in first.trace for one in decision.entry_ids} == {one.entry_id for one in entries}


def test_a_level_may_be_set() -> None:
    """The setting wins over how the session goes."""
    entries = chatter(4)
    offers = [Adaptive().offer(asked(entries, level=level, max_tokens=600)) for level in SHARES]
    assert len(offers[0].pieces) < len(offers[1].pieces) < len(offers[2].pieces), "what is shorter leaves room"
    assert "by the settings" in offers[0].pieces[0].why


def test_pinned_entries_come_first() -> None:
    """Whatever is asked; and where nothing has to do with it, the last one."""
    entries = chatter(5)
    entries[4] = replace(entries[4], is_pinned=True)
    offer = Adaptive().offer(asked(entries, entries[7].objective))
    assert [piece.entry_ids[0] for piece in offer.pieces][:2] == ["e4", "e7"]
    offer = Adaptive().offer(asked(entries, "zeppelin?"))
    assert [piece.entry_ids[0] for piece in offer.pieces][:2] == ["e4", "e11"]


@pytest.mark.parametrize("max_tokens", [1, 40, 60, 100, 200, 512, 4_000])
def test_the_budget_holds(max_tokens: int) -> None:
    """What does not fit is offered shorter, then left out."""
    found = budget.fit(Adaptive().offer(asked(chatter(6), max_tokens=max_tokens)), max_tokens)
    assert found.n_tokens <= max_tokens


def test_no_history_gives_nothing() -> None:
    """Not even a heading."""
    assert budget.fit(Adaptive().offer(asked([], "anything")), 500).block == ""
