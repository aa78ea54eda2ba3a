"""Mending what `data` finds wrong, as far as it can be made again; the workers then do what became due.

May run while everything else does, and again: what is whole is left alone. Only a file that cannot be read, a ledger
or the registry, is replaced, and only while no other process has it open.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from pipeline.errors import ServerUnreachableError, ShardError, TransientError
from pipeline.ledger import Ledger, check
from pipeline.ledger import repair as ledgers
from pipeline.ledger.connection import connect, read_meta, translated
from pipeline.ledger.salvage import alone, salvage
from pipeline.records import Scope
from pipeline.registry import FILE as REGISTRY_FILE
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, SUMMARIES_FOLDER
from pipeline.snapshot import SnapshotStore
from pipeline.summarise import SummaryCache
from workers import refill
from workers.checkup import data, registry, shard, stream, summaries
from workers.checkup.finding import Finding, Verdict, damaged, repaired

_LEFT_BEHIND_AFTER_MS = 60_000
"""A temporary file untouched for so long is nobody's."""


def repair(settings: Settings, *, scopes: Sequence[Scope] | None = None) -> list[Finding]:
    """Mend everything that can be made again, and have the workers told.

    Args:
        settings: of the installation.
        scopes: mend these alone; None: all, the registry and the stream too.

    Returns:
        What was done (`Verdict.REPAIRED`), and what could not be (`Verdict.DAMAGED`); empty: nothing was wrong.

    Raises:
        ConfigError: there is no such scope.
    """
    folders = data.folders_of(settings, scopes)
    done = list(_registry(settings, folders))
    for folder, expected in folders.items():
        scope, found = _shard(settings, folder, expected)
        done += found
        if scope is not None and any(finding.verdict is Verdict.REPAIRED for finding in found):
            _mark(settings, [scope])
    done += _unknown_work(settings, folders)
    if scopes is None:
        done += _stream(settings)
    return done


def _shard(settings: Settings, folder: Path, expected: Scope | None) -> tuple[Scope | None, list[Finding]]:
    found: list[Finding] = []
    scope = expected
    try:
        scope, problem = _owner(folder, expected)
        if scope is None:
            return None, [damaged(f"{shard.name_of(folder, expected)} ledger", problem)] if problem else []
        for mend in (_ledger, _snapshot, _files):
            found += mend(settings, folder, scope)
    except (ShardError, TransientError) as error:
        found.append(damaged(f"{shard.name_of(folder, scope)} ledger", str(error)))
    return scope, found


def _owner(folder: Path, expected: Scope | None) -> tuple[Scope | None, str | None]:
    """Tell whose ledger is in a folder, or why it is not to be touched; neither when it was made a moment ago."""
    path = folder / LEDGER_FILE
    if not path.exists():
        return None, f"{path} is missing; {check.RESTORE}"
    try:
        with closing(connect(path, query_only=True)) as connection, translated(path):
            meta = read_meta(connection)
    except ShardError as error:
        return expected, None if expected else f"{error}; nothing says whose it is: {check.RESTORE}"
    if problem := shard.misplaced(meta, folder):
        return None, problem
    return Scope.parse(meta["scope"]) if meta else None, None


def _ledger(settings: Settings, folder: Path, scope: Scope) -> Iterator[Finding]:
    path, what = folder / LEDGER_FILE, f"{scope.key} ledger"
    try:
        yield from _mended(settings, path, scope)
    except ShardError:
        saved = salvage(path, scope, now_ms=_now_ms())
        SnapshotStore(folder).discard("traces")
        lost = f", {saved.n_unreadable} places could not be read: {check.RESTORE}" if saved.n_unreadable else ""
        yield repaired(what, f"{saved.n_turns} turns saved into a new file{lost}; the damaged one is {saved.aside}")
        yield from _mended(settings, path, scope)


