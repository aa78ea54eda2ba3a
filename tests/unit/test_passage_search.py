"""Candidates are found by words, by meaning and by what stands beside them, in scopes of every size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import apsw
import numpy as np
import pytest

from pipeline.ledger import passage_reads
from pipeline.ledger.schema import DDL
from pipeline.ledger.words import Mark, word_ids
from pipeline.records import Scope, TurnDeleted
from retrieval.embedded_question import ask
from retrieval.passage_search import Found, Sought, find
from retrieval.reader import ShardReaders
from retrieval.trace_search import Nearest
from tests.fakes import FakeTokenEmbedder
from tests.ledgers import NOW_MS, publish_snapshot, remember, turn

SCOPE = Scope("user", "u1")
EMBEDDER = FakeTokenEmbedder()


def search(readers: ShardReaders, query: str, *, sought: Sought | None = None, **limits: int) -> Found:
    with readers.view(SCOPE, EMBEDDER.model_key) as view:
        assert view is not None
        asked = ask(query, passage_reads.speakers(view.connection), EMBEDDER)
        return find(view, asked, asked_ms=NOW_MS, sought=sought, **limits)


def candidates(found: Found) -> list[str]:
    return [found.places[row].turn.turn_id for row in found.passages.candidates]


def said(*texts: str, session: str = "s1", first: int = 0, **fields: object) -> list:
    return [
        turn(SCOPE, f"{session}-{i}", text, session=session, at=1.6e9 + i, index=i, **fields)
        for i, text in enumerate(texts, start=first)
    ]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_smallest_scopes_can_be_searched(shards, readers, n: int) -> None:
    """A bot is asked before anything was said, and after the first word."""
    remember(shards, SCOPE, said(*["the harbour was cold", "and the boat left"][:n]), EMBEDDER)
    found = search(readers, "Was the harbour cold?")
    assert candidates(found) == ["s1-0", "s1-1"][:n]
    assert found.passages.vectors.shape == (n, 64)


def test_passages_hold_what_was_kept_of_them(shards, readers) -> None:
    """Words, marks, tokens and vectors must be those of their own chunk: a shift by one is never noticed."""
    texts = ["We met in May.", "Where was that?", "In Lisbon, three of us."]
    remember(shards, SCOPE, said(*texts, speaker="Ana"), EMBEDDER)
    passages = search(readers, "Lisbon").passages
    vectors, tokens = EMBEDDER.embed_with_tokens(texts)
    assert np.allclose(passages.vectors, vectors, atol=1e-3)
    assert (passages.tokens == np.concatenate(tokens)).all()
    assert passages.token_ends.tolist() == np.cumsum([len(of_text) for of_text in tokens]).tolist()
    assert [passages.words_of(row).tolist() for row in range(3)] == [word_ids(text).tolist() for text in texts]
    assert passages.marks.tolist() == [Mark.TELLS_TIME, Mark.ASKS, Mark.TELLS_NUMBER]
    assert list(passages.speaker) == ["Ana"] * 3
    assert (passages.session.tolist(), passages.place.tolist()) == ([0, 0, 0], [0, 1, 2])


def test_what_stands_beside_a_find_is_a_candidate_and_its_neighbours_are_at_hand(shards, readers) -> None:
    """An answer often has no word of the question; its question has."""
    filler = [f"filler number{i}" for i in range(120)]
    remember(shards, SCOPE, said(*filler, "which zeppelin was it", "the red one", *filler), EMBEDDER)
    found = search(readers, "zeppelin")
    place = candidates(found).index("s1-120")
    assert candidates(found)[place - 1 : place + 2] == ["s1-119", "s1-120", "s1-121"]
    at_hand = [place.turn.turn_id for place in found.places]
    assert {"s1-118", "s1-122"} <= set(at_hand)
    has = found.passages.has
    assert has[-2][at_hand.index("s1-120")]
    assert has[2][at_hand.index("s1-120")]
    assert found.passages.n < 240, "what is far from everything found is not read"


def test_runs_that_do_not_touch_are_not_taken_for_neighbours(shards, readers) -> None:
    """Between two finds of one session others may have been said."""
    filler = [f"nothing {i} here" for i in range(150)]
    remember(shards, SCOPE, said("zeppelin one", *filler, "zeppelin two", *filler), EMBEDDER)
    passages = search(readers, "zeppelin").passages
    steps = np.diff(passages.place)
    assert passages.place[0] == 0
    assert (steps >= 1).all()
    assert (steps > 1).any()


def test_a_session_ends_where_another_begins(shards, readers) -> None:
    """The last word of one and the first of the next stand side by side in time alone."""
    remember(shards, SCOPE, said("the end zeppelin", session="a") + said("a beginning", session="b"), EMBEDDER)
    passages = search(readers, "zeppelin").passages
    assert passages.place.tolist() == [0, 0]
    assert not passages.has[1].any()


def test_both_ends_of_time_bind_candidates_not_their_neighbours(shards, readers) -> None:
    """What was said just before may explain a hit; it must not be one."""
    remember(shards, SCOPE, said("zeppelin early", "zeppelin in time", "zeppelin late"), EMBEDDER)
    found = search(readers, "zeppelin", after_ms=1_600_000_001_000, before_ms=1_600_000_001_000)
    assert candidates(found) == ["s1-1"]
    assert found.passages.n == 3


def test_what_was_edited_or_forgotten_is_not_found(shards, readers) -> None:
    """Not by its old words, not by its old tokens, with the snapshot that still knows it."""
    remember(shards, SCOPE, said("zeppelin alpha", "zeppelin beta", "zeppelin gamma"), EMBEDDER)
    publish_snapshot(shards, SCOPE, EMBEDDER)
    edited = turn(SCOPE, "e2", "balloon", session="s1", at=1.6e9 + 1, turn_id="s1-1", index=1, revision=1)
    gone = TurnDeleted(scope=SCOPE, session_id="s1", turn_id="s1-2", timestamp_ms=NOW_MS, event_id="d")
    remember(shards, SCOPE, [edited, gone], EMBEDDER)
    found = search(readers, "zeppelin beta")
    assert candidates(found) == ["s1-0", "s1-1"]
    assert found.passages.words_of(1).tolist() == word_ids("balloon").tolist()
    with readers.view(SCOPE, EMBEDDER.model_key) as view:
        assert view is not None
        kept = [view.connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in
                ("traces", "vectors", "token_vectors", "passages")]  # fmt: skip
    assert kept == [2, 2, 2, 2]


def test_turns_that_were_forgotten_since_somebody_found_them_are_none(shards, readers) -> None:
    """A session may be forgotten between the transaction that lists its turns and the one that ranks them."""
    remember(shards, SCOPE, said("the harbour was cold"), EMBEDDER)
    gone = Sought(Nearest([], np.empty(0, np.float32)), [998, 999])
    assert candidates(search(readers, "Was the harbour cold?", sought=gone)) == []


def test_with_a_snapshot_or_without_the_same_is_found(shards, readers) -> None:
    """A snapshot is there to be quick, not to answer differently."""
    remember(
        shards,
        SCOPE,
        said(*["zeppelin " * (i % 13 + 1) + "balloon " * (i // 13) + f"word{i}" for i in range(90)]),
        EMBEDDER,
    )
    before = candidates(search(readers, "zeppelin word33"))
    publish_snapshot(shards, SCOPE, EMBEDDER)
    assert candidates(search(readers, "zeppelin word33")) == before


def test_names_of_speakers_find_nothing_by_themselves(shards, readers) -> None:
    """Turns name whom they are addressed to: the name finds what was said to somebody, not by him."""
    ledger = said("hello Ana", "zeppelin", speaker="Ben") + said("hi", session="s2", speaker="Ana")
    remember(shards, SCOPE, ledger, EMBEDDER)
    found = search(readers, "What did Ana say about the zeppelin?")
    assert found.n_matching == 1
    assert found.question.named == frozenset({"Ana"})


@pytest.fixture
def database() -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute(DDL)
        yield connection


def test_totals_of_the_full_text_are_what_counting_gives(database: apsw.Connection) -> None:
    """Read from FTS5's own record: a change of its format must be seen here."""
    assert passage_reads.fulltext_totals(database) == (0, 0)
    for number in range(300):
        database.execute(
            "INSERT INTO fulltext (rowid, text) VALUES (?, ?)", (number + 1, "going " * (number % 5 + 1))
        )
    database.execute("DELETE FROM fulltext WHERE rowid <= 100")
    expected = sum(number % 5 + 1 for number in range(100, 300))
    assert passage_reads.fulltext_totals(database) == (200, expected)
    assert passage_reads.document_frequencies(database, ["go", "nothing"]) == {"go": 200}


def test_all_speakers_are_listed_once(database: apsw.Connection) -> None:
    """Jumping from name to name must neither stop at the first nor go on for ever."""
    for number, speaker in enumerate(("Cy", "Ana", None, "Ben", "Ana")):
        database.execute(
            "INSERT INTO turns (session_id, turn_id, event_id, revision, role, speaker, content, timestamp_ms,"
            " first_ms, turn_index, tags, metadata) VALUES ('s', ?1, ?1, 0, 'user', ?2, '', 0, 0, 0, '[]', '{}')",
            (str(number), speaker),
        )
    assert passage_reads.speakers(database) == ["Ana", "Ben", "Cy"]
