"""A data folder that can be written is told from one that cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.shards import require_usable


def test_looking_leaves_nothing_and_needs_no_name_of_its_own(tmp_path: Path) -> None:
    """Two containers that share a folder have equal pids, and a file of another user may be left over."""
    (tmp_path / f".writable.{os.getpid()}").mkdir()
    require_usable(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_takes_no_file_is_refused() -> None:
    """Root is permitted everything in /proc, and can still make nothing there."""
    with pytest.raises(ConfigError, match="cannot be written"):
        require_usable(Path("/proc/self"))
