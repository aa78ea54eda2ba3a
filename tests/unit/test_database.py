"""Unit tests of how a SQLite file comes into being."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from pipeline import database

DDL = "CREATE TABLE things (name TEXT);"


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="this system has no unnamed files")
def test_a_file_has_no_name_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while it is written leaves nothing behind that somebody would have to sweep."""
    seen: list[list[str]] = []
    fdatasync = os.fdatasync

    def look(descriptor: int) -> None:
        seen.append(names(tmp_path))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", look)
    database.create(tmp_path / "things.sqlite", DDL)
    assert seen == [[]]
    assert names(tmp_path) == ["things.sqlite"]


def test_a_file_system_without_unnamed_files_gets_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlays and network mounts have none; the result is the same."""
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    database.create(tmp_path / "things.sqlite", DDL)
    assert names(tmp_path) == ["things.sqlite"]


@pytest.mark.parametrize("has_unnamed", [True, False])
def test_a_file_that_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_unnamed: bool
) -> None:
    """Two processes create the same one; the second must not empty the first one's."""
    if not has_unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "things.sqlite"
    database.create(path, DDL)
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO things VALUES ('kept')")
    database.create(path, DDL)
    assert connection.execute("SELECT name FROM things").fetchall() == [("kept",)]
    connection.close()
    assert path.stat().st_mode & 0o777 == 0o600
