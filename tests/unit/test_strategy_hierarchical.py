"""Strategy hierarchical: three tiers that hold every exchange once, shares of the room, and the user's profile."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.condense.profile import ProfileFact, Stated, resolve
from retrieval.context.condensing.condensed import Condensed
from retrieval.context.condensing.tiers import long_term, short_term, tiers
from retrieval.context.entries.entry import Entry, Outcome
from retrieval.context.layout import budget
from retrieval.context.protocol import Asked
from retrieval.context.strategies.hierarchical import EARLIER, LATELY, NOW, SHARES, USER, Hierarchical
from tests.entries import DAY_MS, NOW_MS, asked, entry

ROOM = 1_000


class Known(Condensed):
    """A scope whose user said something."""

    def __init__(self, *stated: tuple[str, str]) -> None:
        self._facts = resolve(
            Stated(time_ms=NOW_MS - (9 - i) * DAY_MS, index=0, turn_id=f"t{i}", ordinal=0, session_id="elsewhere",
                   subject="", key=key, value=value, confidence=0.9)
            for i, (key, value) in enumerate(stated)
        )  # fmt: skip

    def profile(self) -> tuple[ProfileFact, ...]:
        """Give it."""
        return self._facts


def talk(n: int = 100) -> list[Entry]:
    """A long session about many things; in the fifth exchange the code of the gate is told."""
    things = ["river", "violin", "copper", "meadow", "lantern", "harbour", "orchid"]
    entries = [
        entry(
            f"e{i}", f"How is the {things[i % 7]} doing, part {i}?", f"The {things[i % 7]} has grown by {i} inches.",
            days=n - i, outcome=Outcome.DONE if i % 3 else Outcome.FAILED,
        )
        for i in range(n)
    ]  # fmt: skip
    if n > 5:
        entries[5] = replace(entries[5], objective="What opens the gate?", conclusion="The gate opens with 7341-B.")
    return entries


def block(request: Asked, room: int = ROOM) -> str:
    return budget.fit(Hierarchical().offer(replace(request, max_tokens=room)), room).block


@given(n=st.integers(0, 400))
def test_every_exchange_is_in_exactly_one_tier(n: int) -> None:
    """The invariant of the specification: three, then ten, then all others; none twice, none nowhere."""
    divided = tiers(n)
    assert [*divided.long_term, *divided.short_term, *divided.immediate] == list(range(n))
    assert len(divided.immediate) == min(n, 3)
    assert len(divided.short_term) == max(0, min(n - 3, 10))


@given(
    n=st.integers(0, 40), objective=st.sampled_from([None, "gate", "How is the river?"]), room=st.integers(1, 2_000)
)
@settings(max_examples=40, deadline=None)
def test_what_is_offered_and_left_tells_of_every_exchange_in_its_own_tier_alone(
    n: int, objective: str | None, room: int
) -> None:
    """Quotations of a theme's exchanges stand in its tier, too."""
    entries = talk(n)
    offer = Hierarchical().offer(replace(asked(entries, objective), max_tokens=room))
    divided = tiers(n)
    homes = {NOW: divided.immediate, LATELY: divided.short_term, EARLIER: divided.long_term}
    told: dict[str, set[str]] = {}
    for piece in offer.pieces:
        for name in piece.entry_ids:
            told.setdefault(name, set()).add(piece.section)
    left = {name for decision in offer.left for name in decision.entry_ids}
    for section, places in homes.items():
        for place in places:
            assert told.get(f"e{place}", {section} if f"e{place}" in left else set()) == {section}


def test_a_fact_of_the_fifth_of_a_hundred_is_reached() -> None:
    """Level by level: from its theme to the exchange itself."""
    for room in (300, ROOM):
        assert "7341-B" in block(asked(talk(), "What opens the gate?"), room)


def test_where_room_is_short_the_best_quotation_is_told_to_its_end() -> None:
    """Facts and themes have their shares of the room afterwards; the last exchanges are there, in a few words."""
    entries = [replace(one, conclusion=one.conclusion + " It has been measured twice." * 4) for one in talk()]
    entries[5] = replace(entries[5], conclusion="The gate opens" + " with the code" * 12 + " 7341-B.")
    known = Known(*((f"thing {i}", f"value {i}") for i in range(8)))
    found = block(replace(asked(entries, "What opens the gate? The river?"), condensed=known), 256)
    assert "7341-B." in found
    assert [f"- {days} days ago: How" in found for days in (3, 2)] == [True, True]
    assert "- 1 day ago: How" in found


def test_the_last_three_exchanges_are_there_as_they_are() -> None:
    """With an objective that older ones help with, too, where there is room."""
    entries = talk()
    for request in (asked(entries), asked(entries, "Quokkas?")):
        found = block(request)
        assert all(one.objective in found and one.conclusion in found for one in entries[-3:])
    assert all(one.objective in block(asked(entries, "What opens the gate?"), 4_000) for one in entries[-3:])


