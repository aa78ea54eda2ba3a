"""Choose hits among ranked candidates: nothing is said twice, and if asked for, several sessions are heard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from retrieval.fused.passages import Floats, Ints, Passages, WordIds

SAME: Final = 0.97
"""Cosine, and share of words in common, from which two passages say the same. Below it a detail may differ."""
_SHORTEST: Final = 4
"""Passages of fewer words ("Yes, please!") are alike without meaning the same: each answers another turn."""


def best_first(scores: Floats, tie_break: Ints) -> Ints:
    """Order candidates by score, the greatest first; equal ones by ``tie_break``, the least first."""
    return np.lexsort((tie_break, -scores)).astype(np.int64)


def drop_near_duplicates(order: Ints, passages: Passages, *, limit: int) -> Ints:
    """Keep of candidates that say the same only the first in the order; stop when ``limit`` are kept.

    Passages without a vector are never taken for the same.
    """
    kept: list[int] = []
    rows = passages.candidates[order]
    kept_vectors = np.empty((min(limit, len(order)), passages.vectors_of(rows[:0]).shape[1]), np.float32)
    for candidate, row, vector in _with_vectors(order, rows, passages, limit) if limit else ():
        cosines = kept_vectors[: len(kept)] @ vector
        alike = (int(passages.candidates[kept[i]]) for i in np.flatnonzero(cosines >= SAME))
        if not any(_same_words(passages.words_of(row), passages.words_of(other)) for other in alike):
            kept_vectors[len(kept)] = vector
            kept.append(candidate)
        if len(kept) == limit:
            break
    return np.array(kept, np.int64)


def _with_vectors(order: Ints, rows: Ints, passages: Passages, n_each: int) -> Iterator[tuple[int, int, Floats]]:
    """Give candidates with their rows and vectors, so many read at a time: most are never asked for."""
    for start in range(0, len(order), n_each):
        block = slice(start, start + n_each)
        yield from zip(order[block].tolist(), rows[block].tolist(), passages.vectors_of(rows[block]), strict=True)


def cover_sessions(order: Ints, sessions: Ints, *, limit: int, n_sessions: int, n_each: int) -> Ints:
    """Fill ``limit`` places so that each of the best ``n_sessions`` sessions has its best ``n_each``, then by rank.

    A session is as good as its best candidate. Without room for all, every session has its first before any has its
    second.

    Args:
        order: candidates, best first.
        sessions: each candidate's session, by candidate.
        limit: how many are wanted.
        n_sessions: sessions that are guaranteed places.
        n_each: places each of them is guaranteed.

    Returns:
        At most ``limit`` candidates, best first.
    """
    n_seen: dict[int, int] = {}
    promised: list[tuple[int, int]] = []
    for place, session in enumerate(sessions[order].tolist()):
        turn = n_seen.get(session, 0)
        if turn or len(n_seen) < n_sessions:
            n_seen[session] = turn + 1
            if turn < n_each:
                promised.append((turn, place))
    chosen = [place for _, place in sorted(promised)[:limit]]
    others = (place for place in range(len(order)) if place not in set(chosen))
    chosen += [place for place, _ in zip(others, range(limit - len(chosen)), strict=False)]
    return order[sorted(chosen)]


def _same_words(one: WordIds, other: WordIds) -> bool:
    if min(len(one), len(other)) < _SHORTEST:
        return False
    return len(np.intersect1d(one, other)) >= SAME * len(np.union1d(one, other))
