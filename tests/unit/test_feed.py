"""A backfill's progress bar moves where the size of what is left is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.progress import Progress

from pipeline.importers import reader
from pipeline.records import Scope
from workers.cli.feed import Bar

CHATS = [{"messages": [{"role": "user", "content": f"words {i}"}]} for i in range(5)]


def shares_done(path: Path) -> list[float]:
    """Read a file of chats; give the bar's percentage after each event."""
    shares, progress = [], Progress(disable=True)
    bar = Bar(progress, path, "openai")
    for n, item in enumerate(reader("openai")(path, Scope("user", "u1"), start=0), start=1):
        bar(n, item.position)
        shares.append(progress.tasks[0].percentage)
    assert progress.tasks[0].total == (path.stat().st_size if path.suffix == ".jsonl" else None)
    bar.complete()
    assert progress.tasks[0].finished
    return shares


def test_the_bar_of_a_file_of_lines_moves_with_the_place_in_it(tmp_path) -> None:
    """Years of chats take an hour: somebody who looks wants to know how far it is."""
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    shares = shares_done(path)
    assert sorted(set(shares)) == pytest.approx([0, 20, 40, 60, 80])
    assert shares == sorted(shares)


def test_the_bar_of_an_array_claims_no_share(tmp_path) -> None:
    """Its positions are ordinals, and how many there are is known only at its end."""
    path = tmp_path / "chats.json"
    path.write_text(json.dumps(CHATS))
    assert set(shares_done(path)) == {0}
