"""Session search finds what a scan of the same turns finds, in the same order, whatever was edited or deleted."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, ShardError
from pipeline.ledger import events, upkeep, word_segments
from pipeline.records import Event, Scope, ScopeDeleted, SessionDeleted, Turn, TurnDeleted
from pipeline.shards import Shards
from retrieval.memory import Memory, open_memory
from tests.fakes import FakeEmbedder
from tests.hard_queries import HARD, PIECES
from tests.ledgers import open_ledger
from tests.scan import Found, read_sessions, scan

SCOPE = Scope("user", "u1")
OTHER = Scope("user", "u2")
MINUTES = 60.0
START = 1_700_000_000


def turn(
    event_id: str, content: str, *, session: str = "s1", at: float = 0, scope: Scope = SCOPE, **fields: Any
) -> Turn:
    """A turn said so many minutes after the start."""
    values = {"role": "user", **fields}
    return Turn(
        scope=scope,
        session_id=session,
        content=content,
        timestamp=START + at * MINUTES,
        event_id=event_id,
        **values,
    )


def apply(shards: Shards, published: Sequence[Event], *, seal: bool = False) -> None:
    with closing(open_ledger(shards, published[0].scope)) as ledger:
        events.apply(ledger, published, now_ms=0)
        if seal:
            with ledger.write() as connection:
                word_segments.seal_when_due(connection, 0, seal_turns=1)


def found(memory: Memory, query: str, **options: Any) -> list[Found]:
    hits = memory.search(query, SCOPE, limit=50, window=0, profile="keyword", **options)
    return [Found(hit.session_id, hit.score, hit.anchor_index) for hit in hits]


@pytest.fixture
def memory(shards: Shards) -> Memory:
    return open_memory(shards.data_dir, embedder=FakeEmbedder())


texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
spoken = st.tuples(
    st.integers(0, 4), st.integers(0, 30), st.integers(0, 2), texts, st.sampled_from(["user", "assistant"])
)


@given(
    batches=st.lists(st.lists(spoken, min_size=1, max_size=8), min_size=1, max_size=4),
    asked=st.lists(st.sampled_from(HARD) | texts, min_size=4, max_size=8),
    sealed=st.lists(st.booleans(), min_size=4, max_size=4),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_index_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], asked: list[str], sealed: list[bool]
) -> None:
    """Words, parts of words and phrases, across segments, the tail above them, edits and deletions."""
    shards = Shards(tmp_path_factory.mktemp("data", numbered=True))
    with closing(open_memory(shards.data_dir, embedder=FakeEmbedder())) as memory:
        number = 0
        for batch, seal in zip(batches, sealed, strict=False):
            published: list[Event] = []
            for session, at, kind, text, role in batch:
                number += 1
                name, known = f"s{session}", f"t{at % 5}"
                if kind == 0:
                    deleted = TurnDeleted(
                        scope=SCOPE, session_id=name, turn_id=known, timestamp_ms=0, event_id=f"e{number}"
                    )
                    published.append(deleted)
                else:
                    said = {"turn_id": known, "revision": number} if kind == 1 else {}
                    published.append(turn(f"e{number}", text, session=name, at=at * 3, role=role, **said))
            apply(shards, published, seal=seal)
            sessions = read_sessions(shards, SCOPE)
            for query in asked:
                assert found(memory, query) == scan(sessions, query), query


def test_hard_ones_are_found_as_a_scan_finds_them(shards: Shards, memory: Memory) -> None:
    """Each of the spec's list, over texts made of the same things, in three segments and a tail."""
    chance = random.Random(5)
    for part in range(4):
        said = [
            turn(
                f"e{part}-{i}",
                "".join(chance.choices(PIECES, k=9)),
                session=f"s{chance.randrange(30)}",
                at=3 * chance.randrange(900),
            )
            for i in range(150)
        ]
        apply(shards, said, seal=part < 3)
    n_found, sessions = 0, read_sessions(shards, SCOPE)
    for query in HARD:
        expected = scan(sessions, query)
        assert found(memory, query) == expected, query
        n_found += bool(expected)
    assert n_found > len(HARD) * 2 // 3


