"""`turnstream scopes`: what there is, read from the ledgers themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.embed.hashing import HashingEmbedder
from pipeline.records import Scope
from pipeline.shards import Shards
from retrieval import open_memory
from tests.commands import CommandLine
from tests.ledgers import remember, turn
from workers.cli.common import EXIT_DAMAGED
from workers.cli.scopes import size_bytes

ANN, BEN = Scope("user", "ann"), Scope("thread", "a/b [c]")


def test_scopes_are_listed_with_what_they_hold(turnstream: CommandLine, data_dir: Path) -> None:
    """Nothing else names them: folders are digests. No server is asked, and a lost registry hides none."""
    turnstream.settings["TURNSTREAM_DATA_DIR"] = str(data_dir)
    nothing = turnstream("scopes")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no scopes" in nothing.err
    remember(
        Shards(data_dir), ANN, [turn(ANN, f"t{n}", "hello", session=f"s{n % 2}") for n in range(3)], HashingEmbedder()
    )
    memory = open_memory(data_dir)
    memory.remember("s-1", BEN, "Which port?", "8080.")
    memory.close()
    (data_dir / "registry.sqlite").unlink()
    listed = json.loads(turnstream("scopes", "--json").out)
    assert [(one["scope"], one["sessions"], one["turns"], one["searchable"]) for one in listed] == [
        ("thread/a/b [c]", 1, 2, 0),
        ("user/ann", 2, 3, 3),
    ]
    assert all(one["size_bytes"] > 10_000 and one["last_event"].endswith("+00:00") for one in listed)
    shown = turnstream("scopes").out
    assert "thread/a/b [c]" in shown
    assert "MB" in shown


def test_a_damaged_scope_is_named_and_the_others_are_listed(turnstream: CommandLine, data_dir: Path) -> None:
    """One broken file must not hide the rest, nor the rest that it is broken: a script looks at the code."""
    turnstream.settings["TURNSTREAM_DATA_DIR"] = str(data_dir)
    memory = open_memory(data_dir)
    for scope in (ANN, BEN):
        memory.remember("s-1", scope, "Which port?", "8080.")
    memory.close()
    path = Shards(data_dir).ledger_path(ANN)
    path.write_bytes(b"no database" * 1_000)
    ended = turnstream("scopes", "--json")
    assert [one["scope"] for one in json.loads(ended.out)] == [BEN.key]
    assert str(path) in ended.err
    assert ended.code == EXIT_DAMAGED
    shown = turnstream("scopes")
    assert (BEN.key in shown.out, shown.code) == (True, EXIT_DAMAGED)


def test_a_folder_that_is_removed_while_it_is_looked_at_counts_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers remove old snapshots at any time; a list that fails for that is none."""
    (tmp_path / "ledger").write_bytes(b"x" * 10)
    old = tmp_path / "old"
    old.mkdir()
    (old / "snapshot").write_bytes(b"x")
    scandir = os.scandir

    def late_scandir(path: Any) -> Any:
        if str(path) == str(old):
            (old / "snapshot").unlink()
            old.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late_scandir)
    assert size_bytes(tmp_path) == 10
