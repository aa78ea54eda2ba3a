"""What is told about a session: whether it is automated, which conversation it belongs to, its title and its ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import NotFoundError
from pipeline.ledger import events
from pipeline.ledger.automated import Pace, is_automated
from pipeline.records import Event, Scope, Turn, TurnDeleted
from pipeline.shards import Shards
from retrieval.memory import Memory, open_memory
from retrieval.search import lineage
from retrieval.search.snippet import snippet
from tests.fakes import FakeEmbedder
from tests.ledgers import open_ledger

SCOPE = Scope("user", "u1")
START = 1_700_000_000


def turn(event_id: str, content: str, *, session: str = "s1", at_s: float = 0, **fields: Any) -> Turn:
    values = {"role": "user", **fields}
    return Turn(scope=SCOPE, session_id=session, content=content, timestamp=START + at_s, event_id=event_id, **values)


@pytest.fixture
def memory(data_dir: Path) -> Memory:
    return open_memory(data_dir, embedder=FakeEmbedder())


def tell(memory: Memory, *published: Event) -> None:
    with closing(open_ledger(Shards(memory._readers.shards.data_dir), SCOPE)) as ledger:
        events.apply(ledger, published, now_ms=0)


def keyword(memory: Memory, query: str, **options: Any) -> Any:
    return memory.search(query, SCOPE, profile="keyword", **options)


def paced(pauses_s: Sequence[float], roles: str = "ua") -> Pace:
    pace, at_ms = Pace(), 0
    for number, pause in enumerate([0, *pauses_s]):
        at_ms += round(pause * 1000)
        pace = pace.then(at_ms, {"u": "user", "a": "assistant"}[roles[number % len(roles)]])
    return pace


@pytest.mark.parametrize("source", ["scheduled", "automated", "cron", "system", "batch", "CRON"])
def test_a_session_is_automated_when_it_says_so(source: str) -> None:
    """Five names, in any case; the flag only when it is true."""
    assert is_automated({"source": source}, Pace())
    assert is_automated({"automated": True}, Pace())
    assert not is_automated({"source": "telegram", "automated": "true"}, Pace())


@pytest.mark.parametrize(
    ("pauses", "automated"),
    [
        ([60.5] * 5, False),  # 6 turns in 302.5 s are 71 an hour, but alike: see below
        ([10.0] * 9, True),  # one every ten seconds, on the dot
        ([0.2, 0.3, 0.1, 0.5, 0.2, 0.3], True),  # nobody reads so fast
        ([4, 9, 3, 31, 5, 14, 3, 48], False),  # a lively chat: several a minute, each time another while
        ([10.0, 10.0], False),  # three turns are too few to tell
        ([130.0] * 9, False),  # slow
    ],
)
def test_speed_alone_does_not_demote_a_session_with_human_pauses(pauses: list[float], *, automated: bool) -> None:
    """The documentation's rule takes every lively chat for a machine."""
    pace = paced(pauses)
    if pauses == [60.5] * 5:
        assert pace.is_fast()
        automated = True
    assert is_automated({}, pace) is automated


def test_exactly_sixty_turns_an_hour_are_not_fast() -> None:
    """More than sixty, says the documentation; and a burst at one instant has no span."""
    assert not paced([80.0, 80.0, 80.0]).is_fast()
    assert paced([79.9, 80.0, 80.0]).is_fast()
    assert not paced([0, 0, 0, 0]).is_fast()


def test_an_automated_session_scores_a_quarter(memory: Memory) -> None:
    """Whatever the order in which its turns came, and only while it is one."""
    said = [turn(f"e{i}", "whale", session="auto", at_s=10 * i) for i in range(8)]
    tell(memory, *reversed(said), turn("h", "whale", session="human"))
    assert [(hit.session_id, hit.score) for hit in keyword(memory, "whale")] == [("auto", 6), ("human", 3)]
    tell(
        memory,
        *(
            TurnDeleted(scope=SCOPE, session_id="auto", turn_id=f"e{i}", timestamp_ms=0, event_id=f"d{i}")
            for i in range(5)
        ),
    )
    assert [(hit.session_id, hit.score) for hit in keyword(memory, "whale")] == [("auto", 9), ("human", 3)]


def test_times_that_an_importer_made_up_do_not_make_a_machine(memory: Memory) -> None:
    """A transcript without times is given one a second."""
    tell(memory, *(turn(f"e{i}", "whale", at_s=i, metadata={"time_from": "session"}) for i in range(20)))
    (hit,) = keyword(memory, "whale")
    assert hit.score == 60