def test_ten_thousand_hostile_queries_raise_nothing_and_show_no_other_scope(shards: Shards, memory: Memory) -> None:
    """Whatever a user types is looked for as it stands; only what is too long is refused, by name."""
    apply(shards, [turn(f"e{i}", "".join(PIECES[i::7]), session=f"s{i % 5}", at=3 * i) for i in range(40)], seal=True)
    apply(shards, [turn(f"o{i}", "".join(PIECES), session="secret", scope=OTHER) for i in range(5)])
    chance = random.Random(1)
    letters = "".join(PIECES) + string.punctuation + "\x00\ud800\u202e"
    for number in range(10_000):
        query = "".join(chance.choices(letters, k=chance.choice((1, 2, 3, 8, 30))))
        profile = "best" if number % 20 == 0 else "keyword"
        hits = memory.search(query, SCOPE, window=0, profile=profile, limit=50 if number % 10 == 1 else 1)
        assert all(hit.session_id != "secret" for hit in hits)
    with pytest.raises(ValueError, match="query:"):
        memory.search("x" * 5_000, SCOPE)


def test_edited_deleted_and_late_turns_are_right_at_once(shards: Shards, memory: Memory) -> None:
    """The reader has its segments in memory already, and another process writes."""
    first = [turn(f"e{i}", f"blue whale {i}", session=f"s{i % 3}", at=3 * i, turn_id=f"t{i}") for i in range(9)]
    apply(shards, first, seal=True)
    assert [hit.session_id for hit in found(memory, "whale")] == ["s2", "s1", "s0"]
    apply(shards, [turn("e20", "red fox", session="s2", at=24, turn_id="t8", revision=1)])
    assert [hit.score for hit in found(memory, "whale")] == [9, 9, 6]
    assert [hit.session_id for hit in found(memory, "fox")] == ["s2"]
    apply(shards, [SessionDeleted(scope=SCOPE, session_id="s1", timestamp_ms=0, event_id="d1")])
    apply(shards, [turn("e21", "a whale came early", session="s0", at=-5)])
    assert found(memory, "whale") == [Found("s0", 12, 0), Found("s2", 6, 0)]
    assert [session.session_id for session in memory.recent(SCOPE)] == ["s2", "s0"]
    apply(shards, [ScopeDeleted(scope=SCOPE, timestamp_ms=2**42, event_id="d2")])
    assert found(memory, "whale") == [] == memory.recent(SCOPE)


def test_nothing_of_a_forgotten_turn_is_left_after_the_purge(shards: Shards) -> None:
    """A segment tells what its turns said, a card how its session began: both are files of the scope."""
    apply(
        shards, [turn("e1", "xylophonequartet", metadata={"title": "zanzibarvoyage"}), turn("e2", "hello")], seal=True
    )
    apply(shards, [TurnDeleted(scope=SCOPE, session_id="s1", turn_id="e1", timestamp_ms=0, event_id="d1")])
    with closing(open_ledger(shards, SCOPE)) as ledger:
        upkeep.purge_ledger(ledger)
    for path in shards.folder(SCOPE).iterdir():
        content = path.read_bytes()
        assert b"xylophonequartet" not in content
        assert b"zanzibarvoyage" not in content


def test_filters_are_applied_before_the_limit(shards: Shards, memory: Memory) -> None:
    """By date, by role and without a session, in both profiles, compared with a scan that counts the same turns."""
    said = [
        turn(f"e{i}", f"whale {i % 7}", session=f"s{i % 6}", at=3 * i, role=("user", "assistant", "tool")[i % 3])
        for i in range(120)
    ]
    apply(shards, said[:80], seal=True)
    apply(shards, said[80:])
    start_ms = START * 1000
    after, before = START + 100 * MINUTES, START + 200 * MINUTES
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"after": after}, lambda _s, at, _r: at >= after * 1000),
        ({"before": before}, lambda _s, at, _r: start_ms <= at <= before * 1000),
        ({"role": "tool"}, lambda _s, _at, role: role == "tool"),
        (
            {"role": ["user", "tool"], "after": after},
            lambda _s, at, role: role in {"user", "tool"} and at >= after * 1000,
        ),
        ({"exclude": "s1"}, lambda name, _at, _r: name != "s1"),
        ({"exclude": ["s1", "none"], "role": "user"}, lambda name, _at, role: name != "s1" and role == "user"),
    ]
    for options, counts in cases:
        expected = scan(read_sessions(shards, SCOPE), "whale 3", counts=counts)
        assert found(memory, "whale 3", **options) == expected, options
        best = memory.search("whale 3", SCOPE, limit=50, **options)
        assert {hit.session_id for hit in best} == {hit.session_id for hit in expected}


