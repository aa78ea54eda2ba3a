"""Putting a data set through the pipeline itself: published, ingested, embedded, summarised, in its own folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.publish import Publisher
from pipeline.records import Event, Scope, Turn
from pipeline.settings import PREFIX, Settings
from pipeline.stream import TurnStream, connect, server_url
from workers.demo import running
from workers.progress import Progress

_POLL_S: Final = 0.1
_WARM_UP: Final = Turn(
    scope=Scope("thread", "warm-up"), session_id="s", role="user", content="Are you there?", timestamp=1.7e9
)
_MODEL: Final = f"{PREFIX}EMBEDDING__"


@dataclass(frozen=True, slots=True)
class Ingested:
    """How many turns went in, and the seconds until the last of them was searchable."""

    n_turns: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Turns in a second."""
        return self.n_turns / self.seconds if self.seconds > 0 else 0.0


@contextmanager
def own_environment(data_dir: Path, settings: Settings) -> Iterator[None]:
    """Have this process and its children see settings of an evaluation: of the given ones, those of the model stay.

    Why: a server or data folder of the caller's is none of an evaluation's business.
    """
    former = dict(os.environ)
    try:
        running.settle_environment(data_dir)
        chosen = settings.embedding
        os.environ |= {
            f"{_MODEL}MODEL": chosen.model,
            f"{_MODEL}BACKEND": chosen.backend,
            f"{_MODEL}CACHE_DIR": str(settings.models_dir),
        }
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


def ingest(events: Iterable[Event], data_dir: Path, *, on_state: Callable[[int, int], None]) -> Ingested:
    """Publish events to a pipeline of their own, and wait until all is searchable and summarised.

    Args:
        events: what was said.
        data_dir: an empty folder; what is made in it stays.
        on_state: told how many turns are searchable, and how many there are.

    Raises:
        TurnstreamError: the pipeline ended.
    """
    with running.running_pipeline(data_dir) as pipeline:
        url = server_url(None, data_dir)
        stream = TurnStream(
            connect(url, timeout_s=5.0), name="turnstream:turns", dead_name="turnstream:dead", group="ingest"
        )
        pipeline.wait_for_server(stream)
        progress = Progress(data_dir, stream)
        with Publisher(url) as publisher:
            publisher.publish(_WARM_UP)  # the workers load their model first
            while progress.state().counts.searchable == 0:
                pipeline.require_running()
                time.sleep(_POLL_S)
            started = time.perf_counter()
            counter = _Counter(events)
            publisher.publish_events(counter)
            seconds = 0.0
            while (state := progress.state()).is_waiting:
                pipeline.require_running()
                if not seconds and state.counts.turns - state.counts.pending > counter.n_turns:
                    seconds = time.perf_counter() - started
                on_state(state.counts.searchable - 1, counter.n_turns)
                time.sleep(_POLL_S)
    return Ingested(counter.n_turns, seconds or time.perf_counter() - started)


class _Counter:
    """Passes events on and counts the turns among them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = events
        self.n_turns = 0

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.n_turns += isinstance(event, Turn)
            yield event
