"""Publish generations, open them checked, and remove what is no longer served; see the package for the files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import filelock
import structlog

from pipeline.crash_points import CrashPoint, passing
from pipeline.errors import DimensionMismatchError, ShardError, TransientError
from pipeline.snapshot.manifest import METRIC, Kind, Manifest
from pipeline.snapshot.mapped import Snapshot, Stamp, stamp_of

T = TypeVar("T")

_LOCK_TIMEOUT_S: Final = 60.0
_OPEN_ATTEMPTS: Final = 5
_HALF_A_NUMBER: Final = 1
"""Bytes: half of a file is half of its float16 vectors; one that holds codes may end there."""

log = structlog.get_logger()


class SnapshotStore:
    """The snapshots in one shard's folder.

    Args:
        folder: the shard's; its name stands in every manifest.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stamp(self, kind: Kind) -> Stamp | None:
        """Tell one published generation from another without reading it; None when there is none."""
        try:
            return stamp_of(self._manifest_path(kind))
        except FileNotFoundError:
            return None

    def manifest(self, kind: Kind) -> Manifest | None:
        """Read which generation is served; None when there is none.

        Raises:
            ShardError: the manifest is damaged or belongs to another shard or kind.
        """
        path = self._manifest_path(kind)
        try:
            manifest = Manifest.from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, OSError) as error:
            raise ShardError(f"{path} cannot be used: {error}; {self._remedy(kind)}") from error
        if (manifest.shard, manifest.kind) != (self._folder.name, kind):
            raise ShardError(f"{path} belongs to {manifest.kind} of shard {manifest.shard}; {self._remedy(kind)}")
        return manifest

    def generation(self, kind: Kind) -> int:
        """Give the number of the served generation; 0 when there is none, or the manifest is damaged."""
        try:
            manifest = self.manifest(kind)
        except ShardError:
            return 0  # damaged: being replaced is what it needs
        return manifest.generation if manifest else 0

    def check(self, kind: Kind) -> Manifest | None:
        """Read which generation is served, and check that its file is there and of its size; None when there is none.

        Its bytes are read only when a reader has doubted it (`doubt`); the doubt ends when they are right.

        Raises:
            ShardError: the manifest is damaged, or the file missing, too short or too long, or its bytes are wrong.
        """
        is_doubted = self._doubt_path(kind).exists()
        manifest = self._look(kind, self._require_digest if is_doubted else self._require_size)
        if is_doubted:
            self._doubt_path(kind).unlink(missing_ok=True)
        return manifest

    def doubt(self, kind: Kind) -> None:
        """Have the next `check` read every byte of what is served.

        Raises:
            OSError: this process may not write here.
        """
        os.close(os.open(self._doubt_path(kind), os.O_WRONLY | os.O_CREAT, 0o600))

    def open(self, kind: Kind, *, model_key: str) -> Snapshot | None:
        """Check the served generation, byte for byte, and map it; None when there is none.

        Raises:
            ShardError: manifest or file is damaged, missing, swapped, or of another model.
        """
        return self._look(kind, lambda manifest: self._open(manifest, model_key))

    def publish(
        self,
        kind: Kind,
        *,
        index: Any,
        watermark: int,
        model_key: str,
        dimension: int,
        replaces: int | None = None,
    ) -> Manifest:
        """Serve ``index`` from now on; durable on return, and the old generation's bytes are gone.

        Args:
            kind: which of the shard's snapshots.
            index: a FAISS index that returns ids, inner product; left as it is.
            watermark: the greatest id the ledger held when the vectors were read.
            model_key: of the model that made the vectors.
            dimension: of that model.
            replaces: the generation served when the ledger was read (0: none). Given, a publication by somebody
                else in between is not overwritten: theirs may already lack what was forgotten meanwhile.

        Raises:
            DimensionMismatchError: the index has another dimension.
            ShardError: the index does not rank by inner product, or the shard's folder is gone.
            TransientError: the disk is full, or another publisher was faster or holds the lock.
        """
        self._check_index(index, dimension)
        with self._locked(kind):
            generation = self._last_generation(kind) + 1
            if replaces is not None and replaces != self.generation(kind):
                raise TransientError(
                    f"another {kind} snapshot of {self._folder} was published meanwhile; build again"
                )
            path = self._index_path(kind, generation)
            try:
                n_bytes, digest = self._write_index(index, path)
                manifest = Manifest(
                    shard=self._folder.name,
                    kind=kind,
                    generation=generation,
                    watermark=watermark,
                    count=int(index.ntotal),
                    dimension=dimension,
                    model_key=model_key,
                    n_bytes=n_bytes,
                    digest=digest,
                )
                self._write_manifest(manifest, self._manifest_path(kind))
            except (OSError, RuntimeError) as error:
                self._remove_temporaries(kind)
                raise TransientError(f"could not write {path}: {error}; is the disk full?") from error
            self._remove_all_but(kind, generation)
            self._doubt_path(kind).unlink(missing_ok=True)
            passing(CrashPoint.OLD_GENERATION_REMOVED)
        log.info("snapshot.published", shard=manifest.shard, kind=kind, generation=generation, count=manifest.count)
        return manifest

    def discard(self, kind: Kind) -> None:
        """Serve nothing from now on: the manifest goes first, then every file of the kind; durable on return.

        Raises:
            ShardError: the shard's folder is gone.
            TransientError: a publisher holds the lock.
        """
        with self._locked(kind):
            self._manifest_path(kind).unlink(missing_ok=True)
            _sync_folder(self._folder)
            self._remove_all_but(kind, 0)
            self._doubt_path(kind).unlink(missing_ok=True)

    def _look(self, kind: Kind, at: Callable[[Manifest], T]) -> T | None:
        """Look at the served generation; again when a newer one takes its file away meanwhile.

        Raises:
            ShardError: it was replaced again and again.
        """
        for _ in range(_OPEN_ATTEMPTS):
            before = self.stamp(kind)
            manifest = self.manifest(kind)
            if manifest is None:
                return None
            try:
                return at(manifest)
            except ShardError:
                if self.stamp(kind) == before:
                    raise
        raise ShardError(f"{self._manifest_path(kind)} was replaced {_OPEN_ATTEMPTS} times while opening; try again")

    def _require_size(self, manifest: Manifest) -> Manifest:
        path = self._index_path(manifest.kind, manifest.generation)
        try:
            n_bytes = path.stat().st_size
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error.strerror}; {self._remedy(manifest.kind)}") from error
        if n_bytes != manifest.n_bytes:
            raise ShardError(f"{path} has {n_bytes} bytes, not {manifest.n_bytes}; {self._remedy(manifest.kind)}")
        return manifest

    def _require_digest(self, manifest: Manifest) -> Manifest:
        path = self._index_path(manifest.kind, manifest.generation)
        try:
            measured = _measure(path)
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error}; {self._remedy(manifest.kind)}") from error
        if measured != (manifest.n_bytes, manifest.digest):
            raise ShardError(
                f"{path} is damaged: its size or digest is not the published one; {self._remedy(manifest.kind)}"
            )
        return manifest

    def _open(self, manifest: Manifest, model_key: str) -> Snapshot:
        import faiss  # noqa: PLC0415 - loads its own thread pool

        path = self._index_path(manifest.kind, manifest.generation)
        remedy = self._remedy(manifest.kind)
        if manifest.model_key != model_key:
            raise ShardError(f"{path} holds vectors of {manifest.model_key}, not {model_key}; {remedy}")
        try:
            stamp = stamp_of(path)
            self._require_digest(manifest)
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except (OSError, RuntimeError) as error:
            raise ShardError(f"{path} cannot be read: {error}; {remedy}") from error
        self._check_index(index, manifest.dimension)
        if index.ntotal != manifest.count:
            raise ShardError(f"{path} holds {index.ntotal} vectors, not {manifest.count}; {remedy}")
        return Snapshot(index, manifest, path, stamp)

    def _check_index(self, index: Any, dimension: int) -> None:
        import faiss  # noqa: PLC0415 - loads its own thread pool

        if index.d != dimension:
            raise DimensionMismatchError(f"the index of {self._folder} has {index.d} dimensions, not {dimension}")
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ShardError(f"the index of {self._folder} does not rank by {METRIC}")

    def _write_index(self, index: Any, path: Path) -> tuple[int, str]:
        import faiss  # noqa: PLC0415 - loads its own thread pool

        temporary = self._temporary(path)
        digest = _hash()
        half = int(index.ntotal) * int(index.d) * _HALF_A_NUMBER
        with open(temporary, "wb", opener=_private) as file:
            passing(CrashPoint.SNAPSHOT_OPEN)

            def write(block: bytes) -> None:
                n_before = file.tell()
                if n_before <= half < n_before + len(block):
                    file.write(block[: half - n_before])
                    file.flush()
                    passing(CrashPoint.SNAPSHOT_HALF_WRITTEN)
                    file.write(block[half - n_before :])
                else:
                    file.write(block)
                digest.update(block)

            faiss.write_index(index, faiss.PyCallbackIOWriter(write))  # type: ignore[attr-defined] # not in its stubs
            n_bytes = file.tell()
            file.flush()
            os.fsync(file.fileno())
        passing(CrashPoint.SNAPSHOT_FSYNCED)
        temporary.replace(path)
        _sync_folder(self._folder)
        passing(CrashPoint.SNAPSHOT_REPLACED)
        return n_bytes, digest.hexdigest()

    def _write_manifest(self, manifest: Manifest, path: Path) -> None:
        temporary = self._temporary(path)
        with open(temporary, "wb", opener=_private) as file:
            passing(CrashPoint.MANIFEST_OPEN)
            file.write(manifest.to_json().encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(self._folder)
        passing(CrashPoint.MANIFEST_REPLACED)

    def _last_generation(self, kind: Kind) -> int:
        """Give the greatest number ever used here that something still tells of, so that none is used twice."""
        return max([self.generation(kind), *(number for number, _ in self._index_files(kind))])

    def _remove_all_but(self, kind: Kind, generation: int) -> None:
        for number, path in self._index_files(kind):
            if number != generation:
                path.unlink(missing_ok=True)
        self._remove_temporaries(kind)

    def _remove_temporaries(self, kind: Kind) -> None:
        for path in self._folder.glob(f".{kind}.*.tmp"):  # the lock is held: nobody is writing them
            path.unlink(missing_ok=True)

    def _index_files(self, kind: Kind) -> Iterator[tuple[int, Path]]:
        for path in self._folder.glob(f"{kind}.*.faiss"):
            if number := re.fullmatch(rf"{kind}\.(\d+)\.faiss", path.name):
                yield int(number[1]), path

    @contextmanager
    def _locked(self, kind: Kind) -> Iterator[None]:
        if not self._folder.is_dir():  # the lock would create it, readable for others
            raise ShardError(f"{self._folder} does not exist; create the shard first, or was the scope forgotten?")
        lock = filelock.FileLock(self._folder / f".{kind}.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise TransientError(f"{lock.lock_file} is held by another publisher; try again later") from error
        try:
            yield
        finally:
            lock.release()

    def _remedy(self, kind: str) -> str:
        manifest = self._manifest_path(kind)
        return f"the ledger answers meanwhile, and a worker builds it anew; if none does, remove {manifest}"

    def _manifest_path(self, kind: str) -> Path:
        return self._folder / f"{kind}.manifest.json"

    def _index_path(self, kind: str, generation: int) -> Path:
        return self._folder / f"{kind}.{generation}.faiss"

    def _doubt_path(self, kind: str) -> Path:
        return self._folder / f".{kind}.doubted"

    def _temporary(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.tmp")


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, _hash).hexdigest()
        return file.tell(), digest


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