def test_pages_follow_each_other_without_gap_or_repetition(shards: Shards, memory: Memory) -> None:
    """An agent that asks for more gets the next ones."""
    apply(shards, [turn(f"e{i}", "whale", session=f"s{i}", at=i % 4) for i in range(23)])
    for profile in ("keyword", "best"):
        whole = [hit.session_id for hit in memory.search("whale", SCOPE, limit=50, profile=profile)]
        pages = [memory.search("whale", SCOPE, limit=5, offset=at, profile=profile) for at in range(0, 30, 5)]
        assert [hit.session_id for page in pages for hit in page] == whole
        assert len(whole) == 23
    listed = [session.session_id for at in range(0, 30, 5) for session in memory.recent(SCOPE, limit=5, offset=at)]
    assert listed == [session.session_id for session in memory.recent(SCOPE, limit=50)]


def test_a_session_continued_nine_times_comes_back_once_with_the_one_that_matches(
    shards: Shards, memory: Memory
) -> None:
    """The original shows the continuation found first, with the messages of another."""
    apply(shards, [turn("r", "hello", session="root")])
    for number in range(9):
        text = "the blue whale" if number == 8 else "the sea"
        said = turn(f"e{number}", text, session=f"c{number}", at=number, metadata={"root_session_id": "root"})
        apply(shards, [said])
    for profile in ("keyword", "best"):
        (hit,) = memory.search("blue whale", SCOPE, profile=profile)
        assert (hit.session_id, [m["content"] for m in hit.messages]) == ("c8", ["the blue whale"])


def test_five_hundred_automated_sessions_do_not_hide_three_human_ones(shards: Shards, memory: Memory) -> None:
    """A nightly job says the same words every night, and said them last."""
    apply(
        shards,
        [
            turn(f"a{i}", "backup report done", session=f"auto{i}", at=900 + i, metadata={"source": "cron"})
            for i in range(500)
        ]
        + [turn(f"h{i}", "where is the backup report", session=f"human{i}", at=i) for i in range(3)],
    )
    human = {"human0", "human1", "human2"}
    for profile in ("keyword", "best"):
        hits = memory.search("backup report", SCOPE, limit=5, profile=profile)
        assert {hit.session_id for hit in hits[:3]} == human
    assert {session.session_id for session in memory.recent(SCOPE, limit=3)} == human


def test_a_current_session_with_five_hundred_matches_does_not_hide_an_old_one_with_one(
    shards: Shards, memory: Memory
) -> None:
    """What stands in the context already need not be found."""
    apply(
        shards,
        [turn(f"e{i}", "the blue whale again", session="now", at=100 + i) for i in range(500)]
        + [turn("old", "we saw one whale", session="old")],
    )
    for profile in ("keyword", "best"):
        everything = memory.search("whale", SCOPE, limit=2, profile=profile)
        assert {hit.session_id for hit in everything} == {"now", "old"}
        (hit,) = memory.search("whale", SCOPE, limit=1, profile=profile, exclude="now")
        assert hit.session_id == "old"


def test_profile_best_answers_questions_that_share_no_word_with_a_needle(shards: Shards, memory: Memory) -> None:
    """People ask; a stem is enough, and a turn counts before a worker has seen it."""
    apply(
        shards,
        [
            turn("e1", "I was running a marathon last spring", session="sport"),
            turn("e2", "what did the cat want", session="cat", at=1),
        ],
    )
    hits = memory.search("What did she run?", SCOPE, limit=2)
    assert hits[0].session_id == "sport"
    assert "running" in hits[0].snippet
    with pytest.raises(ConfigError, match="fastest"):
        memory.search("whale", SCOPE, profile="fastest")


@pytest.mark.parametrize("seal", [True, False])
def test_a_phrase_neither_crosses_turns_nor_other_white_space(shards: Shards, memory: Memory, *, seal: bool) -> None:
    """Words stand side by side only inside one turn, a single space between them as in the query."""
    said = ["so blue", "whale here", "blue  whale", "blue\nwhale", "bluewhale", "the blue whale", "true blue whales"]
    apply(shards, [turn(f"e{i}", text, session=f"s{i}", at=i) for i, text in enumerate(said)], seal=seal)
    scores = {hit.session_id: hit.score for hit in found(memory, "blue whale")}
    assert scores == {"s0": 1, "s1": 1, "s2": 2, "s3": 2, "s4": 2, "s5": 4, "s6": 4}
    assert {hit.session_id for hit in found(memory, "blue  whale") if hit.score == 4} == {"s2"}


