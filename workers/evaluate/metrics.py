"""How well a ranking finds what it should: measures of one question, each between 0 and 1, and their means.

Why not `ranx` or `ir-measures`: the one brings numba, the other a C extension without wheels for every platform, for
a few sums; these are checked against cases worked out by hand (tests/unit/test_evaluate.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from statistics import fmean
from typing import Final, NamedTuple

Discount = Callable[[int], float]


class Bin(NamedTuple):
    """Hits whose scores lie in one range: how many, their mean score, and the share of them that was evidence."""

    n: int
    score: float
    share: float


def share_found(ranked: Sequence[str], wanted: Collection[str], k: int) -> float:
    """Give the share of what is wanted that is among the first ``k``."""
    return len(set(ranked[:k]) & set(wanted)) / len(set(wanted))


def all_found(ranked: Sequence[str], wanted: Collection[str], k: int) -> float:
    """Tell whether all that is wanted is among the first ``k`` (recall_all@k)."""
    return float(set(wanted) <= set(ranked[:k]))


def any_found(ranked: Sequence[str], wanted: Collection[str], k: int) -> float:
    """Tell whether anything that is wanted is among the first ``k`` (recall_any@k)."""
    return float(bool(set(ranked[:k]) & set(wanted)))


def reciprocal_rank(ranked: Sequence[str], wanted: Collection[str]) -> float:
    """Give 1 over the place of the first that is wanted; 0 without one."""
    return next((1 / place for place, item in enumerate(ranked, start=1) if item in wanted), 0.0)


def standard_discount(place: int) -> float:
    """Discount a place, from 1 on, as NDCG usually does."""
    return 1 / math.log2(place + 1)


def longmemeval_discount(place: int) -> float:
    """Discount a place as LongMemEval does: the first two count the same.

    Source: src/retrieval/eval_utils.py of the data set's repository.
    """
    return 1.0 if place == 1 else 1 / math.log2(place)


def ndcg(ranked: Sequence[str], wanted: Collection[str], k: int, *, discount: Discount = standard_discount) -> float:
    """Give the discounted gain of the first ``k`` as a share of the best that could be reached."""
    gained = sum(discount(place) for place, item in enumerate(ranked[:k], start=1) if item in wanted)
    best = sum(discount(place) for place in range(1, min(k, len(set(wanted))) + 1))
    return gained / best


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the value below which so many percent lie, interpolated; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


N_BINS: Final = 10


def calibration(scored: Sequence[tuple[float, bool]]) -> list[Bin]:
    """Sort hits, each with its score and whether it was evidence, into ten ranges of scores, empty ones left out."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(N_BINS)]
    for score, is_evidence in scored:
        bins[min(max(int(score * N_BINS), 0), N_BINS - 1)].append((score, is_evidence))
    return [Bin(len(some), fmean(s for s, _ in some), fmean(float(e) for _, e in some)) for some in bins if some]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Give how far scores are from shares on average, by hits."""
    total = sum(part.n for part in bins)
    return sum(part.n * abs(part.score - part.share) for part in bins) / total if total else 0.0
