"""A text's words and marks are what full text and questions look for."""

from __future__ import annotations

import threading

import apsw

from pipeline.ledger.fulltext import index_form
from pipeline.ledger.schema import DDL
from pipeline.ledger.words import Mark, ids_of, marks, placed_words, word_ids, words


def test_words_are_those_of_the_full_text() -> None:
    """Otherwise ranking would count other words than the search found."""
    text = "Café-owners' running RACES: 3 of them, in 北京!"
    with apsw.Connection(":memory:") as connection:
        connection.execute(DDL)
        connection.execute("INSERT INTO fulltext (rowid, text) VALUES (1, ?)", (index_form(text),))
        connection.execute("CREATE VIRTUAL TABLE found USING fts5vocab('fulltext', 'instance')")
        indexed = [row[0] for row in connection.execute("SELECT term FROM found ORDER BY offset")]
    assert words(text) == indexed == ["cafe", "owner", "run", "race", "3", "of", "them", "in", "北", "京"]


def test_a_word_has_the_same_number_in_every_process() -> None:
    """The numbers are stored; 32-bit CRC of the folded, stemmed word."""
    assert word_ids("Running").tolist() == ids_of(["run"]).tolist() == [1349952704]
    assert word_ids("").tolist() == []


def test_words_know_their_characters() -> None:
    """A token of the model gets the weight of the word it is part of."""
    assert placed_words("Did she run, 奶奶?") == [
        (0, 3, "did"),
        (4, 7, "she"),
        (8, 11, "run"),
        (13, 14, "奶"),
        (14, 15, "奶"),
    ]


def test_marks_tell_what_a_text_has() -> None:
    """A question about when or how many looks for them."""
    assert marks("I painted it last year.") == Mark.TELLS_TIME
    assert marks("Three of them?") == Mark.ASKS | Mark.TELLS_NUMBER
    assert marks("On 12 May 2023!") == Mark.TELLS_TIME | Mark.TELLS_NUMBER
    assert marks("上周好吗？") == Mark.ASKS | Mark.TELLS_TIME
    assert marks("Lovely!") == Mark(0)


def test_threads_read_words_at_the_same_time() -> None:
    """Readers share the module, and SQLite's tokenizers are one thread's each."""
    read: list[list[str]] = []
    threads = [threading.Thread(target=lambda: read.append(words("two cats ran"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [["two", "cat", "ran"]] * 4
