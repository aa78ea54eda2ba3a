"""Strategy importance: what is worth keeping whatever is asked next."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings import ImportanceFactors
from retrieval.context.entries.entry import Entry, Outcome
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.layout import budget
from retrieval.context.ranking import importance
from retrieval.context.ranking.importance import Parts
from retrieval.context.strategies.fixed import Fixed
from retrieval.context.strategies.importance import Importance
from tests.entries import asked, entry

NONE = dict.fromkeys(ImportanceFactors.model_fields, 0.0)
WORDS = ("harbour", "violin", "saffron", "glacier", "cobalt", "meadow", "lantern", "pepper", "orchid", "granite")


def apart(n: int, **fields: Any) -> list[Entry]:
    """Make entries that have nothing to do with each other, a day between them."""
    return [entry(f"e{i}", f"{WORDS[i % 10]}{'x' * i}", days=n - i, **fields) for i in range(n)]


def parts_of(entries: list[Entry]) -> Parts:
    request = asked(entries, vectors=False)
    return importance.parts(request, EntryFacts(entries))


def scores_of(entries: list[Entry], **weights: float) -> dict[str, float]:
    offer = Importance().offer(asked(entries, vectors=False, importance_factors=NONE | weights if weights else {}))
    return {piece.entry_ids[0]: piece.score for piece in offer.pieces}


def test_complexity_is_by_the_logarithm_of_tools() -> None:
    """C = min(1, log2(1 + tools) / 4)."""
    entries = [entry(f"e{n}", tools=("search",) * n) for n in (0, 1, 3, 15, 40)]
    assert parts_of(entries).complexity.tolist() == [0, 0.25, 0.5, 1, 1]


def test_success_is_by_the_outcome() -> None:
    """What failed is worth the least, what nobody knows of half."""
    entries = [entry(o, outcome=o) for o in (Outcome.DONE, Outcome.UNKNOWN, Outcome.FAILED)]
    assert parts_of(entries).success.tolist() == pytest.approx([1, 0.5, 0.2])


def test_recency_fades_slower_for_what_is_recalled() -> None:
    """R = exp(-days / (S * 10)), S = 1 + recalls; a clock that runs ahead counts as now."""
    entries = [entry("a", days=10), entry("b", days=10, recalls=1), entry("c"), entry("d", days=-5)]
    assert parts_of(entries).recency.tolist() == pytest.approx([math.exp(-1), math.exp(-0.5), 1, 1])


def test_continuity_is_by_the_entries_that_refer_to_it() -> None:
    """K = 1 - exp(-refs / 2), an entry counted once however often it refers; only later ones of the session count."""
    entries = [
        entry("a", "first"),
        entry("b", "second", refs=("a", "a", "c", "nobody")),
        entry("c", "third", refs=("a", "c")),
    ]
    assert parts_of(entries).continuity.tolist() == pytest.approx([1 - math.exp(-1), 0, 0])


def test_quoting_a_rare_identifier_is_a_reference_to_where_it_was_first_said() -> None:
    """An agent rarely reports ids of exchanges; it does name the file or the ticket again."""
    entries = [
        entry("a", "the invoice", "it is in out/invoice-2231.pdf, ticket OPS-17"),
        entry("b", "what of OPS-17?", "closed"),
        entry("c", "send out/invoice-2231.pdf again", "sent"),
        entry("d", "the invoice", "which one?"),
    ]
    assert EntryFacts(entries).n_refs.tolist() == [2, 0, 0, 0]


def test_an_identifier_that_is_everywhere_refers_to_nothing() -> None:
    """The name of the project stands in each exchange."""
    entries = [entry(f"e{i}", f"step {WORDS[i]} of app_core") for i in range(10)]
    assert not EntryFacts(entries).n_refs.any()


def test_engagement_counts_follow_ups_among_the_next_three() -> None:
    """By words, by naming it, not by saying the same again, and not further on."""
    entries = [
        entry("a", "book a table at the harbour restaurant", "done"),
        entry("b", "which restaurant was the table at?", "the Anchor"),
        entry("c", "thanks", "welcome", refs=("a",)),
        entry("d", "book a table at the harbour restaurant", "done"),
        entry("e", "is the restaurant table outside?", "yes"),
    ]
    assert parts_of(entries).engagement[0] == pytest.approx(2 / 3)


def test_engagement_counts_follow_ups_by_meaning() -> None:
    """They may share no word; the same again is none."""
    facts = EntryFacts([entry("a", "dog"), entry("b", "puppy"), entry("c", "dog!"), entry("d", "car")])
    vectors = np.array([[1, 0], [0.8, 0.6], [1, 0], [0, 1]], np.float32)
    assert facts.n_follow_ups(vectors).tolist()[0] == 1
    same = np.full_like(vectors, 0.5**0.5)
    assert facts.n_follow_ups(same).tolist()[0] == 0, "it is of the vectors that are asked about"
    assert facts.n_follow_ups(vectors[:0]).tolist() == [0, 0, 0, 0]


@given(
    st.sampled_from(Parts._fields),
    st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6),
    st.floats(0, 1, width=32),
    st.lists(st.floats(0, 10), min_size=6, max_size=6).filter(any),
)
def test_the_score_grows_with_each_part(name: str, values: list[float], more: float, weights: list[float]) -> None:
    """Whatever the weights, nothing is worth less for being more recent or more referred to."""
    lower = Parts(*(np.array([value], np.float32) for value in values))
    higher = lower._replace(**{name: np.maximum(getattr(lower, name), np.float32(more))})
    factors = ImportanceFactors(**dict(zip(Parts._fields, weights, strict=True)))
    first, second = (float(importance.weighed(found, factors, has_objective=True)[0]) for found in (lower, higher))
    assert 0 <= first <= second + 1e-3
    assert second <= 100.001


def test_recency_alone_keeps_what_fixed_keeps() -> None:
    """With the other weights 0, the newest come first, however many there is room for."""
    entries = apart(12, tools=("t",), outcome=Outcome.DONE)
    for n in range(1, 12):
        weights = NONE | {"recency": 1.0}
        mine = Importance().offer(asked(entries, importance_factors=weights)).pieces[:n]
        fixed = Fixed().offer(asked(entries, n_exchanges=n)).pieces
        assert [piece.entry_ids for piece in mine] == [piece.entry_ids for piece in fixed]


def test_an_old_milestone_survives_thirty_trivial_newer_ones() -> None:
    """Four later exchanges refer to it: that is what the session is about."""
    milestone = entry(
        "m", "choose the database", "PostgreSQL, decided", days=60, tools=("search", "bench", "ask"),
        outcome=Outcome.DONE,
    )  # fmt: skip
    trivial = [
        entry(f"t{i}", f"{WORDS[i % 10]}{i // 10}", "ok", days=1 - i / 30, refs=("m",) if i in {3, 9, 15, 21} else ())
        for i in range(30)
    ]
    found = budget.fit(Importance().offer(asked([milestone, *trivial])), 130)
    kept = {d.entry_ids[0] for d in found.trace if d.is_kept}
    assert "m" in kept
    assert {"t27", "t28", "t29"} <= kept
    assert len(kept) < 12
    without = [entry(one.entry_id, one.objective, "ok", time_ms=one.time_ms) for one in trivial]
    bare = entry("m", milestone.objective, milestone.conclusion, time_ms=milestone.time_ms)
    again = budget.fit(Importance().offer(asked([bare, *without])), 130)
    assert "m" not in {d.entry_ids[0] for d in again.trace if d.is_kept}


def test_a_pinned_exchange_has_the_highest_score() -> None:
    """It is never to be left out while there is room."""
    entries = [entry("p", "remember: no nuts", days=900, is_pinned=True, outcome=Outcome.FAILED), *apart(40)]
    found = budget.fit(Importance().offer(asked(entries)), 120)
    assert "no nuts" in found.block
    assert next(d for d in found.trace if d.entry_ids == ("p",)).score == 100


def test_the_last_three_are_kept_first_then_the_highest() -> None:
    """Then by score; ties to the newer."""
    entries = apart(8)
    entries[1] = entry("e1", "done with tools", tools=("a",) * 15, outcome=Outcome.DONE, days=7)
    order = [piece.entry_ids[0] for piece in Importance().offer(asked(entries)).pieces]
    assert order[:4] == ["e7", "e6", "e5", "e1"]
    assert order[4:] == ["e4", "e3", "e2", "e0"]


def test_room_that_nobody_needs_goes_back_to_the_last_exchanges() -> None:
    """The answer may be the end of the only exchange there is; a quarter of the room is what it has at first."""
    said = "It is a long story, " * 8 + "and the venue cost 1200 euros."
    alone = asked([entry("e", "And the venue?", said)], "What did the venue cost?")
    assert "1200 euros" in budget.fit(Importance().offer(replace(alone, max_tokens=128)), 128).block
    others = [entry(f"o{n}", f"The venue number {n} cost {n} euros.", "Noted. " * 9, days=9 - n) for n in range(6)]
    crowded = asked([*others, *alone.entries], alone.objective)
    kept = budget.fit(Importance().offer(replace(crowded, max_tokens=128)), 128)
    assert kept.n_tokens > 100
    assert "1200 euros" not in kept.block


def test_all_weights_zero_is_refused() -> None:
    """Nothing would tell the exchanges apart; the setting is named."""
    with pytest.raises(ValueError, match="importance_factors"):
        Importance().offer(asked(apart(2), importance_factors=NONE))
    with pytest.raises(ValueError, match="importance_factors"):
        Importance().offer(asked([], importance_factors=NONE))


def test_every_entry_has_its_score_and_reason() -> None:
    """Also those there is no hope for."""
    entries = apart(400)
    trace = budget.fit(Importance().offer(asked(entries)), 200).trace
    assert sorted(d.entry_ids[0] for d in trace) == sorted(e.entry_id for e in entries)
    left = next(d for d in trace if d.entry_ids == ("e0",))
    assert "recency" in left.why
    assert left.score > 0
