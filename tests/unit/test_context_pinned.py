"""What somebody pinned is in the block while there is room for it, whatever the strategy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from retrieval.context.context import STRATEGIES, resolved
from retrieval.context.entries.entry import Entry
from retrieval.context.layout import budget, pinned
from retrieval.context.layout.answer import Context
from tests.entries import asked, entry


def talk(pinned_at: Sequence[int], n: int = 60) -> list[Entry]:
    """Sixty exchanges about other things, some of them pinned."""
    about = ("roof tiles", "violin lessons", "train tickets", "garden hedge", "tax papers")
    return [
        entry(
            f"e{i}",
            f"What of the {about[i % len(about)]} number {i}?",
            f"Answer {i}: {about[i % len(about)]} are looked after by somebody who knows, before week {i} ends.",
            days=n - i,
            is_pinned=i in pinned_at,
        )
        for i in range(n)
    ]


def context(strategy: str, entries: Sequence[Entry], objective: str | None, room: int) -> Context:
    request = asked(entries, objective, max_tokens_for_context=room)
    return budget.fit(pinned.first(resolved(strategy).offer(request), request), room)


@pytest.mark.parametrize("objective", [None, "Which violin lessons?", "a zeppelin"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pinned_entry_is_there_whatever_is_asked(strategy: str, objective: str | None) -> None:
    """Old, in a theme, irrelevant or not; and the trace says it once."""
    entries = talk([3, 20])
    for room in (256, 512):
        found = context(strategy, entries, objective, room)
        assert "- 57 days ago: " in found.block
        assert "- 40 days ago: " in found.block
        assert found.n_tokens <= room
        for entry_id in ("e3", "e20"):
            assert [one.is_kept for one in found.trace if one.entry_ids == (entry_id,)] == [True]


def test_what_a_strategy_puts_first_is_first_after_what_is_pinned() -> None:
    """Hierarchical has its best quotation told whole where room is short, another being pinned or not."""
    entries = talk([5])
    entries[2] = entry("e2", "What opens the gate?", "The gate opens" + " with the code" * 12 + " 7341-B.", days=58)
    request = asked(entries, "What opens the gate, whatever the roof tiles?", max_tokens_for_context=256)
    offer = pinned.first(resolved("hierarchical").offer(request), request)
    assert [piece.entry_ids for piece in offer.pieces[: offer.n_first]] == [
        ("e5",),
        ("e59",),
        ("e58",),
        ("e57",),
        ("e2",),
    ]
    assert "7341-B." in budget.fit(offer, 256).block


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_long_pinned_entry_leaves_room_for_another(strategy: str) -> None:
    """Each has its share of the room, and is cut to it where it can be."""
    entries = talk([5])
    entries[2:4] = [
        entry(f"e{i}", f"Rule {i}: " + "never forget this. " * 200, days=60 - i, is_pinned=True) for i in (2, 3)
    ]
    found = context(strategy, entries, "Which violin lessons?", 512)
    for text in ("- 58 days ago: Rule 2", "- 57 days ago: Rule 3", "- 55 days ago: "):
        assert text in found.block


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pinned_entry_without_room_keeps_nothing_else_out(strategy: str) -> None:
    """There is no room for all that is pinned: some of it is there, and nothing breaks."""
    found = context(strategy, talk(range(60)), None, 200)
    assert 100 < found.n_tokens <= 200
    assert context(strategy, talk([3]), None, 20).block == ""
