"""Summaries of groups: a third of their members at most, and known by what they are of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.condense import summaries
from pipeline.condense.summaries import Member
from retrieval.context.condensing.themes import extracted
from tests.topics import TOPICS


def members(topic: str) -> list[Member]:
    return [
        Member(f"e{i}", (("user", asked), ("assistant", answered)), (2 * i, 2 * i + 1))
        for i, (asked, answered) in enumerate(TOPICS[topic])
    ]


SENTENCE = st.text(st.sampled_from("abcdefgh ABC ,.?!\n雪山。🎉") | st.characters(codec="utf-8"), max_size=120)


@given(said=st.lists(SENTENCE, min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_a_summary_is_a_third_of_its_members_at_most(said: list[str]) -> None:
    """Whatever was said: one long sentence, no sentence, another script. Counted as prompts are counted."""
    text = summaries.source([Member(f"e{i}", (("user", one),), (i,)) for i, one in enumerate(said)])
    assert tokens.count(extracted(text)) <= 0.35 * tokens.count(text)


def test_a_summary_of_a_topic_uses_its_room_and_invents_nothing() -> None:
    """A bound that is kept by saying nothing would be no summary."""
    for topic in TOPICS:
        text = summaries.source(members(topic))
        summary = extracted(text)
        assert 0.15 * tokens.count(text) <= tokens.count(summary) <= 0.35 * tokens.count(text)
        assert summaries.is_acceptable(summary, text)


def test_a_summary_is_of_its_members_and_of_no_others() -> None:
    """Stored ones are found by their digest: one that is too coarse would show another session's words."""
    trip = members("trip")
    known = summaries.digest("s", trip)
    assert summaries.digest("s", members("trip")) == known
    edited = [*trip[:-1], Member(trip[-1].entry_id, (("user", "Something else."),), trip[-1].turn_offsets)]
    others = [
        summaries.digest("t", trip), summaries.digest("s", trip[:-1]), summaries.digest("s", trip[::-1]),
        summaries.digest("s", edited), summaries.digest("s", []),
    ]  # fmt: skip
    assert len({known, *others}) == 1 + len(others)


def test_what_cannot_be_short_enough_is_not_summarised() -> None:
    """A summariser that does not keep its length is asked for less, and then no more."""
    asked: list[int] = []

    def wordy(text: str, max_tokens: int) -> str:
        asked.append(max_tokens)
        return text

    assert summaries.shortened("word " * 60, wordy) == ""
    assert asked == sorted(asked, reverse=True)
    assert len(asked) > 1
