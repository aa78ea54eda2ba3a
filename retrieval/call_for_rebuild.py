"""Having the workers look at a snapshot that a reader could not use.

Why: workers look at sizes alone, at each turn; only who reads a file meets a changed byte. The scope is marked in the
registry as having work, so an ingester's sweep rings a worker for it, who reads every byte.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress

from pipeline.errors import ShardError, TransientError
from pipeline.records import Scope
from pipeline.registry import Registry
from pipeline.shards import Shards
from pipeline.snapshot import SnapshotStore

_PATIENCE_MS = 200
"""Somebody waits for an answer."""


def have_rebuilt(shards: Shards, scope: Scope) -> None:
    """Have a scope's snapshot checked and, if need be, built anew; does nothing where it may not write."""
    with suppress(OSError, ShardError, TransientError):
        SnapshotStore(shards.folder(scope)).doubt("traces")
        with closing(Registry(shards.data_dir, busy_timeout_ms=_PATIENCE_MS, create=False)) as registry:
            registry.mark([scope.key], now_ms=time.time_ns() // 1_000_000)
