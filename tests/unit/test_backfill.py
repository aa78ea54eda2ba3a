"""A backfill that was cut off is taken up, and in the end tells of the whole file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline import contract
from pipeline.errors import Backpressure
from pipeline.records import Event, Scope, Turn
from workers.backfill import Backfill, Report

SCOPE = Scope("user", "u1")


class FullAfter:
    """Takes so many slices as the server would, and then no more."""

    def __init__(self, n_slices: int) -> None:
        self._n_slices = n_slices

    def publish_events(self, events: Iterable[Event]) -> None:
        """Read them, and refuse them once the server is full.

        Raises:
            Backpressure: it is full.
        """
        assert all(events)
        if not self._n_slices:
            raise Backpressure("full")
        self._n_slices -= 1


def test_what_was_malformed_before_it_was_cut_off_is_named_in_the_end(tmp_path: Path) -> None:
    """The run that was cut off told nobody; the exit code of the last one speaks of the file."""
    said = contract.encode(Turn(scope=SCOPE, session_id="s1", role="user", content="hello", timestamp=1))
    slice_of_lines = [b"{broken", *[said] * 998, b"broken}"]
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join([*slice_of_lines, *[said] * 20]))

    def run(publisher: Any) -> Report:
        job = Backfill(publisher, tmp_path)
        return job.run(file, "events", SCOPE, restart=False, on_progress=lambda *_: None)

    with pytest.raises(Backpressure):
        run(FullAfter(1))
    report = run(FullAfter(1))
    assert report.resumed_at > 0
    assert [named.partition(", ")[2].split(":")[0] for named in report.malformed] == ["line 1", "line 1000"]
    assert (report.n_malformed, report.n_published) == (2, 20)
