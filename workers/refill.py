"""Filling the registry from the shards: it is derived, and whoever is not in it is never rung again.

Done at each start of `turnstream up`, before anybody works, and by `doctor --repair`. A kill at any point leaves a
registry that knows less, or none, and the next start does it again. A damaged one stays beside the new one as
``registry.sqlite.damaged-<epoch ms>``.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing, suppress
from pathlib import Path

import structlog

from pipeline.errors import ShardError, TransientError
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.ledger.connection import read_meta, translated
from pipeline.records import Scope
from pipeline.registry import FILE, Registry
from pipeline.shards import LEDGER_FILE, Shards

_BOOT = "boot_id"
_log = structlog.get_logger()


def refill(data_dir: Path) -> None:
    """Have a registry that knows all work, whatever became of the last one.

    Raises:
        ShardError: the folder refuses it.
        TransientError: it is locked, or the disk full.
    """
    try:
        _mark_unknown(data_dir)
    except ShardError as error:
        set_aside(data_dir, reason=str(error))
        _mark_unknown(data_dir)


def _mark_unknown(data_dir: Path) -> None:
    """Mark the shards that the registry does not know, and all of them after the machine went down.

    Why: the registry is not flushed at each mark. A killed process loses nothing of it, a power cut may.
    """
    shards = Shards(data_dir)
    with closing(Registry(data_dir)) as registry:
        folders, boot = list(shards.walk()), _boot_id()
        if registry.fact(_BOOT) == boot:
            known = {shards.folder(Scope.parse(key)) for key in registry.scopes()}
            folders = [folder for folder in folders if folder not in known]
        scopes = [scope for folder in folders if (scope := _scope_in(folder)) is not None]
        registry.mark(scopes, now_ms=_now_ms())
        registry.note_fact(_BOOT, boot)
    if scopes:
        _log.info("registry.refilled", n_scopes=len(scopes))


def set_aside(data_dir: Path, *, reason: str) -> Path:
    """Rename a damaged registry, its main file last: killed before that, the next start does it again."""
    aside = f"{FILE}.damaged-{_now_ms()}"
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            (data_dir / (FILE + suffix)).rename(data_dir / (aside + suffix))
    _log.warning("registry.set_aside", file=aside, reason=reason)
    return data_dir / aside


def _scope_in(folder: Path) -> str | None:
    """Read whose a shard is; None when it cannot be told: damaged, or killed before the scope was written."""
    path = folder / LEDGER_FILE
    try:
        with closing(connect_ledger(path, query_only=True)) as connection, translated(path):
            return read_meta(connection).get("scope")
    except (ShardError, TransientError) as error:
        _log.error("shard.found_damaged", shard=folder.name, reason=str(error))
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux: every start counts as one after a power cut
        return secrets.token_hex(8)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
