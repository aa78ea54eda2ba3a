"""Mending what `data` finds wrong, as far as it can be made again; the workers then do what became due.

May run while everything else does, and again: what is whole is left alone. Only a file that cannot be read, a ledger
or the registry, is replaced, and only while no other process has it open.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from pipeline.errors import ConfigError, ServerUnreachableError, ShardError, TransientError
from pipeline.ledger import Ledger, check, condensed_check
from pipeline.ledger import repair as ledgers
from pipeline.ledger.connection import connect, read_meta, translated
from pipeline.ledger.salvage import alone, salvage, undo_half_done
from pipeline.records import Scope
from pipeline.registry import FILE as REGISTRY_FILE
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, SUMMARIES_FOLDER
from pipeline.snapshot import SnapshotStore
from pipeline.summarise import SummaryCache
from workers import refill
from workers.checkup import data, facts, registry, shard, stream, summaries
from workers.checkup.finding import Finding, Verdict, damaged, of_error, repaired

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
    done = _registry(settings, folders)
    for folder, expected in folders.items():
        done += _shard(settings, folder, expected)
    done += _unknown_work(settings, folders)
    if scopes is None:
        done += _tried("stream", lambda: _stream(settings))
    return done


def _shard(settings: Settings, folder: Path, expected: Scope | None) -> list[Finding]:
    found: list[Finding] = []
    scope = expected
    try:
        scope, problem = _owner(folder, expected)
        if scope is None:
            return [damaged(f"{shard.name_of(folder, expected)} ledger", problem)] if problem else []
        for mend in (_ledger, _snapshot, _files):
            found += mend(settings, folder, scope)
    except (ShardError, TransientError) as error:
        found.append(of_error(f"{shard.name_of(folder, scope)} ledger", error))
    if scope is not None and any(finding.verdict is Verdict.REPAIRED for finding in found):
        found += _tried("registry", lambda: _mark(settings, [scope]))
    return found


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


def _ledger(settings: Settings, folder: Path, scope: Scope) -> list[Finding]:
    path, what = folder / LEDGER_FILE, f"{scope.key} ledger"
    done = [repaired(what, "as it was before a repair that was killed")] if undo_half_done(path) else []
    try:
        return done + _mended(settings, path, scope)
    except ShardError:
        # First: the new ledger may give out ids again that this snapshot knows as other traces.
        SnapshotStore(folder).discard("traces")
        saved = salvage(path, scope, now_ms=_now_ms())
    lost = f", {saved.n_unreadable} places could not be read: {check.RESTORE}" if saved.n_unreadable else ""
    if not saved.n_turns:
        lost = f": if there were any, {check.RESTORE}, and keep the damaged file until then"
    said = f"{saved.n_turns} turns saved into a new file{lost}; the damaged one is {saved.aside}"
    return [*done, repaired(what, said), *_mended(settings, path, scope)]


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
        with ledger.read() as reading:
            has_wrong_facts, has_wrong_themes = facts.are_wrong(reading), bool(facts.wrong_themes(reading))
        if has_wrong_facts:
            condensed_check.drop_facts(ledger)
            done.append("facts dropped, which were others than its turns state")
        if has_wrong_themes:
            condensed_check.drop_themes(ledger)
            done.append("themes dropped, which its turns did not tell")
    return [repaired(f"{scope.key} ledger", one) for one in done]


def _snapshot(_settings: Settings, folder: Path, scope: Scope) -> list[Finding]:
    path = folder / LEDGER_FILE
    with closing(connect(path, query_only=True)) as connection, translated(path):
        found = shard.snapshot_findings(folder, scope.key, connection)
    if not found:
        return []
    SnapshotStore(folder).discard("traces")
    return [repaired(f"{scope.key} snapshot", "removed; it is built anew if the scope is large enough for one")]


def _files(_settings: Settings, folder: Path, scope: Scope) -> list[Finding]:
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
    return [repaired(f"{scope.key} files", f"{path} removed") for path in doomed]


def _registry(settings: Settings, folders: dict[Path, Scope | None]) -> list[Finding]:
    return _tried("registry", lambda: _mended_registry(settings, folders))


def _mended_registry(settings: Settings, folders: dict[Path, Scope | None]) -> list[Finding]:
    """Have a registry that can be read; a damaged one is set aside, unless somebody has it open."""
    path = settings.data_dir / REGISTRY_FILE
    if not path.exists():
        if not folders:
            return []
        refill.refill(settings.data_dir)
        return [repaired("registry", "made anew from the shards")]
    try:
        with closing(Registry(settings.data_dir, create=False)) as registry:
            problems = registry.problems()
    except ShardError as error:
        problems = [str(error)]
    if not problems:
        return []
    try:
        with alone(path):
            aside = refill.set_aside(settings.data_dir, reason="; ".join(problems))
    except TransientError as error:
        return [of_error("registry", error)]
    refill.refill(settings.data_dir)
    return [repaired("registry", f"made anew from the shards; the damaged one is {aside}")]


def _unknown_work(settings: Settings, folders: dict[Path, Scope | None]) -> list[Finding]:
    looked_at = {}
    for folder, expected in folders.items():
        with suppress(ShardError, TransientError):
            scope, _ = _owner(folder, expected)
            if scope is not None:
                looked_at[scope] = shard.counted(settings, scope)
    try:
        unknown = registry.unknown_work(settings, looked_at)
    except (ShardError, TransientError):  # said before
        return []
    problems = _tried("registry", lambda: _mark(settings, unknown))
    return problems or [repaired("registry", f"{scope.key} noted as having work") for scope in unknown]


def _stream(settings: Settings) -> list[Finding]:
    try:
        lost = stream.lost_entries(settings)
        with stream.opened(settings) as turns:
            return [
                repaired("stream", f"the event of entry {entry.id} published again as {turns.append(entry.raw)}")
                for entry in lost
                if entry.raw is not None
            ]
    except ServerUnreachableError:
        return []  # said where the installation is looked at


def _mark(settings: Settings, scopes: Iterable[Scope]) -> list[Finding]:
    with closing(Registry(settings.data_dir, busy_timeout_ms=settings.ledger.busy_timeout_ms)) as opened:
        keys = [scope.key for scope in scopes]
        opened.mark(keys, now_ms=_now_ms())
        opened.end_refusals(keys)
    return []


def _tried(what: str, step: Callable[[], list[Finding]]) -> list[Finding]:
    """Do a step; what keeps it from its end is a finding among others, and no end of the repair."""
    try:
        return step()
    except (ConfigError, ShardError, TransientError) as error:
        return [of_error(what, error)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