@given(order=st.permutations(range(8)), sizes=st.lists(st.integers(1, 4), min_size=8, max_size=8))
@settings(max_examples=20, deadline=None)
def test_a_card_tells_the_same_whatever_the_order_in_which_turns_came(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], sizes: list[int]
) -> None:
    """A late turn may be the first, say another title, or slow the session down."""
    roles = ("assistant", "user", "user", "tool", "user", "assistant", "user", "assistant")
    said = [
        turn(
            f"e{i}",
            f"text {i}",
            at_s=(i // 2) * 7 + i % 3,
            role=roles[i],
            metadata={"title": f"title {i}"} if i in {2, 5} else {"source": "cron"} if i == 1 else {},
        )
        for i in range(8)
    ]
    cards = []
    for published in (said, [said[i] for i in order]):
        shards, left = Shards(tmp_path_factory.mktemp("data")), list(published)
        with closing(open_ledger(shards, SCOPE)) as ledger:
            for size in sizes:
                batch, left = left[:size], left[size:]
                events.apply(ledger, batch, now_ms=0)
            columns = "n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace, is_automated"
            cards.append(ledger.connection.execute(f"SELECT {columns} FROM cards").fetchall())
    assert cards[0] == cards[1]


def test_a_session_keeps_its_number(memory: Memory) -> None:
    """Readers keep arrays as long as the greatest number: it must not grow with every turn."""
    for i in range(20):
        tell(memory, turn(f"e{i}", "whale", session=f"s{i % 2}", at_s=i % 7))
    with closing(open_ledger(Shards(memory._readers.shards.data_dir), SCOPE)) as ledger:
        assert ledger.connection.execute("SELECT session_no FROM cards ORDER BY 1").fetchall() == [(1,), (2,)]
        assert ledger.connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'cards'").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ({"lineage_id": "x"}, {"lineage_id": "x"}, True),
        ({"root_session_id": "x"}, {"root_session_id": "x"}, True),
        ({"thread_id": "x"}, {"thread_id": "x"}, True),
        ({"lineage_id": "x"}, {"thread_id": "x"}, False),
        ({"lineage_id": "x", "thread_id": "t"}, {"lineage_id": "y", "thread_id": "t"}, False),
        ({"lineage_id": "x", "thread_id": "t"}, {"thread_id": "t"}, False),
        ({"parent_session_id": "x"}, {"parent_session_id": "x"}, False),
        ({}, {"root_session_id": "a"}, True),
        ({}, {"thread_id": "a"}, False),
        ({}, {"parent_session_id": "a"}, False),
        ({"lineage_id": "x"}, {"root_session_id": "a"}, True),
        ({"event.lineage_id": "x"}, {"lineage_id": "x"}, True),
        ({"root_session_id": "b"}, {"root_session_id": "a"}, True),
    ],
)
def test_continuations_collapse_by_the_first_of_three_names(
    memory: Memory, first: dict[str, str], second: dict[str, str], *, is_one: bool
) -> None:
    """A value under one name says nothing about another; who came before says nothing at all."""
    tell(
        memory,
        turn("e1", "whale", session="a", metadata=first),
        turn("e2", "whale whale fin", session="b", at_s=600, metadata=second),
    )
    names = [hit.session_id for hit in keyword(memory, "whale fin")]
    assert names == (["b"] if is_one else ["b", "a"])


def test_roots_are_followed_to_the_end_and_circles_end() -> None:
    """A continuation of a continuation; two that name each other."""
    keys = {"a": ("root_session_id", "b"), "b": ("root_session_id", "c"), "c": ("root_session_id", "c")}
    assert lineage.resolved("a", keys) == lineage.resolved("c", keys) == ("root_session_id", "c")
    circle = {"a": ("root_session_id", "b"), "b": ("root_session_id", "a")}
    assert lineage.resolved("a", circle) == lineage.resolved("b", circle) == ("root_session_id", "a")


@pytest.mark.parametrize(
    ("metadata", "title"),
    [
        ({"title": "Trip", "agent_name": "Helper"}, "Trip"),
        ({"agent_name": "Helper"}, "Helper"),
        ({}, "where do we go in may and june and july and august of the ye"),
    ],
)
def test_a_title_is_the_given_one_then_the_agent_then_the_first_user_turn(
    memory: Memory, metadata: dict[str, str], title: str
) -> None:
    """Sixty characters of it, white space collapsed; without any user turn, the id."""
    text = "where do  we go\nin may and june and july and august of the year after next?"
    tell(
        memory,
        turn("e0", "hello", role="assistant", metadata=metadata),
        turn("e1", text, at_s=9),
        turn("e2", "x", at_s=10),
    )
    tell(memory, turn("e9", "hello", session="quiet", role="assistant"))
    titles = {session.session_id: session.title for session in memory.recent(SCOPE)}
    assert titles == {"s1": title, "quiet": "quiet"}
    (hit,) = keyword(memory, "where do")
    assert (hit.title, hit.when) == (title, "2023-11-14T22:13:30+00:00")


