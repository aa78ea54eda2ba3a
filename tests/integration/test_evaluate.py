"""`turnstream evaluate` from a data set to a report, through a pipeline of its own."""

from __future__ import annotations

import json
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


def test_a_scope_that_nobody_asks_about_is_refused(turnstream: CommandLine, tmp_path: Path, data_dir: Path) -> None:
    """A typing mistake would look like a memory that finds nothing."""
    path = dataset(tmp_path / "small.json", 1)
    ended = turnstream("evaluate", str(path), "--format", "locomo", "--scope", "user/c7", "--data-dir", str(data_dir))
    assert ended.code == 2
    assert "user/c0" in ended.err
