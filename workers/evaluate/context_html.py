"""The comparison of strategies as one HTML file: evidence told against tokens spent."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from workers.evaluate import drawing
from workers.evaluate.context_run import Comparison, Row
from workers.evaluate.drawing import Line, percent
from workers.evaluate.evidence import LEAST_TOLD

_HEADS: Final = ("way", "budget", "told", "quoted", "tokens", "p50", "p95", "leaks: sessions", "scopes")


def page(found: Comparison) -> str:
    """Write the page."""
    about = (
        f"{found.n_questions} questions about {found.n_sessions} sessions, {found.n_entries} exchanges in all. An"
        f" evidence turn is told when one item of the block holds {LEAST_TOLD:.0%} of its telling words, and quoted"
        " when one holds it word for word."
    )
    charts = [
        drawing.card("Evidence told, by tokens spent", _by_tokens(found)),
        drawing.card("Evidence told, by category of the question", _by_category(found)),
    ]
    return drawing.document(
        f"{found.dataset} · session memory",
        f"<p>{escape(about)}</p>{_tiles(found)}"
        f'<div class="grid">{"".join(charts)}</div>{drawing.table(_HEADS, [_cells(row) for row in found.rows])}',
    )


def _tiles(found: Comparison) -> str:
    largest = max(found.budgets)
    best = max((row for row in found.rows if row.max_tokens == largest), key=lambda row: row.told)
    slowest = max(row.p95_ms for row in found.rows if row.max_tokens is not None)
    n_leaks = sum(row.session_leaks + row.scope_leaks for row in found.rows)
    return drawing.tiles(
        [
            (percent(best.told), f"of the evidence told in {largest} tokens by {best.method}"),
            (f"{slowest:.0f} ms", "the slowest way: 95 of 100 blocks are built faster"),
            (f"{n_leaks}", "turns of other sessions or scopes in a block"),
        ]
    )


def _cells(row: Row) -> Sequence[str]:
    return (
        escape(row.method),
        "" if row.max_tokens is None else str(row.max_tokens),
        percent(row.told),
        percent(row.quoted),
        f"{row.n_tokens:,.0f}",
        f"{row.p50_ms:.1f} ms",
        f"{row.p95_ms:.1f} ms",
        str(row.session_leaks),
        str(row.scope_leaks),
    )


def _by_tokens(found: Comparison) -> str:
    """Draw a line for each way; the full history, which is off to the right, goes across at its height."""
    most = max(found.budgets)
    drawn = []
    for method, rows in _ways(found):
        if rows[0].max_tokens is None and rows[0].n_tokens > 0:
            name = f"{method}: {rows[0].n_tokens:,.0f} tokens"
            height = rows[0].told
            drawn.append(Line(name, [(at, height, f"{name}, {percent(height)}") for at in (0, 1)], is_dashed=True))
        elif rows[0].max_tokens is not None:
            drawn.append(Line(method, [_point(row, row.n_tokens / most) for row in rows]))
    return drawing.lines(drawn, [(limit / most, str(limit)) for limit in found.budgets])


def _by_category(found: Comparison) -> str:
    """Draw the ways with a budget at the second smallest one, across the categories."""
    limit = sorted(found.budgets)[:2][-1]
    rows = [row for row in found.rows if row.max_tokens == limit]
    names = list(rows[0].by_category)
    places = [place / max(len(names) - 1, 1) for place in range(len(names))]
    drawn = [
        Line(
            row.method,
            [
                (at, row.by_category[name], f"{row.method}, {name}: {percent(row.by_category[name])}")
                for at, name in zip(places, names, strict=True)
            ],
        )
        for row in rows
    ]
    return drawing.lines(drawn, [(at, f"{name} at {limit}") for at, name in zip(places, names, strict=True)])


def _point(row: Row, across: float) -> tuple[float, float, str]:
    return across, row.told, f"{row.method} with {row.n_tokens:,.0f} of {row.max_tokens} tokens: {percent(row.told)}"


def _ways(found: Comparison) -> list[tuple[str, list[Row]]]:
    ways: dict[str, list[Row]] = {}
    for row in found.rows:
        ways.setdefault(row.method, []).append(row)
    return list(ways.items())
