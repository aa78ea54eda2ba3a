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
from pipeline.ledger.connection import connect, read_meta, translated, unusable
from pipeline.ledger.salvage import half_done
from pipeline.records import Scope
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, SUMMARIES_FOLDER, Shards, shard_name
from pipeline.snapshot import Snapshot, SnapshotStore
from pipeline.summarise import SummaryCache
from workers.checkup import facts, summaries
from workers.checkup.finding import Finding, damaged, of_error

TEMPORARIES = (".*.tmp", ".*.draft", ".*.salvage", f"{SUMMARIES_FOLDER}/*.tmp")
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


def look(settings: Settings, folder: Path, *, expected: Scope | None, idle: bool) -> ShardLook:
    """Look at everything in one shard's folder.

    Args:
        settings: of the installation.
        folder: the shard's.
        expected: whose it is, as far as somebody else knows.
        idle: nothing is left to be done.
    """
    path, name = folder / LEDGER_FILE, name_of(folder, expected)
    try:
        with closing(connect(path, query_only=True)) as connection, translated(path):
            meta = read_meta(connection)
            if problem := misplaced(meta, folder):
                return ShardLook(None, [damaged(f"{name} ledger", problem)])
            scope = Scope.parse(meta["scope"]) if meta else None
            name = name_of(folder, scope or expected)
            findings = snapshot_findings(folder, name, connection)
            connection.execute("BEGIN")
            faults = check.structure(connection)
            if not faults:
                faults = [*check.contents(connection), *(check.unfinished(connection) if idle else ())]
            findings += [damaged(f"{name} {fault.part}", f"{fault.problem}; {fault.remedy}") for fault in faults]
            findings += summaries.findings(settings, connection, folder, name)
            findings += [] if faults else facts.findings(connection, name)
            counts, gaps = check.counts(connection), tuple(check.gaps(connection))
    except ShardError as error:
        return ShardLook(None, [damaged(f"{name} ledger", f"{error}; {check.SALVAGED}")])
    except TransientError as error:
        return ShardLook(None, [of_error(f"{name} ledger", error)])
    return ShardLook(scope, findings + _files(folder, name, idle=idle), counts, gaps)


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


def name_of(folder: Path, scope: Scope | None) -> str:
    """Call a shard by its scope, or by its folder while nobody knows whose it is."""
    return scope.key if scope else f"shard {folder.name}"


def misplaced(meta: dict[str, str], folder: Path) -> str | None:
    """Say why a ledger with these facts is not to be used here; None when it is."""
    if not meta:  # made a moment ago; whoever made it is about to write the scope
        return None
    is_at_home = False
    with suppress(PoisonError):
        is_at_home = shard_name(Scope.parse(meta.get("scope", ""))) == folder.name
    return unusable(meta, folder / LEDGER_FILE, is_at_home=is_at_home)


def snapshot_findings(folder: Path, name: str, connection: apsw.Connection) -> list[Finding]:
    """Say what is wrong with a shard's snapshot; the ledger is read later, and knows all that the snapshot may."""
    try:
        snapshot = _open_snapshot(folder, connection)
    except ShardError as error:
        return [damaged(f"{name} snapshot", f"{error}; {REMOVED}")]
    problem = None if snapshot is None else _contradiction(snapshot, connection)
    return [damaged(f"{name} snapshot", f"{problem}; {REMOVED}")] if problem else []


def doubtful_traces(folder: Path, connection: apsw.Connection) -> Ids:
    """List the traces for which snapshot and ledger have different vectors: nobody can tell which is right."""
    with suppress(ShardError):
        if (snapshot := _open_snapshot(folder, connection)) is not None:
            return _differing(snapshot, snapshot.ids(), connection)
    return np.empty(0, dtype=np.int64)


def _open_snapshot(folder: Path, connection: apsw.Connection) -> Snapshot | None:
    store, model_key = SnapshotStore(folder), read_meta(connection).get("model_key")
    if model_key is None:  # nothing was embedded yet; a purge has published an empty one all the same
        manifest = store.manifest("traces")
        model_key = manifest.model_key if manifest and not manifest.count else ""
    return store.open("traces", model_key=model_key)


def _contradiction(snapshot: Snapshot, connection: apsw.Connection) -> str | None:
    """Compare ids and, where the index keeps them exactly, vectors."""
    last, where = reads.last_trace_id(connection), f"generation {snapshot.generation}"
    if snapshot.watermark > last:
        return f"{where} reaches to trace {snapshot.watermark}, the ledger gave out {last}"
    held, indexed = reads.trace_ids_up_to(connection, snapshot.watermark), snapshot.ids()
    missing = np.setdiff1d(held, indexed)
    if missing.size:
        return f"{where} lacks {missing.size} traces that it should hold, {_first(missing)}"
    if np.unique(indexed).size != indexed.size or (indexed.size and indexed.max() > snapshot.watermark):
        return f"{where} holds a trace twice, or one above its watermark"
    differing = _differing(snapshot, indexed, connection)
    if differing.size:
        return f"{where} has other vectors than the ledger for {differing.size} traces, {_first(differing)}"
    return None


def _differing(snapshot: Snapshot, indexed: Ids, connection: apsw.Connection) -> Ids:
    vectors = snapshot.exact_vectors()
    if vectors is None:
        return np.empty(0, dtype=np.int64)
    order, differing = np.argsort(indexed), [np.empty(0, dtype=np.int64)]
    for start in range(0, len(indexed), _BLOCK_ROWS):
        rows = order[start : start + _BLOCK_ROWS]
        ids, stored = check.vectors_between(
            connection, int(indexed[rows[0]]), int(indexed[rows[-1]]), snapshot.dimension
        )
        is_indexed = np.isin(ids, indexed[rows])
        ids, stored = ids[is_indexed], stored[is_indexed]
        at = rows[np.searchsorted(indexed[rows], ids)]
        differing.append(ids[(vectors[at] != stored).any(axis=1)])
    return np.concatenate(differing)


def _first(ids: Ids) -> str:
    return f"the first is {ids.min()}"


def _files(folder: Path, name: str, *, idle: bool) -> list[Finding]:
    found = []
    if aside := half_done(folder / LEDGER_FILE):
        found.append(damaged(f"{name} ledger", f"{aside} is of a repair that was killed; {check.SALVAGED}"))
    if (summaries_folder := folder / SUMMARIES_FOLDER).is_dir():
        found += [
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