def test_a_removed_turn_is_gone_from_a_sealed_segment_for_a_reader_that_has_it_in_memory(
    shards: Shards, memory: Memory
) -> None:
    """The segment still tells its words, until the purge; after it the reader reads the new one."""
    apply(shards, [turn(f"e{i}", "whale", session=f"s{i}", at=i, turn_id=f"t{i}") for i in range(3)], seal=True)
    assert len(found(memory, "whale")) == 3
    apply(shards, [TurnDeleted(scope=SCOPE, session_id="s1", turn_id="t1", timestamp_ms=0, event_id="d")])
    assert [hit.session_id for hit in found(memory, "whale")] == ["s2", "s0"]
    with closing(open_ledger(shards, SCOPE)) as ledger:
        upkeep.purge_ledger(ledger)
        assert not ledger.connection.execute("SELECT * FROM word_gaps").fetchall()
    assert [hit.session_id for hit in found(memory, "whale")] == ["s2", "s0"]


@pytest.mark.parametrize("profile", ["keyword", "best"])
def test_a_reader_that_comes_after_a_deletion_and_before_its_purge_counts_no_turn_of_it(
    shards: Shards, memory: Memory, profile: str
) -> None:
    """The segment names a session, the latest, that has no card any more."""
    apply(shards, [turn(f"e{i}", "whale", session=f"s{i}", at=i) for i in range(3)], seal=True)
    apply(shards, [SessionDeleted(scope=SCOPE, session_id="s2", timestamp_ms=0, event_id="d")])
    assert [hit.session_id for hit in memory.search("whale", SCOPE, profile=profile)] == ["s1", "s0"]
    assert [hit.session_id for hit in memory.search("whale", SCOPE, exclude="s1", profile=profile)] == ["s0"]


def test_a_purged_turn_is_gone_for_a_reader_that_saw_it_before_it_was_sealed(shards: Shards, memory: Memory) -> None:
    """A purge may be over before an open reader looks again: it must still be told."""
    apply(shards, [turn(f"e{i}", "whale", session=f"s{i}", at=i, turn_id=f"t{i}") for i in range(3)])
    assert len(found(memory, "whale")) == 3
    apply(shards, [TurnDeleted(scope=SCOPE, session_id="s1", turn_id="t1", timestamp_ms=0, event_id="d")])
    with closing(open_ledger(shards, SCOPE)) as ledger:
        upkeep.purge_ledger(ledger)
    assert [hit.session_id for hit in found(memory, "whale")] == ["s2", "s0"]


@pytest.mark.parametrize(
    "damage",
    [
        "turns = substr(turns, 1, 30)",
        "turns = substr(turns, 1, 26)",
        "turns = CAST(substr(turns, 1, 16) || x'ffffffff' || substr(turns, 21) AS BLOB)",
        "roles = '['",
        "vocabulary = CAST(' whale ' AS BLOB)",
        "starts = substr(starts, 1, 4)",
        "holders = CAST(x'00000000ffff' || substr(holders, 7) AS BLOB)",
        "places = CAST(x'ffffffffffffffff' || substr(places, 9) AS BLOB)",
    ],
)
def test_a_damaged_segment_is_a_clear_error(shards: Shards, memory: Memory, damage: str) -> None:
    """The one who asks is told what to do, not which index was out of bounds."""
    apply(shards, [turn(f"e{i}", "whale song", session=f"s{i}", at=i) for i in range(3)], seal=True)
    with closing(open_ledger(shards, SCOPE)) as ledger:
        ledger.connection.execute(f"UPDATE word_segments SET {damage}")
    with pytest.raises(ShardError, match=r"segment 1 is damaged; 'turnstream doctor --repair'"):
        found(memory, "whale song")


def test_sixteen_short_segments_become_one(shards: Shards, memory: Memory) -> None:
    """A search looks into each: there must not be many, however the turns came."""
    for number in range(20):
        apply(shards, [turn(f"e{number}", f"whale {number}", at=3 * number)], seal=True)
    with closing(open_ledger(shards, SCOPE)) as ledger:
        segments = ledger.connection.execute("SELECT above, up_to FROM word_segments ORDER BY up_to").fetchall()
    assert segments == [(0, 16), (16, 17), (17, 18), (18, 19), (19, 20)]
    assert found(memory, "whale") == [Found("s1", 60, 0)]
