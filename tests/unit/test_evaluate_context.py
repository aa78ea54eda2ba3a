"""What the comparison of strategies measures: evidence by one rule, leaks, and a report that can be read."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from retrieval import open_memory
from retrieval.context.layout.block import Layout, item
from tests.fakes import FakeEmbedder
from tests.ledgers import remember
from workers.evaluate import context, context_html, evidence
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.context_run import ANOTHER, OWN, Clock, Comparison, Conversation, compare_all
from workers.evaluate.evidence import Foreign, items, turn_words

METHODS = ("no memory", "fixed", "dynamic", "adaptive", "BM25 only", "full history")
SAID = "I bought a silver zeppelin in Friedrichshafen for my brother"
START_S = 1_700_000_000
DAY_MS = 86_400_000


def block(*texts: str) -> str:
    return Layout().block([("", [item(text) for text in texts])])


def shares(*texts: str, said: str = SAID) -> tuple[float, float]:
    held, wanted = items(block(*texts)), [turn_words(said)]
    return evidence.share_told(held, wanted), evidence.share_quoted(held, wanted)


# --- the rule


def test_a_quoted_turn_is_told() -> None:
    """Whatever stands around it, and however it is laid out."""
    assert shares("5 days ago: what did you do?\nResult: Ana: " + SAID + ". It was fun.", "hello") == (1, 1)


def test_a_shortened_turn_is_told_while_little_is_missing() -> None:
    """Of six telling words five may do, four may not; it is no quotation."""
    assert shares("bought silver zeppelin Friedrichshafen, brother") == (1, 0)
    assert shares("bought silver zeppelin Friedrichshafen") == (1, 0), "4 of 5"
    assert shares("bought silver zeppelin") == (0, 0)


def test_words_in_different_items_do_not_add_up() -> None:
    """A block that has all words of the language would tell everything."""
    assert shares("I bought a silver thing", "a zeppelin in Friedrichshafen", "for my brother") == (0, 0)


def test_other_forms_of_a_word_are_the_word() -> None:
    """As in the full text; but nothing is told by a text about something else."""
    assert shares("buying, bought: silver zeppelins; Friedrichshafen; brothers")[0] == 1
    assert shares("The weather was nice") == (0, 0)
    assert shares() == (0, 0)


def test_a_turn_of_elsewhere_is_a_leak_unless_it_was_said_here_too() -> None:
    """Six words in a row are not said by chance; shorter turns cannot be told apart."""
    own = [turn_words("we said that the zeppelin is late again today")]
    elsewhere = [turn_words(SAID), turn_words("thanks a lot"), turn_words("That the zeppelin is late again today")]
    foreign = Foreign(elsewhere, own)
    assert foreign.n_in(items(block(f"Ana: {SAID}", "thanks a lot"))) == 1
    assert foreign.n_in(items(block("we said that the zeppelin is late again today", "thanks a lot"))) == 0


# --- the comparison


def turns(scope: Scope, subject: str, n: int = 40) -> list[Turn]:
    """Make a conversation of two people in which turn 4 holds the evidence."""
    said = [f"well number {i} of {subject} is what I wanted to tell you about today" for i in range(n)]
    said[4] = f"I hid the key of the {subject} under the blue flowerpot near the gate"
    return [
        Turn(
            scope=scope,
            session_id="session_1",
            role="user",
            content=text,
            timestamp=START_S + 60 * i,
            turn_id=f"D1:{i}",
            event_id=f"{scope.id}/{i}",
            index=i,
            speaker=("Ana", "Ben")[i % 2],
        )
        for i, text in enumerate(said)
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Compare on two conversations, in the folder of a pipeline that has done its work."""
    scopes = Scope("user", "c1"), Scope("user", "c2")
    said = {scopes[0]: turns(scopes[0], "windmill"), scopes[1]: turns(scopes[1], "lighthouse")}
    conversations = {
        scope: Conversation(scope, said[scope], said[other], said[scope][-1].timestamp_ms + DAY_MS)
        for scope, other in (scopes, scopes[::-1])
    }
    folder, embedder = tmp_path_factory.mktemp("data"), FakeEmbedder()
    for conversation in conversations.values():
        remember(Shards(folder), conversation.scope, list(context.events_of(conversation)), embedder)
    questions = [
        AskedQuestion(scope.id, scope, f"Where is the key of the {subject}?", "single-hop", frozenset({"D1:4"}),
                      frozenset({"session_1"}))
        for scope, subject in zip(scopes, ("windmill", "lighthouse"), strict=True)
    ]  # fmt: skip
    clock = Clock()
    with closing(open_memory(folder, embedder=embedder, clock=clock)) as memory:
        return compare_all(
            memory, clock, conversations, questions,
            budgets=(128, 256), methods=METHODS, dataset="<b>.json", on_asked=lambda _done, _total: None,
        )  # fmt: skip


