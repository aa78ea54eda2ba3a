"""How far the demo's events are, as bars on stderr: published, ingested, searchable, summarised."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from workers.demo.running import Pipeline
from workers.demo.story import Story
from workers.progress import Progress, State

_POLL_S: Final = 0.1
_DONE_WITHIN_S: Final = 300.0


class Watch:
    """Four bars, moved while waiting for the pipeline; a context manager.

    Args:
        story: tells how many there will be of each.
        pipeline: must go on running.
        progress: measures the pipeline.
        console: where the bars are drawn.
    """

    def __init__(self, story: Story, pipeline: Pipeline, progress: Progress, console: Console) -> None:
        self._pipeline = pipeline
        self._progress = progress
        self._n_published = 0
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._published = self._bars.add_task("events published", total=story.n_events)
        self._ingested = self._bars.add_task("events ingested", total=story.n_events)
        self._searchable = self._bars.add_task("turns searchable", total=story.n_turns_kept)
        self._summarised = self._bars.add_task("sessions summarised", total=story.n_sessions)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._bars.stop()

    def until_done(self, n_published: int) -> None:
        """Wait until these further events are ingested, searchable and summarised.

        Raises:
            TurnstreamError: the pipeline ended, or is not done in time.
        """
        self._n_published += n_published
        self._bars.update(self._published, completed=self._n_published)
        self.until(lambda: not self._moved().is_waiting, "published events became searchable")

    def until(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait for something else of the pipeline's.

        Raises:
            TurnstreamError: the pipeline ended, or is not done in time.
        """
        deadline = time.monotonic() + _DONE_WITHIN_S
        while not is_done():
            self._pipeline.require_running()
            if time.monotonic() > deadline:
                self._pipeline.give_up(f"not all {what} within {_DONE_WITHIN_S:g} s")
            time.sleep(_POLL_S)

    def _moved(self) -> State:
        state = self._progress.state()
        self._bars.update(self._ingested, completed=self._n_published - state.n_unread)
        self._bars.update(self._searchable, completed=state.counts.searchable)
        self._bars.update(self._summarised, completed=state.counts.summarised)
        return state
