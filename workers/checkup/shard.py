"""One scope's files: the ledger, the snapshot, the summary cache, and what a kill left behind."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import numpy as np
import numpy.typing as npt

from pipeline.errors import PoisonError, ShardError, TransientError
from pipeline.ledger import check, reads
from pipeline.ledger.connection import connect, read_meta, translated
from pipeline.ledger.schema import FORMAT
from pipeline.records import Scope
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, SUMMARIES_FOLDER, Shards, shard_name
from pipeline.snapshot import Snapshot, SnapshotStore
from pipeline.summarise import SummaryCache
from workers.checkup import summaries
from workers.checkup.finding import Finding, damaged

TEMPORARIES = (".*.tmp", ".*.draft", f"{SUMMARIES_FOLDER}/*.tmp")
_BLOCK_ROWS = 4_096
Ids = npt.NDArray[np.int64]
REMOVED = "'turnstream doctor --repair' removes it, and it is built anew"


@dataclass(frozen=True, slots=True)
class ShardLook:
    """What was seen of one shard."""

    scope: Scope | None
    findings: list[Finding]
    counts: check.Counted = field(default_factory=check.Counted)
    gaps: tuple[check.Gap, ...] = ()
    """Not among the findings: their turns may be on their way."""


def look(settings: Settings, folder: Path, *, name: str, idle: bool) -> ShardLook:
    """Look at everything in one shard's folder.

    Args:
        settings: of the installation.
        folder: the shard's.
        name: what to call it while its own ledger does not say: its scope key, or the folder's name.
        idle: nothing is left to be done.
    """
    path = folder / LEDGER_FILE
    try:
        with closing(connect(path, query_only=True)) as connection, translated(path):
            meta = read_meta(connection)
            if found := _identity(meta, folder, name):
                return ShardLook(None, found)
            scope = Scope.parse(meta["scope"]) if meta else None
            name = scope.key if scope else name
            snapshot, findings = _snapshot(folder, name, meta)  # before the ledger: what is newer, it need not know
            connection.execute("BEGIN")
            faults = check.structure(connection)
            if not faults:
                faults = [*check.contents(connection), *(check.unfinished(connection) if idle else ())]
            gaps = tuple(check.gaps(connection))
            findings += [damaged(f"{name} {fault.part}", f"{fault.problem}; {fault.remedy}") for fault in faults]
            findings += summaries.findings(settings, connection, folder, name)
            if snapshot is not None:
                findings += _snapshot_against_ledger(snapshot, name, connection)
            counts = check.counts(connection)
    except (ShardError, TransientError) as error:
        return ShardLook(None, [damaged(f"{name} ledger", str(error))])
    findings += _files(folder, name, idle=idle)
    return ShardLook(scope, findings, counts, gaps)


def counted(settings: Settings, scope: Scope) -> check.Counted:
    """Count what is left to do in one scope; nothing when its ledger cannot be read."""
    path = Shards(settings.data_dir).ledger_path(scope)
    with (
        suppress(ShardError, TransientError),  # said where the ledger itself is looked at
        closing(connect(path, query_only=True)) as connection,
        translated(path),
    ):
        return check.counts(connection)
    return check.Counted()


def _identity(meta: dict[str, str], folder: Path, name: str) -> list[Finding]:
    if not meta:  # made a moment ago; whoever made it is about to write the scope
        return []
    if meta.get("format") != str(FORMAT):
        problem = f"{folder / LEDGER_FILE} has format {meta.get('format')}, this release reads {FORMAT}"
        return [damaged(f"{name} ledger", f"{problem}; upgrade Turnstream, or restore the ledger from a backup")]
    try:
        fits = shard_name(Scope.parse(meta.get("scope", ""))) == folder.name
    except PoisonError:
        fits = False
    if fits:
        return []
    problem = f"{folder} holds the ledger of {meta.get('scope')!r}, which belongs into another folder"
    return [damaged(f"{name} ledger", f"{problem}; was a folder moved by hand? Move it back or restore it")]


def _snapshot(folder: Path, name: str, meta: dict[str, str]) -> tuple[Snapshot | None, list[Finding]]:
    try:
        return SnapshotStore(folder).open("traces", model_key=meta.get("model_key", "")), []
    except ShardError as error:
        return None, [damaged(f"{name} snapshot", str(error))]


def _snapshot_against_ledger(snapshot: Snapshot, name: str, connection: apsw.Connection) -> list[Finding]:
    """Compare ids and, where the index keeps them exactly, vectors."""
    last, where = reads.last_trace_id(connection), f"generation {snapshot.generation}"
    if snapshot.watermark > last:
        problem = f"{where} reaches to trace {snapshot.watermark}, the ledger gave out {last}"
        return [damaged(f"{name} snapshot", f"{problem}; {REMOVED}")]
    held, indexed = reads.trace_ids_up_to(connection, snapshot.watermark), snapshot.ids()
    missing = np.setdiff1d(held, indexed)
    if missing.size:
        problem = f"{where} lacks {missing.size} traces that it should hold, {_first(missing)}"
        return [damaged(f"{name} snapshot", f"{problem}; {REMOVED}")]
    if np.unique(indexed).size != indexed.size or (indexed.size and indexed.max() > snapshot.watermark):
        problem = f"{where} holds a trace twice, or one above its watermark"
        return [damaged(f"{name} snapshot", f"{problem}; {REMOVED}")]
    differing = _differing(snapshot, indexed, connection)
    if differing.size:
        problem = f"{where} has other vectors than the ledger for {differing.size} traces, {_first(differing)}"
        return [damaged(f"{name} snapshot", f"{problem}; {REMOVED}")]
    return []


def _differing(snapshot: Snapshot, indexed: Ids, connection: apsw.Connection) -> Ids:
    vectors = snapshot.exact_vectors()
    if vectors is None:
        return np.empty(0, dtype=np.int64)
    order, differing = np.argsort(indexed), []
    for start in range(0, len(indexed), _BLOCK_ROWS):
        rows = order[start : start + _BLOCK_ROWS]
        ids, stored = reads.vectors_of(connection, indexed[rows], snapshot.dimension)
        at = rows[np.searchsorted(indexed[rows], ids)]
        differing.append(ids[(vectors[at] != stored).any(axis=1)])
    return np.concatenate([np.empty(0, dtype=np.int64), *differing])


def _first(ids: Ids) -> str:
    return f"the first is {ids.min()}"


def _files(folder: Path, name: str, *, idle: bool) -> list[Finding]:
    found = []
    if (summaries_folder := folder / SUMMARIES_FOLDER).is_dir():
        found = [
            damaged(f"{name} summary cache", f"{path} cannot be read; 'turnstream doctor --repair' removes it")
            for path in SummaryCache(summaries_folder).damaged()
        ]
    if idle:
        found += [
            damaged(f"{name} files", f"{path} was left behind by a kill; 'turnstream doctor --repair' removes it")
            for pattern in TEMPORARIES
            for path in sorted(folder.glob(pattern))
        ]
    return found