def test_each_way_is_measured_at_each_budget(compared: Comparison) -> None:
    """No memory and the full history have no budget; nobody exceeds one."""
    ways = [(row.method, row.max_tokens) for row in compared.rows]
    assert ways == [
        ("no memory", None),
        *[(name, limit) for name in ("fixed", "dynamic", "adaptive", "BM25 only") for limit in (128, 256)],
        ("full history", None),
    ]
    assert all(row.n_tokens <= row.max_tokens for row in compared.rows if row.max_tokens is not None)
    assert (compared.n_questions, compared.n_sessions, compared.n_entries) == (2, 2, 40)


def test_evidence_is_where_it_must_be(compared: Comparison) -> None:
    """Old evidence is not in the last exchanges, is in the whole, and is found by its words."""
    told = {(row.method, row.max_tokens): row.told for row in compared.rows}
    assert told["no memory", None] == told["fixed", 256] == 0
    assert told["full history", None] == told["BM25 only", 256] == told["dynamic", 256] == told["adaptive", 256] == 1
    assert compared.row("full history", None).quoted == 1
    assert compared.row("dynamic", 256).by_category == {"single-hop": 1}


def test_nothing_of_elsewhere_is_in_a_block(compared: Comparison) -> None:
    """The other session of the scope and the other scope's have other subjects; all session ids are the same."""
    assert [(row.session_leaks, row.scope_leaks) for row in compared.rows] == [(0, 0)] * len(compared.rows)


def test_a_leak_would_be_counted() -> None:
    """The measure is not blind: the neighbour's block holds its turns."""
    scope = Scope("user", "c1")
    held = items(block(*(turn.content for turn in turns(scope, "lighthouse"))))
    own = [turn_words(turn.content) for turn in turns(scope, "windmill")]
    other = [turn_words(turn.content) for turn in turns(scope, "lighthouse")]
    assert Foreign(other, own).n_in(held) > 30


def test_events_are_one_session_and_one_beside_it() -> None:
    """The session's own turns keep their order; ids of both cannot meet."""
    scope = Scope("user", "c1")
    conversation = Conversation(scope, turns(scope, "windmill"), turns(Scope("user", "c2"), "lighthouse"), 0)
    made = list(context.events_of(conversation))
    assert {turn.session_id for turn in made} == {OWN, ANOTHER}
    assert {turn.scope for turn in made} == {scope}
    assert len({turn.event_id for turn in made}) == len({turn.turn_id for turn in made}) == len(made) == 80


def test_only_conversations_that_go_on_are_compared(tmp_path: Path) -> None:
    """Haystacks of unrelated sessions are no session memory."""
    with pytest.raises(ConfigError, match="--format locomo"):
        context.compare(tmp_path / "x.json", form="longmemeval")


# --- the report


class Balanced(HTMLParser):
    """Notes tags that are not closed in order, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.n_lines = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        assert not {"src", "href"} & {name for name, _ in attrs}
        self.n_lines += tag == "polyline"
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's
        """Count lines of charts."""
        self.n_lines += tag == "polyline"

    def handle_endtag(self, tag: str) -> None:
        """Compare it with the last one opened."""
        assert self.open.pop() == tag


def test_the_report_is_one_whole_page(compared: Comparison) -> None:
    """It fetches nothing, a name in it stays a name, and each way with a budget has its line in each chart."""
    reader = Balanced()
    written = context_html.page(compared)
    reader.feed(written)
    assert reader.open == []
    assert reader.n_lines == (4 + 1) + 4, "the full history goes across in the first"
    assert "&lt;b&gt;.json" in written
    assert "nan" not in written
    assert json.loads(json.dumps(compared.to_json()))["rows"][0]["method"] == "no memory"
    assert context_html.page(
        replace(compared, budgets=(128,), rows=[row for row in compared.rows if row.max_tokens == 128])
    )