def _mended(settings: Settings, path: Path, scope: Scope) -> list[Finding]:
    """Mend a ledger that can be read.

    Raises:
        ShardError: it cannot, or its rows are damaged.
    """
    with closing(Ledger.open(path, scope, busy_timeout_ms=settings.ledger.busy_timeout_ms)) as ledger:
        done = ledgers.mend_file(ledger)
        with ledger.read() as reading:
            doubtful = shard.doubtful_traces(path.parent, reading)
        done += ledgers.mend_rows(
            ledger,
            now_ms=_now_ms(),
            wrong_summaries=lambda connection: [
                session_id for session_id, _ in summaries.wrong(settings, connection, path.parent)
            ],
            doubtful_traces=doubtful,
        )
    return [repaired(f"{scope.key} ledger", one) for one in done]


def _snapshot(_settings: Settings, folder: Path, scope: Scope) -> Iterator[Finding]:
    path = folder / LEDGER_FILE
    with closing(connect(path, query_only=True)) as connection, translated(path):
        found = shard.snapshot_findings(folder, scope.key, connection)
    if found:
        SnapshotStore(folder).discard("traces")
        yield repaired(f"{scope.key} snapshot", "removed; it is built anew if the scope is large enough for one")


def _files(_settings: Settings, folder: Path, scope: Scope) -> Iterator[Finding]:
    doomed = SummaryCache(folder / SUMMARIES_FOLDER).damaged() if (folder / SUMMARIES_FOLDER).is_dir() else []
    last_ms = _now_ms() - _LEFT_BEHIND_AFTER_MS
    doomed += [
        path
        for pattern in shard.TEMPORARIES
        for path in folder.glob(pattern)
        if path.exists() and path.stat().st_mtime_ns // 1_000_000 < last_ms
    ]
    for path in doomed:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        yield repaired(f"{scope.key} files", f"{path} removed")


def _registry(settings: Settings, folders: dict[Path, Scope | None]) -> Iterator[Finding]:
    """Have a registry that can be read; a damaged one is set aside, unless somebody has it open."""
    path = settings.data_dir / REGISTRY_FILE
    if not path.exists():
        if folders:
            refill.refill(settings.data_dir)
            yield repaired("registry", "made anew from the shards")
        return
    try:
        with closing(Registry(settings.data_dir, create=False)) as registry:
            problems = registry.problems()
    except ShardError as error:
        problems = [str(error)]
    if not problems:
        return
    try:
        with alone(path):
            aside = refill.set_aside(settings.data_dir, reason="; ".join(problems))
    except TransientError as error:
        yield damaged("registry", str(error))
        return
    refill.refill(settings.data_dir)
    yield repaired("registry", f"made anew from the shards; the damaged one is {aside}")


def _unknown_work(settings: Settings, folders: dict[Path, Scope | None]) -> Iterator[Finding]:
    looked_at = {}
    for folder, expected in folders.items():
        with suppress(ShardError, TransientError):
            scope, _ = _owner(folder, expected)
            if scope is not None:
                looked_at[scope] = shard.counted(settings, scope)
    try:
        unknown = registry.unknown_work(settings, looked_at)
    except (ShardError, TransientError):  # said before
        return
    _mark(settings, unknown)
    for scope in unknown:
        yield repaired("registry", f"{scope.key} noted as having work")


def _stream(settings: Settings) -> Iterator[Finding]:
    with suppress(ServerUnreachableError):
        lost = stream.lost_entries(settings)
        with stream.opened(settings) as turns:
            for entry in lost:
                if entry.raw is not None:
                    yield repaired(
                        "stream", f"the event of entry {entry.id} published again as {turns.append(entry.raw)}"
                    )


def _mark(settings: Settings, scopes: Iterable[Scope]) -> None:
    with closing(Registry(settings.data_dir, busy_timeout_ms=settings.ledger.busy_timeout_ms)) as opened:
        keys = [scope.key for scope in scopes]
        opened.mark(keys, now_ms=_now_ms())
        opened.end_refusals(keys)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
