"""The scorer that strategies share, and what it knows of entries: the same however it came to know it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import Scope
from retrieval.context.context import _FactsKept
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.entry_facts import EntryFacts
from retrieval.context.entries.words import identifiers
from retrieval.context.protocol import facts_of
from retrieval.context.ranking.relevance import relevance
from retrieval.context.session.session_cache import SessionEntries
from tests.entries import asked, entry

POOL = [
    "the wifi password of the cabin is pinecone42",
    "bake rye bread tonight",
    "send out/invoice-2231.pdf to Marta",
    "did Marta get out/invoice-2231.pdf?",
    "松果密码是什么",
    "",
]


def test_rare_words_count_more_than_common_ones() -> None:
    """And little words not at all."""
    entries = [
        entry("a", "the cabin"),
        entry("b", "the cabin violin"),
        *(entry(f"c{i}", "the cabin") for i in range(8)),
    ]
    by_words = EntryFacts(entries).bm25("is the cabin with the violin?")
    assert by_words[1] > 3 * by_words[0] > 0
    assert EntryFacts(entries).bm25("zebra").tolist() == [0] * 10


def test_words_decide_where_vectors_are_missing() -> None:
    """An entry that is not embedded yet is found by its words, beside others that are."""
    request = asked([entry("a", "cabin wifi"), entry("b", "rye bread")], "wifi of the cabin")
    request.vectors[0] = 0
    assert relevance(request).scores[0] > relevance(request).scores[1]


def test_entries_share_words_as_sets() -> None:
    """Of both together; however often a word is said."""
    facts = EntryFacts([entry("a", "cabin wifi"), entry("b", "wifi wifi cabin roof lamp"), entry("c", "bread")])
    assert facts.shared_words(0).tolist() == [1, 0.5, 0]


def test_without_objective_or_entries_nothing_is_relevant() -> None:
    """No score is made up."""
    assert not relevance(asked([entry("a", "cabin")])).is_any_relevant
    assert len(relevance(asked([], "cabin")).scores) == 0


def test_facts_that_the_caller_keeps_are_used() -> None:
    """Reading ten thousand entries takes seconds."""
    request = asked([entry("a", "cabin")], "cabin")
    known = EntryFacts(request.entries)
    object.__setattr__(request, "facts", known)
    assert facts_of(request) is known


def test_what_is_read_anew_but_the_same_is_not_worked_out_anew() -> None:
    """What another host remembered is another object each time; the thousands beside it are not read again."""
    entries = [entry("a", "cabin"), entry("other host", "wifi"), entry("b", "bread")]
    known = EntryFacts(tuple(entries))
    entries[1] = replace(entries[1])
    assert known.is_about(entries)
    more = EntryFacts([*entries, entry("c", "tea")], known)
    assert all(one is other for one, other in zip(more.read, known.read, strict=False))
    entries[1] = replace(entries[1], conclusion="edited")
    assert not known.is_about(entries)
    assert EntryFacts(entries, known).read[1] is not known.read[1]


def test_facts_kept_are_bounded_by_what_they_take() -> None:
    """They hold the texts they are about: a few long sessions are as much as many short ones."""
    kept = _FactsKept(1_000_000)
    scope = Scope("user", "u1")
    short = SessionEntries((entry("a", "cabin"),), np.zeros((1, 0), np.float32))
    long = SessionEntries((entry("a", "x" * 400_000),), np.zeros((1, 0), np.float32))
    first = kept.of((scope, "first"), short)
    assert kept.of((scope, "first"), short) is first
    for i in range(4):
        kept.of((scope, f"s{i}"), long)
        assert kept.n_bytes <= 1_000_000
    assert kept.of((scope, "first"), short) is not first
    for session in ("first", "s3", "s3"):
        kept.drop((scope, session))
    assert kept.n_bytes == 0


def test_identifiers_are_what_names_one_thing() -> None:
    """Not words, years or prices."""
    text = "See https://x.org/a?b and out/invoice-2231.pdf, OPS-17, user_id, camelCase, 883120, in 2024 for 30 euros."
    found = identifiers(text)
    assert {"out/invoice-2231.pdf", "ops-17", "user_id", "camelcase", "883120"} <= found
    assert not {"2024", "euros", "see", "30"} & found


entries_of = st.lists(st.sampled_from(POOL), max_size=12)


@given(entries_of, entries_of, st.integers(0, 12))
def test_facts_brought_up_to_date_are_those_made_anew(first: list[str], more: list[str], n_kept: int) -> None:
    """Entries are appended, and the last ones change: the answer to an open question arrives."""
    before = _entries(first)
    after = [*before[:n_kept], *_entries(more, start=100)]
    known = EntryFacts(before)
    assert (known.n_refs.shape, known.followed.shape[0]) == ((len(before),), len(before))
    for fresh, kept in [(EntryFacts(after), EntryFacts(after, known))]:
        for text in POOL:
            assert np.array_equal(fresh.bm25(text), kept.bm25(text))
        assert np.array_equal(fresh.n_refs, kept.n_refs)
        if after:
            assert np.array_equal(fresh.shared_words(0), kept.shared_words(0))
        assert np.array_equal(fresh.followed, kept.followed)
    assert known.is_about(before)
    assert known.is_about(after) == (after == before)


def _entries(texts: list[str], start: int = 0) -> list[Entry]:
    return [entry(f"e{i}", text, refs=(f"e{i - 2}",) if i % 3 == 0 else ()) for i, text in enumerate(texts, start)]
