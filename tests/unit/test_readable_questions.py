"""Whatever a user types as a question is read, or refused by name; none of it ends the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.records import Scope
from pipeline.shards import Shards
from retrieval import open_memory
from retrieval.query_vector import readable
from tests.fakes import FakeEmbedder
from tests.ledgers import remember, turn

SCOPE = Scope("user", "u42")


@pytest.mark.parametrize("question", ["\ud800", "tea \udfff?", "🍵", "x" * 100_000, "茶" * 9_000, "\u202e\u0000tea"])
def test_any_text_is_a_question(data_dir: Path, question: str) -> None:
    """Half an emoji comes out of a cut text; a tokenizer and a database refuse it with an error of their own."""
    remember(Shards(data_dir), SCOPE, [turn(SCOPE, "t1", "Would you like some tea?")], FakeEmbedder())
    memory = open_memory(data_dir, embedder=FakeEmbedder())
    memory.retrieve(question, SCOPE)
    memory.context("s1", SCOPE, objective=question)
    memory.search(question[:4_000], SCOPE)
    memory.search(question[:4_000], SCOPE, profile="keyword")
    memory.close()


def test_a_readable_question_can_be_encoded() -> None:
    """What cannot is replaced, not left out."""
    assert readable(" tea \ud800 ") == "tea ?"
