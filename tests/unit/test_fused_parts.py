"""The parts of the fused score, each by hand: words, tokens, speakers, neighbours, choice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.ledger.words import Mark, ids_of
from retrieval.fused import choose, lexical, speakers
from retrieval.fused.asking import Asking
from retrieval.fused.features import known_features, matrix, meaning_of
from retrieval.fused.late_interaction import nearest_tokens, weighted_mean
from retrieval.fused.passages import Passages, Question
from tests.questions import passages, question

PEOPLE = frozenset({"Melanie", "Ann Lee", "user"})


def features(asked: Question, found: Passages, *names: str) -> list[list[float]]:
    """Compute features, a list for each passage."""
    return matrix(asked, found, names, mean_words=2.0).astype(float).round(4).tolist()


def test_bm25_is_a_share_of_the_most_it_could_be() -> None:
    """Scores of different questions have to be comparable."""
    counted, lengths = np.float32([[1, 0], [2, 1], [0, 0]]), np.float32([2, 4, 2])
    scores = lexical.bm25(counted, lengths, np.float32([3, 1]), 2.0)
    one = 3 * 2.2 / (1 + 1.2)  # tf 1, average length
    two = 3 * 2 * 2.2 / (2 + 1.2 * 1.75) + 2.2 / (1 + 1.2 * 1.75)  # length twice the average: 0.25 + 0.75 * 2
    assert scores == pytest.approx([one / 8.8, two / 8.8, 0])
    assert lexical.bm25(counted, lengths, np.float32([0, 0]), 2.0).tolist() == [0, 0, 0]


def test_a_rare_word_weighs_more() -> None:
    """The weight is ln(1 + (N - n + 0.5) / (n + 0.5)), never below 0, even for a count from another moment."""
    assert lexical.idf(10, [0, 10, 12]).tolist() == pytest.approx([math.log(1 + 10.5 / 0.5), math.log(11 / 10.5), 0])


def test_words_are_counted_in_each_passage() -> None:
    """One pass over all words at hand."""
    found = passages("cat dog cat", "", "dog", "bird")
    assert lexical.counts(found, ids_of(["dog", "cat"])).tolist() == [[1, 2], [0, 0], [1, 0], [0, 0]]
    assert lexical.counts(found, ids_of([])).shape == (4, 0)


def test_neighbours_end_with_the_session_and_at_a_gap() -> None:
    """The words of another session, or of what stands far away, are no context."""
    found = passages("a", "b", "c", "d", "e", session=np.array([1, 1, 1, 2, 2]), place=np.array([0, 1, 5, 0, 1]))
    values = np.float32([1, 2, 4, 8, 16])
    assert found.summed(values, (-1, 1)).tolist() == [3, 3, 4, 24, 24]
    assert found.best_near(values, (-1, 1)).tolist() == [2, 2, 4, 16, 16]
    assert found.best_near(values, (-1,)).tolist() == [1, 2, 4, 8, 16]
    assert found.session_rows.tolist() == [0, 0, 0, 1, 1]


def test_words_are_looked_for_two_passages_away() -> None:
    """A passage is found by its neighbours."""
    asked = question("cat")
    wide = np.array(features(asked, passages("x y", "x y", "x y", "x y", "cat y"), "bm25_wide"))[:, 0]
    assert wide[1] == 0
    assert min(wide[2:]) > 0


def test_each_token_finds_its_nearest() -> None:
    """MaxSim: the best match of every token of the question, averaged."""
    tokens = np.int8([[127, 0], [0, 127], [0, -127]])
    found = passages("a", "b", "c", tokens=tokens, token_ends=np.array([2, 2, 3]))
    asked = np.float32([[1, 0], [0, 1], [0.6, 0.8]])
    best = nearest_tokens(asked, found)
    assert best == pytest.approx(np.float32([[1, 1, 0.8], [0, 0, 0], [0, -1, -0.8]]))
    assert weighted_mean(best, np.float32([1, 1, 2])) == pytest.approx([3.6 / 4, 0, -2.6 / 4])
    assert weighted_mean(best, np.float32([0, 0, 0])) == pytest.approx([2.8 / 3, 0, -1.8 / 3])


def test_a_long_question_meets_many_tokens_in_pieces_that_fit_together() -> None:
    """One product of all would be split over all cores; passages do not end where the pieces do."""
    chance = np.random.default_rng(0)
    tokens, ends = chance.integers(-127, 128, (3_000, 64)).astype(np.int8), np.arange(7, 3_007, 100)
    asked = chance.standard_normal((40, 64)).astype(np.float32)
    found = passages(*["a"] * len(ends), tokens=tokens[: ends[-1]], token_ends=ends)
    true = [(of_one @ asked.T / 127).max(axis=0) for of_one in np.split(tokens.astype(float), ends)[:-1]]
    assert nearest_tokens(asked, found) == pytest.approx(np.array(true), abs=1e-3)


def test_without_token_vectors_late_interaction_is_zero() -> None:
    """A model that gives none still ranks."""
    assert features(question("a"), passages("a", "b"), "maxsim", "maxsim_rare_far") == [[0, 0], [0, 0]]


def test_what_is_said_within_ten_passages_counts() -> None:
    """An answer stands near the words of the question; another session, or what follows much later, does not."""
    tokens = np.int8([[127, 0], *[[0, 127]] * 4])
    places = {"session": np.array([1, 1, 1, 1, 2]), "place": np.array([0, 1, 10, 11, 0])}
    found = passages(*"abcde", tokens=tokens, token_ends=np.arange(1, 6), **places)
    asked = question("a", token_vectors=np.float32([[1, 0]]), token_weights=np.float32([1]))
    assert features(asked, found, "maxsim_rare_far") == [[1], [1], [1], [0], [0]]
    assert found.best_within(np.float32([1, 2, 8, 16, 4]), 9).tolist() == [2, 8, 16, 16, 4]


def test_a_session_has_its_words_together() -> None:
    """Evidence that no single passage holds."""
    found = passages("cat", "dog", "cat", session=np.array([1, 1, 2]))
    assert features(question("cat dog"), found, "session_words") == [[1], [1], [0.5]]


def test_a_standing_compares_with_the_other_candidates() -> None:
    """In standard deviations; nobody stands out where all are alike."""
    found = passages("a", "b", "c", vectors=np.float32([[1, 0], [0, 1], [0.5, 0]]), candidates=np.array([0, 1]))
    assert features(question("a"), found, "dense", "dense_standing") == [[1, 1], [0, -1]]
    alike = passages("a", "b")
    assert features(question("a"), alike, "dense_standing") == [[0], [0]]


def test_marks_count_when_the_question_is_after_them() -> None:
    """A word of time is worth something only to a question about time."""
    found = passages("a", "b", marks=np.array([Mark.TELLS_TIME, Mark.ASKS]))
    assert features(question("When was it?"), found, "tells_when", "asks") == [[1, 0], [0, 1]]
    assert features(question("What was it?"), found, "tells_when", "asks") == [[0, 0], [0, 1]]


def test_who_says_it_of_himself_is_told_from_whom_it_is_said_to() -> None:
    """A question about somebody is answered with "I" by him; when nobody is named, "I" may be anybody."""
    found = passages("I paint", "you paint", "my cat", "", speaker=["Ann", "Ann", "Bo", "Ann"])
    assert features(question("a", named=frozenset({"Ann"})), found, "of_self") == [[1], [0], [0], [0]]
    assert features(question("a"), found, "of_self") == [[0]] * 4


def test_every_feature_has_a_meaning_and_copes_with_nothing() -> None:
    """A scope without candidates gives an empty table, whatever a file of coefficients names."""
    names = sorted(known_features())
    assert all(meaning_of(name) for name in names)
    assert matrix(question("a"), passages(), names, mean_words=0.0).shape == (0, len(names))
    assert np.isfinite(matrix(question(""), passages("", "a"), names, mean_words=0.0)).all()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("What did Melanie's kids paint?", {"Melanie"}),
        ("Did Mel like it?", {"Melanie"}),
        ("Where does Lee work?", {"Ann Lee"}),
        ("What did melanie say?", set()),
        ("Can a user see it?", set()),
        ("Did Me go?", set()),
    ],
)
def test_speakers_are_named_by_a_name_or_its_beginning(text: str, named: set[str]) -> None:
    """Only capitalised, and never by the word for a role."""
    assert speakers.named_in(text, PEOPLE) == named


def test_names_leave_a_question_unless_they_are_all_of_it() -> None:
    """Turns name whom they are said to."""
    assert speakers.without_names("What did Melanie's kids and Ann Lee like?", PEOPLE) == "What did kids and like?"
    assert speakers.without_names("Melanie?", PEOPLE) == "Melanie?"
    assert speakers.without_names("小明去年去了哪里？", {"小明"}) == "小明去年去了哪里？"


def test_the_named_speaker_counts_and_two_cancel() -> None:
    """Half for everybody when the question does not tell."""
    said = ["Melanie", "user"]
    assert speakers.match(said, frozenset({"Melanie"})).tolist() == [1, 0]
    assert speakers.match(said, frozenset()).tolist() == [0.5, 0.5]
    assert speakers.match(said, PEOPLE).tolist() == [0.5, 0.5]


def test_a_question_is_taken_apart() -> None:
    """What to embed, what to search, what to count, and what each word and token weighs."""
    asking = Asking("What did Melanie's kids tell Zoe in Rome?", PEOPLE)
    assert asking.embedded_text == "What did kids tell Zoe in Rome?"
    assert asking.search_words == ["kid", "tell", "zoe", "rome"]
    assert asking.counted_words == ["kid", "melani", "rome", "tell", "zoe"]
    asked = asking.question(
        vector=np.float32([1, 0]),
        token_vectors=np.ones((4, 2), np.float32),
        token_spans=[(0, 4), (9, 12), (12, 13), (30, 31)],  # What, kid, s, ?
        document_frequency={"kid": 4, "rome": 1, "melani": 9},
        n_passages=10,
    )
    often, kid, once, rare = lexical.idf(10, [9, 4, 1, 0]).tolist()
    assert asked.weights == pytest.approx([0, 0, often, 0, kid, rare, rare, 0, once])
    assert asked.is_name.tolist() == [False, False, True] + [False] * 6
    assert asked.token_weights == pytest.approx([0.5, kid, kid, 0.2])
    assert asked.named == {"Melanie"}
    assert asked.names_a_stranger  # nobody ever mentioned Zoe


@pytest.mark.parametrize(
    ("text", "stranger"),
    [("Did Zoe go?", True), ("Did Melanie go?", False), ("Zurich?", False), ("Is it. Then she went", False)],
)
def test_a_stranger_is_a_name_inside_a_sentence(text: str, *, stranger: bool) -> None:
    """The first word of a sentence is capitalised anyway."""
    asked = Asking(text, PEOPLE).question(
        vector=np.float32([1, 0]),
        token_vectors=np.empty((0, 2), np.float32),
        token_spans=[],
        document_frequency={},
        n_passages=1,
    )
    assert asked.names_a_stranger is stranger


def test_of_two_that_say_the_same_the_better_stays() -> None:
    """The same vector and the same words; short answers may be alike."""
    found = passages("we met in old rome", "we met in old rome", "we met in old paris", "yes", "yes")
    assert choose.drop_near_duplicates(np.array([1, 0, 2, 4, 3]), found, limit=9).tolist() == [1, 2, 4, 3]
    assert choose.drop_near_duplicates(np.array([1, 0, 2, 4, 3]), found, limit=2).tolist() == [1, 2]
    assert choose.drop_near_duplicates(np.array([1, 0]), found, limit=0).tolist() == []
    apart = passages("we met in old rome", "we met in old rome", vectors=np.float32([[1, 0], [0, 1]]))
    assert choose.drop_near_duplicates(np.array([0, 1]), apart, limit=9).tolist() == [0, 1]


def test_equal_scores_keep_their_place() -> None:
    """An answer never varies."""
    assert choose.best_first(np.float32([1, 2, 1, 2]), np.arange(4)).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("limit", "n_sessions", "n_each", "chosen"),
    [
        (3, 0, 1, [0, 1, 2]),  # no promise: by rank
        (3, 3, 1, [0, 3, 4]),  # one of each of three sessions
        (4, 3, 1, [0, 1, 3, 4]),  # and what is left, by rank
        (5, 2, 2, [0, 1, 2, 3, 5]),
        (2, 3, 2, [0, 3]),  # too little room: every session's first before any second
        (0, 3, 1, []),
    ],
)
def test_sessions_are_heard(limit: int, n_sessions: int, n_each: int, chosen: list[int]) -> None:
    """Three passages of the best session would else fill the places."""
    order, sessions = np.arange(6), np.array([7, 7, 7, 8, 9, 8])
    covered = choose.cover_sessions(order, sessions, limit=limit, n_sessions=n_sessions, n_each=n_each)
    assert covered.tolist() == chosen
