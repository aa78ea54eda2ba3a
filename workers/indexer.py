"""Publishing a scope's snapshot when it has outgrown the last one, and purging what was forgotten."""

from __future__ import annotations

import structlog

from pipeline import index
from pipeline.embed import Embedder
from pipeline.errors import ShardError
from pipeline.ledger import Ledger, upkeep
from pipeline.settings import IndexSettings
from pipeline.shards import SUMMARIES_FOLDER
from pipeline.snapshot import Manifest, SnapshotStore
from pipeline.summarise import SummaryCache

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
        """Tell whether the scope has outgrown its snapshot, lost it, or has something to purge."""
        if status.purge_due is not None:
            return True
        if status.counts.traces < self._settings.min_tail:
            return False
        manifest = _manifest(SnapshotStore(ledger.path.parent))
        watermark, n_snapshot = (manifest.watermark, manifest.count) if manifest else (0, 0)
        enough = max(self._settings.min_tail, int(self._settings.growth * n_snapshot)) + 1
        n_tail = upkeep.n_traces_above(ledger, watermark, at_most=enough)
        return index.is_due(n_tail, n_snapshot, min_tail=self._settings.min_tail, growth=self._settings.growth)

    def publish(self, ledger: Ledger, status: upkeep.Status) -> None:
        """Publish a snapshot if one is due; does nothing otherwise.

        Raises:
            ShardError: the ledger is damaged.
            TransientError: another worker is publishing this scope, or the disk is full.
        """
        if not self.is_due(ledger, status):
            return
        store = SnapshotStore(ledger.path.parent)
        store.tidy("traces")
        before = _manifest(store)
        watermark = status.last_trace_id
        if status.counts.traces == 0:
            store.discard("traces")
        else:
            store.publish(
                "traces",
                index=index.build_from_blocks(
                    upkeep.vector_blocks(ledger, self._embedder.dimension, watermark),
                    self._embedder.dimension,
                    flat_max=self._settings.flat_max,
                    min_recall=self._settings.min_recall,
                ),
                watermark=watermark,
                model_key=self._embedder.model_key,
                dimension=self._embedder.dimension,
                replaces=before.generation if before else 0,
            )
        if status.purge_due is not None:
            self._purge_summaries(ledger)
            upkeep.end_purge(ledger, status.purge_due)
            _log.info("scope.purged")

    def _purge_summaries(self, ledger: Ledger) -> None:
        folder = ledger.path.parent / SUMMARIES_FOLDER
        if folder.is_dir():
            SummaryCache(folder).keep_only(upkeep.summary_digests(ledger))


def _manifest(store: SnapshotStore) -> Manifest | None:
    try:
        return store.manifest("traces")
    except ShardError as error:
        _log.warning("snapshot.found_damaged", reason=str(error))
        return None
