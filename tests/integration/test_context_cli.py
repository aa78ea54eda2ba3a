"""`turnstream context`: the block alone on stdout, everything else on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.records import Scope
from retrieval import open_memory
from tests.commands import CommandLine

SCOPE = Scope("user", "u42")


@pytest.fixture
def turnstream_with_history(turnstream: CommandLine, data_dir: Path) -> CommandLine:
    """The command on a data folder with two exchanges in session s1."""
    turnstream.settings["TURNSTREAM_DATA_DIR"] = str(data_dir)
    memory = open_memory(data_dir)
    memory.remember("s1", SCOPE, "Where shall we go [in June]?", "To Porto.")
    memory.remember("s1", SCOPE, "Dinner?", "Leek soup.", ["vegan"])
    memory.close()
    return turnstream


def test_stdout_holds_the_block_alone(turnstream_with_history: CommandLine) -> None:
    """So that it can be redirected to a file, whatever is explained."""
    plain = turnstream_with_history("context", "s1", "--scope", "user/u42", "--strategy", "fixed")
    explained = turnstream_with_history("context", "s1", "--scope", "user/u42", "--strategy", "fixed", "--explain")
    assert plain.code == explained.code == 0
    assert plain.out == explained.out
    assert plain.out.split("\n", 2)[2] == (
        "- just now: Where shall we go [in June]?\n  Result: To Porto.\n"
        "- just now: Dinner?\n  Result: Leek soup.\n  Key results: vegan\n```\n"
    )
    assert plain.err == ""
    assert "fixed: " in explained.err
    assert explained.err.count("kept") == 2


def test_an_explanation_names_exchanges_by_their_first_words(turnstream_with_history: CommandLine) -> None:
    """An id alone tells nobody which exchange was kept."""
    found = turnstream_with_history("context", "s1", "--scope", "user/u42", "--explain", COLUMNS="160")
    rows = [line for line in found.err.splitlines() if "kept" in line]
    assert len(rows) == 2
    assert {words for words in ("Where shall we go [in June]?", "Dinner?") for row in rows if words in row} == {
        "Where shall we go [in June]?",
        "Dinner?",
    }


def test_the_turn_that_was_found_is_marked_without_colours(turnstream_with_history: CommandLine) -> None:
    """Bold is lost in a pipe, and with NO_COLOR."""
    found = turnstream_with_history("search", "soup", "--scope", "user/u42", "--profile", "keyword", NO_COLOR="1")
    marked = [line for line in found.out.splitlines() if line.lstrip().startswith(">")]
    assert len(marked) == 1
    assert "Leek soup." in marked[0]
    assert "\x1b" not in found.out


def test_options_reach_the_strategy(turnstream_with_history: CommandLine) -> None:
    """Objective, room and strategy, and the notes go to stderr."""
    found = turnstream_with_history(
        "context", "s1", "--scope", "user/u42", "--objective", "trip in June", "--max-tokens", "55",
    )  # fmt: skip
    assert "Porto" in found.out
    assert "soup" not in found.out
    assert "note: by words alone" in found.err


def test_json_has_the_trace(turnstream_with_history: CommandLine) -> None:
    """For programs."""
    found = turnstream_with_history("context", "s1", "--scope", "user/u42", "--strategy", "importance", "--json")
    document = json.loads(found.out)
    assert document["strategy"] == "importance"
    assert [decision["is_kept"] for decision in document["trace"]] == [True, True]


def test_no_history_is_told_on_stderr(turnstream_with_history: CommandLine) -> None:
    """An empty block is no failure."""
    found = turnstream_with_history("context", "new", "--scope", "user/u42", "--across-sessions")
    assert (found.code, found.out) == (0, "")
    assert "no history" in found.err


def test_mistakes_are_usage_errors(turnstream_with_history: CommandLine, tmp_path: Path) -> None:
    """Exit code 2, and the message says what to change."""
    command = ("context", "s1", "--scope", "user/u42")
    assert "use one of fixed" in turnstream_with_history(*command, "--strategy", "clever").err
    assert turnstream_with_history(*command, "--strategy", "clever").code == 2
    assert turnstream_with_history("context", "s1", "--scope", "u42").code == 2
    template = tmp_path / "template.txt"
    template.write_text("$pieces")
    refused = turnstream_with_history(*command, TURNSTREAM_CONTEXT__TEMPLATE=str(template))
    assert (refused.code, "$fence" in refused.err) == (2, True)
    zero = {f"TURNSTREAM_CONTEXT__IMPORTANCE_FACTORS__{name}": "0" for name in
            ("RECENCY", "COMPLEXITY", "ENGAGEMENT", "CONTINUITY", "SUCCESS")}  # fmt: skip
    refused = turnstream_with_history(*command, "--strategy", "importance", **zero)
    assert (refused.code, "importance_factors" in refused.err) == (2, True)