@pytest.mark.parametrize(
    ("roles", "opening", "closing"),
    [
        ("ua", [], []),
        ("u", [], []),
        ("uatt", [], []),
        ("uau", [0, 1], [2]),
        ("suatau", [1, 2], [4, 5]),
        ("uauauaua", [0, 1], [6, 7]),
        ("ttt", [], []),
    ],
)
def test_bookends_are_two_turns_of_talk_each_and_never_overlap(
    memory: Memory, roles: str, opening: list[int], closing: list[int]
) -> None:
    """With three, the original shows the middle one twice."""
    names = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}
    tell(memory, *(turn(f"e{i}", f"whale {i}", at_s=60 * i, role=names[r]) for i, r in enumerate(roles)))
    (hit,) = keyword(memory, "whale")
    shown = hit.as_dict()
    assert ("bookends" in shown) is bool(opening)
    if opening:
        assert [m["index"] for m in hit.bookends["opening"]] == opening
        assert [m["index"] for m in hit.bookends["closing"]] == closing


def test_the_anchor_is_the_first_best_turn_and_its_window_ends_with_the_session(memory: Memory) -> None:
    """Turns are counted in the order of the session, not of arrival."""
    texts = ["no", "blue", "blue whale", "no", "blue whale", "no"]
    tell(memory, *(turn(f"e{i}", text, at_s=90 * i) for i, text in reversed(list(enumerate(texts)))))
    (hit,) = keyword(memory, "Blue Whale ", window=3)
    assert (hit.score, hit.anchor_index) == (1 + 4 + 4, 2)
    assert [message["index"] for message in hit.messages] == [0, 1, 2, 3, 4, 5]
    assert hit.messages[2] == {
        "index": 2,
        "message_id": "e2",
        "role": "user",
        "content": "blue whale",
        "timestamp": "2023-11-14T22:16:20+00:00",
    }
    tell(memory, turn("named", "a whale", session="s2", speaker="Maya"))
    assert memory.window("s2", SCOPE)[0]["speaker"] == "Maya"
    narrow = keyword(memory, "blue whale", window=0)[0]
    assert [message["index"] for message in narrow.messages] == [2]


@pytest.mark.parametrize(
    ("around", "indexes"),
    [
        (None, [7, 8, 9]),
        ("", [7, 8, 9]),
        ("4", [2, 3, 4, 5, 6]),
        (4, [2, 3, 4, 5, 6]),
        ("m4", [2, 3, 4, 5, 6]),
        ("0", [0, 1, 2]),
        ("-3", [0, 1, 2]),
        ("99", [7, 8, 9]),
    ],
)
def test_a_window_takes_an_index_or_a_message_id(
    memory: Memory, around: str | int | None, indexes: list[int]
) -> None:
    """An index beyond an end means that end."""
    tell(memory, *(turn(f"e{i}", f"text {i}", at_s=i, turn_id=f"m{i}") for i in range(10)))
    assert [message["index"] for message in memory.window("s1", SCOPE, around, window=2)] == indexes


def test_an_unknown_session_or_turn_is_a_clear_error(memory: Memory) -> None:
    """The original shows an empty window, or the end of the session."""
    tell(memory, turn("e1", "text"))
    for session, around, named in [("none", None, "session_id"), ("s1", "none", "around_message_id")]:
        with pytest.raises(NotFoundError, match=named):
            memory.window(session, SCOPE, around)
    with pytest.raises(NotFoundError, match="user/nobody"):
        memory.window("s1", "user/nobody")


@pytest.mark.parametrize(
    ("text", "wanted", "shown"),
    [
        ("short  text\nhere", ["text"], "short text here"),
        ("a" * 100 + " whale " + "b" * 100, ["whale"], "…" + "a" * 56 + " whale " + "b" * 57 + "…"),
        ("whale " + "b" * 300, ["whale"], "whale " + "b" * 114 + "…"),
        ("b" * 300 + " whale", ["whale"], "…" + "b" * 114 + " whale"),
        ("b" * 300 + " blue\n whale", ["blue whale"], "…" + "b" * 109 + " blue whale"),
        ("İ" * 200 + "whale" + "x" * 200, ["whale"], "…" + "İ" * 57 + "whale" + "x" * 58 + "…"),
        ("c" * 200 + " fin " + "d" * 200, ["whale fin", "whale", "fin"], "…" + "c" * 57 + " fin " + "d" * 58 + "…"),
        ("nothing of it", ["whale"], "nothing of it"),
        ("", ["whale"], ""),
    ],
)
def test_a_snippet_shows_the_match_in_its_middle(text: str, wanted: list[str], shown: str) -> None:
    """About 120 characters on one line; a cut end shows as such."""
    assert snippet(text, wanted) == shown


@pytest.mark.parametrize("grapheme", ["👩‍👩‍👧", "🇩🇪", "e\u0301", "각", "नि"])
def test_a_snippet_splits_no_grapheme(grapheme: str) -> None:
    """Half a family is other people, half a flag is another letter."""
    for n in range(40, 60):
        shown = snippet(grapheme * n + "whale" + grapheme * n + "z" * n, ["whale"]).strip("…")
        before, _, after = shown.partition("whale")
        assert before == grapheme * (len(before) // len(grapheme))
        assert after.rstrip("z") == grapheme * (len(after.rstrip("z")) // len(grapheme))
