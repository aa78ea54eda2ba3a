"""Publishing a scope's snapshot when it has outgrown the last one, and purging what was forgotten.

The order is what a kill may not change: files are purged before the snapshot is built anew, and the purge is noted
last, so that a half of it is done again. Until then readers search the snapshot there was, and the ledger.
"""

from __future__ import annotations

import structlog

from pipeline import index
from pipeline.embed import Embedder
from pipeline.errors import ShardError
from pipeline.ledger import Ledger, disk, upkeep
from pipeline.settings import IndexSettings
from pipeline.snapshot import SnapshotStore
from workers.forgetting import purge_files

_log = structlog.get_logger()


class Indexer:
    """Keeps the snapshots of scopes up to date.

    Args:
        settings: when a snapshot is due and how it is built.
        embedder: names the model whose vectors are indexed.
    """

    def __init__(self, settings: IndexSettings, embedder: Embedder) -> None:
        self._settings = settings
        self._embedder = embedder

    def is_due(self, ledger: Ledger, status: upkeep.Status) -> bool:
        """Tell whether the scope has outgrown its snapshot, its files are damaged, or it has something to purge.

        Damage is what costs nothing to see at each turn: a broken manifest, a file that is missing or of another
        size. A changed byte is met by a reader, whose doubt has it looked for here.
        """
        return status.purge_due is not None or self._is_snapshot_due(ledger, status)

    def _is_snapshot_due(self, ledger: Ledger, status: upkeep.Status) -> bool:
        try:
            manifest = SnapshotStore(ledger.path.parent).check("traces")
        except ShardError as error:
            _log.warning("snapshot.found_damaged", reason=str(error))
            return True
        watermark, n_snapshot = (manifest.watermark, manifest.count) if manifest else (0, 0)
        enough = max(self._settings.min_tail, int(self._settings.growth * n_snapshot)) + 1
        return index.is_due(
            upkeep.n_traces_above(ledger, watermark, at_most=enough),
            n_snapshot,
            min_tail=self._settings.min_tail,
            growth=self._settings.growth,
            forced=_is_purging(status),
        )

    def publish(self, ledger: Ledger, status: upkeep.Status) -> None:
        """Publish a snapshot if one is due, and purge the scope's files; does nothing otherwise.

        A scope without traces gets an empty one: generations go on counting, so that a slower publisher, who read the
        ledger before all was forgotten, finds that it is late.

        Raises:
            ShardError: the ledger is damaged.
            TransientError: another worker is publishing this scope, somebody reads it all the time, or the disk is
                full.
        """
        purge = status.purge_due if _is_purging(status) else None
        if purge is not None:
            purge_files(ledger, purge)  # it may fail for a while; the snapshot is built once it has not
        if self._is_snapshot_due(ledger, status):
            self._build(ledger, status)
        if purge is not None:
            upkeep.note_files_purged(ledger, purge)

    def _build(self, ledger: Ledger, status: upkeep.Status) -> None:
        store = SnapshotStore(ledger.path.parent)
        before = store.generation("traces")
        built = index.build_from_blocks(
            upkeep.vector_blocks(ledger, self._embedder.dimension, status.last_trace_id),
            self._embedder.dimension,
            flat_max=self._settings.flat_max,
            min_recall=self._settings.min_recall,
        )
        # A power cut must not take traces that the snapshot knows: their ids would be given out again.
        disk.flush([ledger])
        store.publish(
            "traces",
            index=built,
            watermark=status.last_trace_id,
            model_key=self._embedder.model_key,
            dimension=self._embedder.dimension,
            replaces=before,
        )


def _is_purging(status: upkeep.Status) -> bool:
    return status.purge_due is not None and not status.files_purged
