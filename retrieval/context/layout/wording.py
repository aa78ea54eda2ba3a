"""An exchange in words, as every strategy that quotes one writes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from retrieval.context.entries.entry import Entry, Outcome
from retrieval.context.layout.ages import age
from retrieval.context.layout.cleaning import cleaned
from retrieval.context.layout.cutting import cut

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
    return _Clean(entry, now_ms).written(max_objective_chars, max_result_chars, n_key_results)


def exchanges_within(entry: Entry, now_ms: int, room: int) -> tuple[str, ...]:
    """Write an exchange so that it takes no more than about half of a block, then shorter and shorter.

    Args:
        entry: the exchange.
        now_ms: the time, for its age.
        room: tokens of the block.
    """
    limit = max(room, _SHORTER[0][0])
    clean = _Clean(entry, now_ms)
    return tuple(dict.fromkeys((clean.written(limit // 2, limit, None), *clean.shorter(None, None))))


def shorter_exchanges(
    entry: Entry, now_ms: int, *, max_result_chars: int | None = None, n_key_results: int | None = None
) -> tuple[str, ...]:
    """Write it again and again shorter than with these limits, down to a few words."""
    return tuple(dict.fromkeys(_Clean(entry, now_ms).shorter(max_result_chars, n_key_results)))


class _Clean:
    """The texts of an exchange, harmless."""

    def __init__(self, entry: Entry, now_ms: int) -> None:
        self._age = age(entry.time_ms, now_ms)
        self._label = "Failed" if entry.outcome is Outcome.FAILED else "Result"
        self._objective = _Text(cleaned(entry.objective))
        self._result = _Text(cleaned(entry.conclusion))
        self._findings = [" ".join(cleaned(text).split()) for text in entry.key_results]

    def written(self, objective: int | None, result: int | None, findings: int | None) -> str:
        """Write it with so many characters, and key results."""
        lines = [f"{self._age}: {self._objective.within(objective)}"]
        if text := self._result.within(result):
            lines.append(f"{self._label}: {text}")
        if kept := self._findings[:findings]:
            lines.append(f"Key results: {'; '.join(kept)}")
        return "\n".join(lines)

    def shorter(self, max_result: int | None, max_findings: int | None) -> Iterator[str]:
        """Write it shorter and shorter."""
        for objective, result, findings in _SHORTER:
            yield self.written(
                objective,
                result if max_result is None else min(result, max_result),
                findings if max_findings is None else min(findings, max_findings),
            )


class _Text:
    """A text, harmless, that is written at several lengths."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _on_one_line(self) -> str:
        return " ".join(self._text[: 8 * _ON_ONE_LINE].split())

    def within(self, max_chars: int | None) -> str:
        """Write it with so many characters."""
        if max_chars is not None and max_chars <= _ON_ONE_LINE:
            return cut(self._on_one_line, max_chars)
        return (self._text if max_chars is None else cut(self._text, max_chars)).replace("\n", "\n  ")
