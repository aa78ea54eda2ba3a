"""`turnstream evaluate` from a data set to a report, through a pipeline of its own."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from tests.commands import CommandLine

TEXTS = ["I bought a zeppelin in Friedrichshafen", "What colour is it?", "It is as silver as a herring"]


def dataset(path: Path, n_conversations: int) -> Path:
    conversations = []
    for number in range(n_conversations):
        said = [
            {"speaker": ("Ana", "Ben")[i % 2], "dia_id": f"D1:{i + 1}", "text": f"{text} number{number}"}
            for i, text in enumerate(TEXTS)
        ]
        fields = {"session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": said}
        asked = [
            {"question": f"Which zeppelin number{number} was bought?", "evidence": ["D1:1"], "category": 4},
            {"question": "Is it silver?", "evidence": ["D1:3"], "category": 1},
        ]
        conversations.append({"sample_id": f"c{number}", "conversation": fields, "qa": asked})
    path.write_text(json.dumps(conversations))
    return path


def test_a_data_set_goes_in_and_a_report_comes_out(turnstream: CommandLine, tmp_path: Path, data_dir: Path) -> None:
    """Everything at once: published, ingested, asked, measured; nothing of it stays but the report."""
    path, report = dataset(tmp_path / "small.json", 2), tmp_path / "report.html"
    ended = turnstream(
        "evaluate", str(path), "--format", "locomo", "--html", str(report), "--json", "--data-dir", str(data_dir)
    )
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["n_turns"], found["figures"]["overall"]["n"]) == (6, 4)
    assert found["figures"]["overall"]["share"]["3"] == 1
    assert found["ingest_per_s"] > 0
    assert found["elsewhere"]["n"] == 4
    assert "<svg" in report.read_text()
    assert list(data_dir.iterdir()) == [], "an evaluation has nothing to do with the caller's data"


def test_strategies_are_compared_by_one_command(turnstream: CommandLine, tmp_path: Path, data_dir: Path) -> None:
    """Table and chart: every strategy beside no memory, the full history and BM25 alone, at four budgets."""
    path, report = dataset(tmp_path / "small.json", 2), tmp_path / "report.html"
    ended = turnstream(
        *("evaluate", str(path), "--format", "locomo", "--context", "--html", str(report), "--json"),
        *("--data-dir", str(data_dir)),
    )
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    strategies = ("fixed", "importance", "semantic", "hierarchical", "dynamic", "adaptive", "BM25 only")
    ways = {(row["method"], row["max_tokens"]) for row in found["rows"]}
    budgets = (256, 512, 1_024, 2_048)
    assert ways == set(product(strategies, budgets)) | {("no memory", None), ("full history", None)}
    assert sum(row["session_leaks"] + row["scope_leaks"] for row in found["rows"]) == 0
    assert [row["told"] for row in found["rows"] if row["method"] == "full history"] == [1]
    assert "<polyline" in report.read_text()
    assert list(data_dir.iterdir()) == [], "a comparison has nothing to do with the caller's data"


def test_a_scope_that_nobody_asks_about_is_refused(turnstream: CommandLine, tmp_path: Path, data_dir: Path) -> None:
    """A typing mistake would look like a memory that finds nothing."""
    path = dataset(tmp_path / "small.json", 1)
    ended = turnstream("evaluate", str(path), "--format", "locomo", "--scope", "user/c7", "--data-dir", str(data_dir))
    assert ended.code == 2
    assert "user/c0" in ended.err
