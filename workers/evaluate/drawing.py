"""What the HTML reports are drawn with: one page without script, nothing fetched, charts as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_COLOURS: Final = ("#2563eb", "#059669", "#d97706", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626", "#475569")
WIDTH, HEIGHT, LEFT = 460, 260, 44
_TOP, _BOTTOM = 14, 34
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#16202e;--soft:#64748b;--line:#e2e8f0;--paper:#f8fafc;--card:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e5ecf6;--soft:#94a3b8;--line:#2a3648;--paper:#0f1622;--card:#172131}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:1060px;margin:0 auto;padding:40px 20px 64px}h1{font-size:27px;margin:0;letter-spacing:-.02em}
h2{font-size:16px;margin:0 0 10px}p{color:var(--soft);margin:4px 0 22px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:14px;margin-bottom:22px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:18px}
section,.tile{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:18px 20px}
.tile b{display:block;font-size:26px;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}section{margin-bottom:18px;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:13px}th:first-child,td:first-child{text-align:left}
tr:last-child td{font-weight:650;border-bottom:0}svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font-size:11px}svg .axis{stroke:var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:13px;color:var(--soft);margin-top:8px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
"""


def document(title: str, body: str) -> str:
    """Write a page around a body; the title is text, the body HTML."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><main>'
        f"<h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Show figures large, each with what it says."""
    shown = "".join(f'<div class="tile"><b>{value}</b><span>{escape(label)}</span></div>' for value, label in values)
    return f'<div class="tiles">{shown}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out cells, which are HTML."""
    head = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<section><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"


def card(title: str, content: str) -> str:
    """Put a title above a chart."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: points from 0 to 1 both ways, each with what is shown when it is pointed at."""

    name: str
    points: Sequence[tuple[float, float, str]]
    is_bold: bool = False
    is_dashed: bool = False


def lines(drawn: Sequence[Line], marks: Sequence[tuple[float, str]]) -> str:
    """Draw lines over a grid of percents, with marks across and a legend."""
    parts = [_line(line, colour(place)) for place, line in enumerate(drawn)]
    labels = "".join(
        f'<text x="{x(at):.0f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(label)}</text>' for at, label in marks
    )
    return svg(f"{grid()}{labels}{''.join(parts)}") + legend([(line.name, n) for n, line in enumerate(drawn)])


def _line(line: Line, stroke: str) -> str:
    path = " ".join(f"{x(across):.1f},{y(up):.1f}" for across, up, _ in line.points)
    dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
    dots = "".join(
        f'<circle cx="{x(across):.1f}" cy="{y(up):.1f}" r="3" fill="{stroke}"><title>{escape(told)}</title></circle>'
        for across, up, told in line.points
    )
    width = 3 if line.is_bold else 1.8
    return f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width}"{dashes}/>{dots}'


def svg(content: str, height: int = HEIGHT) -> str:
    """Wrap what was drawn."""
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg>'


def grid() -> str:
    """Draw lines at every quarter, with their percents."""
    return "".join(
        f'<line class="axis" x1="{LEFT}" y1="{y(v / 4):.0f}" x2="{WIDTH - 10}" y2="{y(v / 4):.0f}"/>'
        f'<text x="{LEFT - 8}" y="{y(v / 4) + 4:.0f}" text-anchor="end">{25 * v} %</text>'
        for v in range(5)
    )


def legend(entries: Sequence[tuple[str, int]]) -> str:
    """Name what is drawn, each by the number of its colour."""
    return (
        '<div class="legend">'
        + "".join(f'<span><i style="background:{colour(place)}"></i>{escape(name)}</span>' for name, place in entries)
        + "</div>"
    )


def colour(place: int) -> str:
    """Give a colour by its number."""
    return _COLOURS[place % len(_COLOURS)]


def x(share: float) -> float:
    """Place a value from 0 to 1 across."""
    return LEFT + 8 + share * (WIDTH - LEFT - 26)


def y(share: float) -> float:
    """Place a value from 0 to 1 upwards."""
    return HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP)


def percent(value: float) -> str:
    """Write a share."""
    return f"{100 * value:.1f} %"
