"""Strategy semantic: themes with summaries, the last four exchanges as they are, and what helps."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.condense.faithful import unfounded
from retrieval.context.condensing.condensed import Condensed
from retrieval.context.condensing.themes import SEMANTIC_VERBATIM
from retrieval.context.entries.entry import Entry
from retrieval.context.layout import budget
from retrieval.context.protocol import Asked, Piece
from retrieval.context.strategies.semantic import LATEST, QUOTED, THEMES, Semantic
from tests.entries import asked, entry
from tests.topics import TOPICS

ROOM = 4_000


def talk(*, seed: int = 1) -> list[Entry]:
    """24 exchanges about three things, shuffled, and four that are about something else."""
    told = [pair for pairs in TOPICS.values() for pair in pairs]
    random.Random(seed).shuffle(told)
    told += [(f"Thing {i}?", f"That is thing {i}, whatever it is.") for i in range(SEMANTIC_VERBATIM)]
    return [entry(f"e{i}", *pair, days=len(told) - i) for i, pair in enumerate(told)]


def pieces(request: Asked, section: str) -> list[Piece]:
    return [piece for piece in Semantic().offer(request).pieces if piece.section == section]


def block(request: Asked, room: int = ROOM) -> str:
    return budget.fit(Semantic().offer(replace(request, max_tokens=room)), room).block


def test_the_last_four_exchanges_are_there_as_they_are() -> None:
    """What was said a moment ago is what the next words are about."""
    entries = talk()
    latest = pieces(asked(entries), LATEST)
    assert [piece.entry_ids for piece in latest] == [(f"e{27 - i}",) for i in range(4)]
    found = block(asked(entries))
    assert all(one.objective in found and one.conclusion in found for one in entries[-4:])


def test_every_earlier_exchange_is_in_exactly_one_theme() -> None:
    """Nothing is told twice, and nothing goes missing without being named."""
    entries = talk()
    offer = Semantic().offer(asked(entries))
    themes = [piece for piece in offer.pieces if piece.section == THEMES]
    told = [name for piece in themes for name in piece.entry_ids] + [n for left in offer.left for n in left.entry_ids]
    assert sorted(told) == sorted(one.entry_id for one in entries[:-4])


def test_an_unrelated_exchange_leaves_the_other_summaries_as_they_were() -> None:
    """Byte for byte: what does not change is not paid for again, nor read again."""
    entries = talk()
    more = [*entries, *(entry(f"x{i}", f"Quokka {i}?", f"Numbat {i}.", days=0.1) for i in range(SEMANTIC_VERBATIM))]
    before = {piece.entry_ids: piece.text for piece in pieces(asked(entries), THEMES)}
    after = {piece.entry_ids: piece.text for piece in pieces(asked(more), THEMES)}
    joined = {name for ids in after for name in ids if {"e24", "e25", "e26", "e27"} & set(ids)}
    untouched = [ids for ids in before if not joined & set(ids)]
    assert len(untouched) >= len(before) - 2
    assert [after.get(ids) for ids in untouched] == [before[ids] for ids in untouched]


def test_a_summary_takes_a_third_and_says_nothing_new() -> None:
    """What a theme tells can be looked up in its exchanges."""
    entries = talk()
    by_id = {one.entry_id: one for one in entries}
    n_summaries = 0
    condensed = Condensed()
    request = asked(entries)
    found = condensed.groups(entries, request.vectors, 4)
    groups = [group for group in found.groups if len(group.places) > 1]
    for group, summary in zip(groups, condensed.summaries(groups, entries), strict=True):
        members = "\n".join(f"user: {entries[i].objective}\nassistant: {entries[i].conclusion}" for i in group.places)
        assert tokens.count(summary) <= 0.35 * tokens.count(members)
        assert unfounded(summary, members) == []
        n_summaries += bool(summary)
    assert n_summaries == len(groups) >= 3
    assert by_id


def test_an_objective_brings_back_what_helps_with_it() -> None:
    """A theme that is only named does not answer; its exchange does."""
    entries = talk()
    request = asked(entries, "What is the reservation code of the TAP flight?")
    assert "LX4P2Q" in pieces(request, QUOTED)[0].text
    assert "LX4P2Q" in block(request, 256)
    assert pieces(asked(entries, "Quokkas?"), QUOTED) == []


def test_the_same_again_gives_the_same_and_no_words_but_words_do_too() -> None:
    """Deterministic, and at work without a model."""
    entries = talk()
    for vectors in (True, False):
        request = asked(entries, "Which tomato plants grow on a balcony?", vectors=vectors)
        assert block(request) == block(request)
        assert "balcony" in block(request, 400)


@pytest.mark.parametrize("n", range(7))
def test_short_sessions_are_told_whole(n: int) -> None:
    """Most sessions are short."""
    entries = talk()[:n]
    found = block(asked(entries))
    assert all(one.conclusion in found for one in entries)
    assert found == "" if not n else found


@given(room=st.integers(1, 1_500), seed=st.integers(0, 5), has_objective=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_budget_is_kept(room: int, seed: int, has_objective: bool) -> None:  # noqa: FBT001 - hypothesis names it
    """Headings and fence included."""
    request = asked(talk(seed=seed), "How large is the orders table?" if has_objective else None)
    assert tokens.count(block(request, room)) <= room


def test_entries_that_are_not_embedded_yet_are_grouped_by_words() -> None:
    """A turn is said now and embedded a second later."""
    entries = talk()
    request = asked(entries)
    vectors = np.array(request.vectors)
    vectors[5:] = 0
    assert len(pieces(replace(request, vectors=vectors), THEMES)) < len(entries) - 4
