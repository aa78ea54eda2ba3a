"""The evaluation as one HTML file to look at: no script, nothing fetched, charts drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from workers.evaluate.metrics import Bin
from workers.evaluate.run import CUTS, OVERALL, Evaluation, Figures

_COLOURS: Final = ("#2563eb", "#059669", "#d97706", "#db2777", "#7c3aed", "#0891b2", "#65a30d")
_W, _H, _LEFT, _TOP, _BOTTOM = 460, 260, 44, 14, 34
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


def page(found: Evaluation) -> str:
    """Write the page."""
    overall = found.figures.get(OVERALL) or next(iter(found.figures.values()))
    charts = [
        _card("Evidence found, by how many hits are looked at", _recall(found)),
        _card("Evidence found among ten, by category", _categories(found)),
        _card("Sessions found, by how many are looked at", _sessions(overall)),
        _card("Is the score a probability?", _calibration(found.calibration)) if found.calibration else "",
        _card("How long one retrieve takes", _latency(found.milliseconds)) if found.milliseconds else "",
    ]
    title = f"{escape(found.dataset)} · profile {escape(found.profile)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><main>'
        f"<h1>{title}</h1><p>{overall.n} questions with known evidence ({escape(found.form)});"
        f" overall is the mean over those that count.</p>{_tiles(found, overall)}{_table(found)}"
        f'<div class="grid">{"".join(charts)}</div></main></body></html>\n'
    )


def _tiles(found: Evaluation, overall: Figures) -> str:
    tiles = [
        (_percent(overall.share[10]), "evidence among ten hits"),
        (_percent(overall.any[10]), "questions with a hit among ten"),
        (_percent(overall.session_any[5]), "a right session among five"),
        (f"{overall.ndcg:.3f}", "NDCG@10"),
        (f"{found.latency_ms['p50']:.1f} ms", f"a retrieve; 95 of 100 under {found.latency_ms['p95']:.1f} ms"),
    ]
    if found.n_turns:
        tiles.append((f"{found.ingest_per_s:,.0f}/s", f"turns made searchable, of {found.n_turns:,}"))
    if found.elsewhere is not None:
        tiles.append((_percent(found.elsewhere.foreign_below), "of questions nobody answered are known as such"))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b><span>{escape(label)}</span></div>' for value, label in tiles)
        + "</div>"
    )


def _table(found: Evaluation) -> str:
    heads = ["category", "n", *(f"R@{k}" for k in CUTS), "all@10", "hit@10", "S any@5", "S all@5", "NDCG@10", "MRR"]
    rows = []
    for name, figures in found.figures.items():
        cells = [
            escape(name),
            str(figures.n),
            *(_percent(figures.share[k]) for k in CUTS),
            *(
                _percent(v)
                for v in (figures.all[10], figures.any[10], figures.session_any[5], figures.session_all[5])
            ),
            f"{figures.ndcg:.3f}",
            f"{figures.mrr:.3f}",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{head}</th>" for head in heads)
    return f"<section><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"


def _card(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _recall(found: Evaluation) -> str:
    lines = [(name, [figures.share[k] for k in CUTS]) for name, figures in found.figures.items()]
    return _lines(lines, [str(k) for k in CUTS])


def _sessions(overall: Figures) -> str:
    lines = [
        ("any of them", [overall.session_any[k] for k in CUTS]),
        ("share", [overall.session_share[k] for k in CUTS]),
        ("all of them", [overall.session_all[k] for k in CUTS]),
    ]
    return _lines(lines, [str(k) for k in CUTS])


def _categories(found: Evaluation) -> str:
    bars = [(name, figures.share[10]) for name, figures in found.figures.items()]
    height = 30 * len(bars) + 8
    drawn = []
    for place, (name, value) in enumerate(bars):
        y = 30 * place + 6
        drawn.append(
            f'<text x="0" y="{y + 14}">{escape(name)}</text>'
            f'<rect x="130" y="{y}" width="{max(value * 270, 1):.1f}" height="18" rx="4" fill="{_colour(place)}"/>'
            f'<text x="{137 + value * 270:.1f}" y="{y + 14}">{_percent(value)}</text>'
        )
    return f'<svg viewBox="0 0 {_W} {height}" role="img">{"".join(drawn)}</svg>'


def _calibration(bins: Sequence[Bin]) -> str:
    """Draw each range of scores at its mean, as large as it has hits; on the line, a score is what it says."""
    most = max(part.n for part in bins)
    dots = "".join(
        f'<circle cx="{_x(part.score):.1f}" cy="{_y(part.share):.1f}" r="{3 + 11 * (part.n / most) ** 0.5:.1f}"'
        f' fill="{_COLOURS[0]}" fill-opacity=".65"><title>{part.n} hits scored {part.score:.2f} on average,'
        f" {part.share:.0%} were evidence</title></circle>"
        for part in bins
    )
    ideal = f'<line class="axis" stroke-dasharray="4 4" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>'
    labels = "".join(
        f'<text x="{_x(v / 4):.0f}" y="{_H - 14}" text-anchor="middle">{v / 4:g}</text>' for v in range(5)
    )
    return f'<svg viewBox="0 0 {_W} {_H}" role="img">{_grid()}{ideal}{labels}{dots}</svg>' + _legend(
        [("hits with about the same score: across what it says, upwards how many were evidence", 0)]
    )


def _latency(latencies_ms: Sequence[float]) -> str:
    """Draw how many retrieves took how long, the slowest hundredth left out."""
    ordered = sorted(latencies_ms)
    longest = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] or 1.0
    n_bars = 24
    counts = [0] * n_bars
    for value in ordered:
        if value <= longest:
            counts[min(int(value / longest * n_bars), n_bars - 1)] += 1
    width = (_W - _LEFT - 10) / n_bars
    bars = "".join(
        f'<rect x="{_LEFT + place * width + 1:.1f}" y="{_y(count / max(counts)):.1f}" width="{width - 2:.1f}"'
        f' height="{_y(0) - _y(count / max(counts)):.1f}" rx="2" fill="{_COLOURS[5]}"/>'
        for place, count in enumerate(counts)
    )
    labels = "".join(
        f'<text x="{_x(v / 4):.0f}" y="{_H - 14}" text-anchor="middle">{longest * v / 4:.1f} ms</text>'
        for v in range(5)
    )
    return f'<svg viewBox="0 0 {_W} {_H}" role="img">{bars}{labels}</svg>'


def _lines(lines: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str]) -> str:
    steps = max(len(labels) - 1, 1)
    drawn = []
    for place, (name, values) in enumerate(lines):
        points = [(_x(i / steps), _y(value)) for i, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        width = 3 if name == OVERALL else 1.8
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{_colour(place)}" stroke-width="{width}"/>')
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_colour(place)}"><title>{escape(name)} at {label}:'
            f" {_percent(value)}</title></circle>"
            for (x, y), label, value in zip(points, labels, values, strict=True)
        ]
    marks = "".join(
        f'<text x="{_x(i / steps):.0f}" y="{_H - 14}" text-anchor="middle">{label}</text>'
        for i, label in enumerate(labels)
    )
    legend = _legend([(name, place) for place, (name, _) in enumerate(lines)])
    return f'<svg viewBox="0 0 {_W} {_H}" role="img">{_grid()}{marks}{"".join(drawn)}</svg>{legend}'


def _grid() -> str:
    return "".join(
        f'<line class="axis" x1="{_LEFT}" y1="{_y(v / 4):.0f}" x2="{_W - 10}" y2="{_y(v / 4):.0f}"/>'
        f'<text x="{_LEFT - 8}" y="{_y(v / 4) + 4:.0f}" text-anchor="end">{25 * v} %</text>'
        for v in range(5)
    )


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    return (
        '<div class="legend">'
        + "".join(
            f'<span><i style="background:{_colour(place)}"></i>{escape(name)}</span>' for name, place in entries
        )
        + "</div>"
    )


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def _x(share: float) -> float:
    return _LEFT + 8 + share * (_W - _LEFT - 26)


def _y(share: float) -> float:
    return _H - _BOTTOM - share * (_H - _BOTTOM - _TOP)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
