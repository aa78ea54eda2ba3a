"""One generation, mapped into memory and searched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.errors import DimensionMismatchError
from pipeline.snapshot.manifest import Manifest

_MAX_BITS_PER_ID: Final = 64

Stamp = tuple[int, int, int]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Snapshot:
    """One published generation, mapped into memory: safe to search from many threads, never changed.

    It goes on working after a newer generation has removed its file.
    """

    def __init__(self, index: Any, manifest: Manifest, path: Path, stamp: Stamp) -> None:
        self._index = index
        self._path = path
        self._stamp = stamp
        self.watermark = manifest.watermark
        self.generation = manifest.generation
        self.count = manifest.count
        self.dimension = manifest.dimension

    def is_untouched(self) -> bool:
        """Tell whether the file was not written to since it was checked; one that was removed is whole in memory.

        Why: what is mapped changes with the file, and a search past the end of one that was cut ends the process.
        """
        try:
            return stamp_of(self._path) == self._stamp
        except OSError:
            return True

    def search(self, xq: Floats, k: int, *, allowed_ids: Ids | None = None) -> tuple[Floats, Ids]:
        """Find the ``k`` nearest ids of each query, best first.

        Args:
            xq: (d,) or (n, d) float32, rows L2-normalised; a score is then the cosine.
            k: hits wanted; fewer come back when fewer exist.
            allowed_ids: search only these; with an IVF index all of its lists are looked at.

        Returns:
            Scores and ids, both (k',) for one query. For n queries both (n, k'), where a row with fewer hits than the
            longest one ends in id -1, score -inf.

        Raises:
            DimensionMismatchError: the queries are not of the index's dimension.
        """
        queries = np.ascontiguousarray(np.atleast_2d(xq), dtype=np.float32)
        if queries.shape[1] != self.dimension:
            raise DimensionMismatchError(
                f"a query has {queries.shape[1]} dimensions, the snapshot {self.dimension}; embed with one model"
            )
        k = min(k, self.count if allowed_ids is None else len(allowed_ids))
        if k <= 0 or not len(queries):
            scores, ids = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        else:
            with _own_thread_alone() if len(queries) == 1 else nullcontext():
                scores, ids = self._index.search(queries, k, params=self._parameters(allowed_ids))
        scores[ids < 0] = -np.inf
        found = int((ids >= 0).sum(axis=1).max(initial=0))
        scores, ids = scores[:, :found], ids[:, :found]
        return (scores[0], ids[0]) if np.ndim(xq) == 1 else (scores, ids)

    def ids(self) -> Ids:
        """List the ids it holds, (n,) int64, in the index's own order."""
        import faiss  # noqa: PLC0415 - loads its own thread pool

        if isinstance(self._index, faiss.IndexIVF):
            lists: Any = self._index.invlists
            of_lists = [
                faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number)).copy()
                for number in range(self._index.nlist)
                if lists.list_size(number)
            ]
            return np.concatenate([np.empty(0, np.int64), *of_lists])
        ids: Ids = faiss.vector_to_array(self._index.id_map)
        return ids

    def exact_vectors(self) -> npt.NDArray[np.floating] | None:
        """Give the vectors (n, d) in the order of `ids`, valid as long as this snapshot; None: only codes."""
        import faiss  # noqa: PLC0415 - loads its own thread pool

        if isinstance(self._index, faiss.IndexIVF):
            return None
        flat: Any = faiss.downcast_index(self._index.index)
        if isinstance(flat, faiss.IndexScalarQuantizer):
            codes: npt.NDArray[np.uint8] = faiss.rev_swig_ptr(flat.codes.data(), flat.ntotal * flat.code_size)
            return codes.view("<f2").reshape(flat.ntotal, flat.d)
        vectors: Floats = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d)  # of an earlier release
        return vectors.reshape(flat.ntotal, flat.d)

    def _parameters(self, allowed_ids: Ids | None) -> Any:
        import faiss  # noqa: PLC0415 - loads its own thread pool

        if allowed_ids is None:
            return None
        selector = _selector(np.ascontiguousarray(allowed_ids, dtype=np.int64))
        if isinstance(self._index, faiss.IndexIVF):
            return faiss.SearchParametersIVF(  # type: ignore[call-arg]  # the stubs lack SWIG's keywords
                sel=selector, nprobe=self._index.nlist
            )
        return faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]  # the same


def stamp_of(path: Path) -> Stamp:
    """Give what differs once a file was replaced or written to.

    Raises:
        OSError: it cannot be looked at.
    """
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


@contextmanager
def _own_thread_alone() -> Iterator[None]:
    """Keep FAISS from waking other threads; the setting is this thread's own, and is put back.

    Why: it shares out even the renaming of 90 ids, and the threads it wakes then spin. Measured at 10 000 traces on
    two cores, a retrieve without its embedding used 16 ms of CPU with them and 7 ms alone.
    """
    import faiss  # noqa: PLC0415 - loads its own thread pool

    n_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(n_threads)


def _selector(ids: Ids) -> Any:
    """Let a search pass these ids alone: by a bitmap where they lie close together, as trace ids do, else a hash set.

    Why: measured for 50 000 ids, a bitmap takes 0.4 ms to make and a set 11 ms.
    """
    import faiss  # noqa: PLC0415 - loads its own thread pool

    n_bits = (int(ids.max(initial=0)) | 7) + 1
    if int(ids.min(initial=0)) < 0 or n_bits > _MAX_BITS_PER_ID * len(ids):
        return faiss.IDSelectorBatch(ids)
    is_allowed = np.zeros(n_bits, dtype=np.bool_)
    is_allowed[ids] = True
    bitmap: Any = np.packbits(is_allowed, bitorder="little")
    return faiss.IDSelectorBitmap(bitmap)  # type: ignore[call-arg]  # the stubs lack the array form
