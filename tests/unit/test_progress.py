"""What is waited for is seen, also when it began after the waiting."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.registry import Registry
from workers.progress import Progress


class EmptyStream:
    """A stream from which everything was ingested."""

    def unread(self) -> int:
        """Nothing waits."""
        return 0


def test_waiting_begun_before_the_registry_exists_sees_its_first_scope(tmp_path: Path) -> None:
    """Somebody starts `wait` and then `up`: what is ingested meanwhile is not searchable yet."""
    stream: Any = EmptyStream()
    progress = Progress(tmp_path, stream)
    assert not progress.state().is_waiting
    assert not list(tmp_path.iterdir())
    with closing(Registry(tmp_path)) as registry:
        registry.mark(["user/a"], now_ms=1)
    assert progress.state().n_scopes_with_work == 1
