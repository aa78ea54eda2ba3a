"""A block never costs more than allowed, whoever counts, and uses what it may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import tokens
from retrieval.context.layout import budget
from retrieval.context.protocol import Decision, Offer, Piece

COUNTERS: dict[str, Callable[[str], int]] = {
    "bytes": tokens.count,
    "characters": len,
    "words": lambda text: len(text.split()),
    "lines": lambda text: 7 * len(text.splitlines()),
    "fence": lambda text: 3 * text.count("`") + len(text) // 4,
    "step": lambda text: len(text) // 50 * 50,
}


def piece(text: str, **fields: Any) -> Piece:
    values = {"section": "", "place": (0,), "entry_ids": (text[:8],), "score": 1.0, "why": "because"}
    return Piece(text=text, **values | fields)


texts = st.one_of(
    st.sampled_from(["`" * 50, "```\n# x", "\u2028# x", "word " * 200, "語" * 300, "\x1b[0m", "", "a\nb\nc\nd"]),
    st.text(max_size=200),
)
pieces = st.builds(
    lambda text, section, place, shorter: piece(text, section=section, place=(place,), shorter=tuple(shorter)),
    texts,
    st.sampled_from(["", "Facts", "Themes"]),
    st.integers(0, 5),
    st.lists(texts, max_size=2),
)
shares = st.sampled_from([{}, {"": 0.45, "Facts": 0.25, "Themes": 0.3}, {"Facts": 1.0}, {"": 0.0}])


@given(
    offered=st.lists(pieces, max_size=12),
    shared=shares,
    ends=st.booleans(),
    max_tokens=st.one_of(st.integers(1, 120), st.integers(1, 4_000)),
    counter=st.sampled_from(sorted(COUNTERS)),
)
def test_a_block_never_costs_more_than_allowed(
    offered: list[Piece], shared: dict[str, float], max_tokens: int, counter: str, *, ends: bool
) -> None:
    """The bound is on the text as it is sent: preamble, fence and headings included, by any counter."""
    count = COUNTERS[counter]
    offer = Offer(
        pieces=offered, sections=("", "Facts", "Themes"), shares=shared, ends_at_first_left_out=ends, left=()
    )
    found = budget.fit(offer, max_tokens, count)
    assert count(found.block) <= max_tokens
    assert found.n_tokens == (count(found.block) if found.block else 0)
    assert len(found.trace) == len(offered)
    assert bool(found.block) == any(decision.is_kept for decision in found.trace)
    for decision, one in zip(found.trace, offered, strict=True):
        assert decision.entry_ids == one.entry_ids


def test_all_is_taken_where_there_is_room_in_the_order_of_its_places() -> None:
    """The order of taking is not that of reading."""
    found = budget.fit(Offer(pieces=[piece("late", place=(2,)), piece("early", place=(1,))]), 200)
    assert found.block.index("early") < found.block.index("late")
    assert found.n_tokens == tokens.count(found.block)


def test_what_does_not_fit_is_tried_shorter_then_left_with_the_reason() -> None:
    """The trace tells a reader why something is missing."""
    offer = Offer(
        pieces=[piece("a" * 600, shorter=("b" * 300, "c" * 60)), piece("d" * 600), piece("e" * 9)],
        left=[Decision(entry_ids=("z",), is_kept=False, score=0, why="too old")],
    )
    found = budget.fit(offer, 70)
    assert "c" * 60 in found.block
    assert "b" not in found.block.split("```")[1]
    assert "e" * 9 in found.block
    assert [(d.is_kept, d.why) for d in found.trace] == [
        (True, "because; shortened to fit"),
        (False, "because; no room for it"),
        (True, "because"),
        (False, "too old"),
    ]


def test_an_offer_may_end_where_the_first_piece_does_not_fit() -> None:
    """Of a row of exchanges, an old one without the newer is of no use."""
    offer = Offer(pieces=[piece("new"), piece("x" * 900), piece("old")], ends_at_first_left_out=True)
    found = budget.fit(offer, 100)
    assert "new" in found.block
    assert "old" not in found.block


def test_a_section_keeps_to_its_share_and_what_it_leaves_flows_on() -> None:
    """Profile facts must not lose their room to a long last exchange; unused room is not wasted."""
    now = [piece(f"now {i} " + "n" * 60, section="Now", place=(i,)) for i in range(60)]
    facts = [piece(f"fact {i} " + "f" * 60, section="Facts", place=(i,)) for i in range(60)]
    shared = {"Now": 0.5, "Facts": 0.5}
    full = budget.fit(Offer(pieces=[*now, *facts], sections=("Now", "Facts"), shares=shared), 1_000)
    n_now, n_facts = full.block.count("- now"), full.block.count("- fact")
    assert abs(n_now - n_facts) <= 1
    little_now = budget.fit(Offer(pieces=[*now[:2], *facts], sections=("Now", "Facts"), shares=shared), 1_000)
    assert little_now.block.count("- fact") > 1.5 * n_facts
    few_facts = budget.fit(Offer(pieces=[*now, *facts[:2]], sections=("Now", "Facts"), shares=shared), 1_000)
    assert few_facts.block.count("- now") > 1.5 * n_now


def test_a_shortened_piece_is_made_whole_when_room_is_left() -> None:
    """Its section's share was too small for it, the block is not."""
    offer = Offer(
        pieces=[piece("w" * 600, section="Now", shorter=("short",))],
        sections=("Now", "Facts"),
        shares={"Now": 0.2, "Facts": 0.8},
    )
    assert "w" * 600 in budget.fit(offer, 400).block


def test_nothing_offered_or_no_room_is_an_empty_block() -> None:
    """A bot then adds nothing to its prompt."""
    for found in (budget.fit(Offer(pieces=[]), 500), budget.fit(Offer(pieces=[piece("x")]), 0)):
        assert (found.block, found.n_tokens) == ("", 0)


def test_a_mistaken_request_is_refused() -> None:
    """A sign error, or a strategy that forgot to name a section, should be seen."""
    with pytest.raises(ValueError, match="max_tokens"):
        budget.fit(Offer(pieces=[]), -1)
    with pytest.raises(ValueError, match="Strange"):
        budget.fit(Offer(pieces=[piece("x", section="Strange")]), 100)