def test_who_moved_lives_where_he_moved_to_with_his_history() -> None:
    """What the user said in any session of his."""
    request = replace(asked(talk(20)), condensed=Known(("residence", "Oslo"), ("residence", "Lyon")))
    line = next(line for line in block(request).splitlines() if "residence" in line)
    assert "residence: Lyon (said " in line  # not since when: that may be years before
    assert line.endswith("before: Oslo")


def test_profiling_can_be_switched_off() -> None:
    """A platform may not want to know."""
    request = replace(asked(talk(20), enable_user_profiling=False), condensed=Known(("residence", "Oslo")))
    assert "Oslo" not in block(request)
    assert not any(piece.section == USER for piece in Hierarchical().offer(request).pieces)


def test_facts_that_have_to_do_with_the_objective_come_first() -> None:
    """A tenth of the room is not much."""
    known = Known(*((f"thing {i}", f"value {i}") for i in range(8)), ("allergy", "peanuts"), ("name", "Ada"))
    facts = [
        piece.text
        for piece in Hierarchical().offer(replace(asked(talk(5), "Any allergy?"), condensed=known)).pieces
        if piece.section == USER
    ]
    assert facts[0].startswith("allergy: peanuts")


def test_each_tier_has_its_share_and_what_it_leaves_flows_on() -> None:
    """45, 25, 20 and 10 of a hundred. Source: the specification."""
    long = [replace(one, conclusion=one.conclusion + " and on" * 150) for one in talk(60)]
    request = replace(asked(long), condensed=Known(*((f"thing {i}", "value " * 9) for i in range(60))))
    offer = Hierarchical().offer(replace(request, max_tokens=ROOM))
    assert offer.shares == {NOW: 0.45, LATELY: 0.25, EARLIER: 0.2, USER: 0.1} == SHARES
    found = block(request)
    parts = [found.index(f"{section}:") for section in SHARES]
    assert parts == sorted(parts)
    ends = [*parts[1:], len(found)]
    for so_far, end in zip(accumulate(SHARES.values()), ends, strict=True):
        assert tokens.count(found[parts[0] : end]) <= 1.05 * so_far * ROOM
    assert tokens.count(found) >= 0.9 * ROOM
    short = block(replace(request, entries=long[:1], vectors=request.vectors[:1]))
    assert short.count("value value") > found.count("value value"), "what three tiers leave, the profile has"


def test_a_short_term_record_tells_timeframe_objectives_outcomes_and_topics() -> None:
    """The fields of the specification."""
    told = short_term(talk(14)[1:11])
    assert told.timeframe == "2023-11-01 to 2023-11-10"
    assert told.objectives[0] == "How is the violin doing, part 1?"
    assert told.outcomes[:3] == ("done", "done", "failed")
    assert "grown" in told.topics or "inch" in told.topics


def test_a_long_term_record_tells_period_learnings_progress_and_status() -> None:
    """The fields of the specification."""
    told = long_term(("river",), [talk(20)[i] for i in (0, 7, 14)], "It grew.")
    assert (told.period, told.learnings) == ("2023-10-25 to 2023-11-08", "It grew.")
    assert told.progress == "3 exchanges (2 done, 1 failed)"
    assert told.status == "done"


def test_without_grouping_by_meaning_there_is_a_theme_for_each_day() -> None:
    """A setting: some sessions are a diary."""
    entries = [replace(one, time_ms=NOW_MS - (i // 10) * DAY_MS) for i, one in enumerate(talk(40)[::-1])][::-1]
    request = asked(entries, enable_semantic_clustering=False)
    themes = [piece for piece in Hierarchical().offer(request).pieces if piece.section == EARLIER]
    assert sorted(len(piece.entry_ids) for piece in themes) == [7, 10, 10]
    assert len({piece.text for piece in themes}) == 3


@given(room=st.integers(1, 1_500), n=st.sampled_from([0, 2, 5, 14, 60]), objective=st.sampled_from([None, "gate"]))
@settings(max_examples=30, deadline=None)
def test_a_budget_is_kept(room: int, n: int, objective: str | None) -> None:
    """Headings and fence included."""
    request = replace(asked(talk(n), objective), condensed=Known(("residence", "Oslo"), ("residence", "Lyon")))
    found = block(request, room)
    assert tokens.count(found) <= room
    assert found == block(request, room)


@pytest.mark.parametrize("vectors", [True, False])
def test_it_works_with_and_without_a_model(vectors: bool) -> None:  # noqa: FBT001 - a parameter
    """Words alone group and find."""
    assert "7341-B" in block(asked(talk(), "What opens the gate?", vectors=vectors), 400)
