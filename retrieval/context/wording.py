"""An exchange in words, as every strategy that quotes one writes it."""

from __future__ import annotations

from retrieval.context.ages import age
from retrieval.context.cleaning import cleaned
from retrieval.context.cutting import cut
from retrieval.context.entry import Entry, Outcome

_SHORTER = ((400, 400, 1), (200, 200, 0), (120, 80, 0), (60, 0, 0))
"""Characters of the objective and of the result, and key results, tried in turn when there is little room."""

LEAST_TOKENS = 8
"""What an exchange costs at least: more of them than the room has of these are not worth writing out."""
_ON_ONE_LINE = 400
"""Up to so many characters, where lines end is not worth its room."""


def exchange(
    entry: Entry,
    now_ms: int,
    *,
    max_objective_chars: int | None = None,
    max_result_chars: int | None = None,
    n_key_results: int | None = None,
) -> str:
    """Write an exchange: its age and objective, its result, its key results, one line each; None: all of it.

    Further lines of a text are indented, so that none of them looks like another part of the exchange.
    """
    lines = [f"{age(entry.time_ms, now_ms)}: {_within(entry.objective, max_objective_chars)}"]
    label = "Failed" if entry.outcome is Outcome.FAILED else "Result"
    if result := _within(entry.conclusion, max_result_chars):
        lines.append(f"{label}: {result}")
    if findings := [" ".join(cleaned(text).split()) for text in entry.key_results[:n_key_results]]:
        lines.append(f"Key results: {'; '.join(findings)}")
    return "\n".join(lines)


def exchanges_within(entry: Entry, now_ms: int, room: int) -> tuple[str, ...]:
    """Write an exchange so that it takes no more than about half of a block, then shorter and shorter.

    Args:
        entry: the exchange.
        now_ms: the time, for its age.
        room: tokens of the block.
    """
    limit = max(room, _SHORTER[0][0])
    longest = exchange(entry, now_ms, max_objective_chars=limit // 2, max_result_chars=limit)
    return tuple(dict.fromkeys((longest, *shorter_exchanges(entry, now_ms))))


def shorter_exchanges(
    entry: Entry, now_ms: int, *, max_result_chars: int | None = None, n_key_results: int | None = None
) -> tuple[str, ...]:
    """Write it again and again shorter than with these limits, down to a few words."""
    tried = (
        exchange(
            entry,
            now_ms,
            max_objective_chars=objective,
            max_result_chars=result if max_result_chars is None else min(result, max_result_chars),
            n_key_results=findings if n_key_results is None else min(findings, n_key_results),
        )
        for objective, result, findings in _SHORTER
    )
    return tuple(dict.fromkeys(tried))


def _within(text: str, max_chars: int | None) -> str:
    lines = cleaned(text)
    if max_chars is not None and max_chars <= _ON_ONE_LINE:
        return cut(" ".join(lines.split()), max_chars)
    return (lines if max_chars is None else cut(lines, max_chars)).replace("\n", "\n  ")
