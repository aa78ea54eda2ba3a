"""How far everything published is from being searchable: what `wait` waits for. Reads the stream and the registry.

Why no ledger is opened: there may be ten thousand, and the registry knows which of them have work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.registry import FILE, Counts, Registry
from pipeline.stream import TurnStream


@dataclass(frozen=True, slots=True)
class State:
    """What is still to be done."""

    n_unread: int
    n_scopes_with_work: int
    counts: Counts

    @property
    def is_waiting(self) -> bool:
        """Whether something published is not searchable yet, or a closed session not summarised.

        A session whose summary failed is not waited for: it is listed, and retried later.
        """
        return bool(self.n_unread or self.n_scopes_with_work or self.counts.closed_unsummarised)

    def __str__(self) -> str:
        return (
            f"{self.n_unread} events to ingest, {self.n_scopes_with_work} scopes with work,"
            f" {self.counts.closed_unsummarised} closed sessions to summarise"
        )


class Progress:
    """Measures the state of one data folder and its stream."""

    def __init__(self, data_dir: Path, stream: TurnStream) -> None:
        self._data_dir = data_dir
        self._stream = stream
        self._has_file = (data_dir / FILE).exists()
        self._registry = Registry(data_dir, create=False)

    def state(self) -> State:
        """Measure now. The stream comes first: what leaves it is marked in the registry before it is acknowledged."""
        n_unread = self._stream.unread()
        registry = self._newest_registry()
        return State(n_unread, registry.n_undone(), registry.counts())

    def _newest_registry(self) -> Registry:
        """Open the registry again while there was no file yet: the first event may make it."""
        if not self._has_file and (self._data_dir / FILE).exists():
            self._registry.close()
            self._registry = Registry(self._data_dir, create=False)
            self._has_file = True
        return self._registry
