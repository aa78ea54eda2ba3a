"""A profile from stated facts: the latest counts, what it superseded is kept, and order of arrival is nothing."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from pipeline.condense.profile import Evidence, GrowingProfile, ProfileFact, Stated, resolve


def said(at: int, key: str, value: str, *, subject: str = "", session: str = "s") -> Stated:
    return Stated(
        time_ms=at, index=0, turn_id=f"t{at}", ordinal=0, session_id=session, subject=subject, key=key, value=value,
        confidence=0.8,
    )  # fmt: skip


def current(facts: tuple[ProfileFact, ...]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for fact in facts:
        if fact.superseded_by is None:
            found.setdefault(f"{fact.subject}{fact.key}", set()).add(fact.value)
    return found


def test_who_moved_lives_where_he_moved_to_and_is_known_to_have_lived_elsewhere() -> None:
    """The rule of the specification."""
    oslo, lyon = resolve([said(1, "residence", "Oslo"), said(2, "residence", "Lyon", session="s2")])
    assert (oslo.value, oslo.superseded_by, oslo.valid_from_ms) == ("Oslo", Evidence("s2", "t2"), 1)
    assert (lyon.value, lyon.superseded_by, lyon.valid_from_ms) == ("Lyon", None, 2)
    assert lyon.evidence == (Evidence("s2", "t2"),)


def test_what_is_said_again_is_surer_and_holds_since_the_first_time() -> None:
    """Not another fact, and not a newer one."""
    facts = resolve([said(1, "residence", "Oslo"), said(5, "residence", "oslo")])
    assert len(facts) == 1
    assert facts[0].valid_from_ms == 1
    assert facts[0].confidence > 0.8
    assert facts[0].evidence == (Evidence("s", "t1"), Evidence("s", "t5"))


def test_who_moves_back_lives_there_again() -> None:
    """A fact that was superseded is history; a new one begins."""
    facts = resolve([said(1, "residence", "Oslo"), said(2, "residence", "Lyon"), said(3, "residence", "Oslo")])
    assert [(fact.value, fact.superseded_by is None) for fact in facts] == [
        ("Oslo", False), ("Lyon", False), ("Oslo", True),
    ]  # fmt: skip


def test_several_languages_hold_at_a_time_and_a_taste_changes() -> None:
    """Some things one has many of; nobody likes and dislikes one."""
    facts = resolve([
        said(1, "language", "French"), said(2, "language", "German"),
        said(3, "likes", "coffee"), said(4, "dislikes", "the coffee"), said(5, "likes", "tea"),
    ])  # fmt: skip
    assert current(facts) == {"language": {"French", "German"}, "dislikes": {"the coffee"}, "likes": {"tea"}}


def test_speakers_of_one_scope_do_not_supersede_each_other() -> None:
    """In a thread several people tell of themselves."""
    facts = resolve([said(1, "residence", "Oslo", subject="Ann"), said(2, "residence", "Lyon", subject="Bob")])
    assert current(facts) == {"Annresidence": {"Oslo"}, "Bobresidence": {"Lyon"}}


STATED = st.lists(
    st.builds(
        said,
        st.integers(0, 6),
        st.sampled_from(["residence", "language", "likes", "dislikes"]),
        st.sampled_from(["Oslo", "Lyon", "coffee"]),
        session=st.sampled_from(["s", "s2"]),
    ),
    max_size=12,
    unique_by=lambda one: (one.time_ms, one.key),
)


@given(stated=STATED, seed=st.integers(0, 1_000))
def test_late_turns_change_nothing(stated: list[Stated], seed: int) -> None:
    """A profile follows from when things were said, not from when they became known."""
    shuffled = random.Random(seed).sample(stated, len(stated))
    facts = resolve(stated)
    assert resolve(shuffled) == facts
    assert {e for fact in facts for e in fact.evidence} == {Evidence(s.session_id, s.turn_id) for s in stated}
    for fact in facts:
        assert fact.superseded_by is None or any(fact.superseded_by in other.evidence for other in facts)


@given(stated=STATED, cut=st.integers(0, 12), n_gone=st.integers(0, 12))
def test_a_profile_that_grows_tells_the_same_as_one_made_anew(stated: list[Stated], cut: int, n_gone: int) -> None:
    """A reader that was asked before must not know more, or less, than one that was not."""
    profile, gone = GrowingProfile(), stated[:cut][:n_gone]
    profile.change([], stated[:cut])
    assert profile.facts == resolve(stated[:cut])
    profile.change(gone, [*stated[cut:], *gone[:1]])
    assert profile.facts == resolve([one for one in stated if one not in gone[1:]])


def test_what_is_said_thousands_of_times_is_told_in_a_moment() -> None:
    """Each time it was said again its whole evidence was copied, and one more turn had all facts told anew."""
    profile, start_s = GrowingProfile(), time.process_time()
    profile.change([], [said(at, "residence", "Oslo") for at in range(8_000)])
    profile.change([], [said(at, "likes", f"thing {at}") for at in range(1_000)])
    for at in range(10):
        profile.change([], [said(at, "likes", f"new thing {at}")])
    assert time.process_time() - start_s < 3, "it takes 0.2 s"
    assert len(profile.facts) == 1_011
