"""The evaluation as one HTML file to look at: no script, nothing fetched, charts drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from workers.evaluate import drawing
from workers.evaluate.drawing import HEIGHT, LEFT, WIDTH, colour, percent, x, y
from workers.evaluate.metrics import Bin
from workers.evaluate.run import CUTS, OVERALL, Evaluation, Figures


def page(found: Evaluation) -> str:
    """Write the page."""
    overall = found.figures.get(OVERALL) or next(iter(found.figures.values()))
    charts = [
        drawing.card("Evidence found, by how many hits are looked at", _recall(found)),
        drawing.card("Evidence found among ten, by category", _categories(found)),
        drawing.card("Sessions found, by how many are looked at", _sessions(overall)),
        drawing.card("Is the score a probability?", _calibration(found.calibration)) if found.calibration else "",
        drawing.card("How long one retrieve takes", _latency(found.milliseconds)) if found.milliseconds else "",
    ]
    told = f"{overall.n} questions with known evidence ({escape(found.form)})"
    return drawing.document(
        f"{found.dataset} · profile {found.profile}",
        f"<p>{told}; overall is the mean over those that count.</p>{_tiles(found, overall)}{_table(found)}"
        f'<div class="grid">{"".join(charts)}</div>',
    )


def _tiles(found: Evaluation, overall: Figures) -> str:
    tiles = [
        (percent(overall.share[10]), "evidence among ten hits"),
        (percent(overall.any[10]), "questions with a hit among ten"),
        (percent(overall.session_any[5]), "a right session among five"),
        (f"{overall.ndcg:.3f}", "NDCG@10"),
        (f"{found.latency_ms['p50']:.1f} ms", f"a retrieve; 95 of 100 under {found.latency_ms['p95']:.1f} ms"),
    ]
    if found.n_turns:
        tiles.append((f"{found.ingest_per_s:,.0f}/s", f"turns made searchable, of {found.n_turns:,}"))
    if found.elsewhere is not None:
        tiles.append((percent(found.elsewhere.foreign_doubted), "of questions nobody answered are known as such"))
    return drawing.tiles(tiles)


def _table(found: Evaluation) -> str:
    heads = ["category", "n", *(f"R@{k}" for k in CUTS), "all@10", "hit@10", "S any@5", "S all@5", "NDCG@10", "MRR"]
    rows = []
    for name, figures in found.figures.items():
        cells = [
            escape(name),
            str(figures.n),
            *(percent(figures.share[k]) for k in CUTS),
            *(percent(v) for v in (figures.all[10], figures.any[10], figures.session_any[5], figures.session_all[5])),
            f"{figures.ndcg:.3f}",
            f"{figures.mrr:.3f}",
        ]
        rows.append(cells)
    return drawing.table(heads, rows)


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
            f'<rect x="130" y="{y}" width="{max(value * 270, 1):.1f}" height="18" rx="4" fill="{colour(place)}"/>'
            f'<text x="{137 + value * 270:.1f}" y="{y + 14}">{percent(value)}</text>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(drawn)}</svg>'


def _calibration(bins: Sequence[Bin]) -> str:
    """Draw each range of scores at its mean, as large as it has hits; on the line, a score is what it says."""
    most = max(part.n for part in bins)
    dots = "".join(
        f'<circle cx="{x(part.score):.1f}" cy="{y(part.share):.1f}" r="{3 + 11 * (part.n / most) ** 0.5:.1f}"'
        f' fill="{colour(0)}" fill-opacity=".65"><title>{part.n} hits scored {part.score:.2f} on average,'
        f" {part.share:.0%} were evidence</title></circle>"
        for part in bins
    )
    ideal = f'<line class="axis" stroke-dasharray="4 4" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>'
    labels = "".join(
        f'<text x="{x(v / 4):.0f}" y="{HEIGHT - 14}" text-anchor="middle">{v / 4:g}</text>' for v in range(5)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{drawing.grid()}{ideal}{labels}{dots}</svg>'
        + drawing.legend([("hits with about the same score: across what it says, upwards how many were evidence", 0)])
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
    width = (WIDTH - LEFT - 10) / n_bars
    bars = "".join(
        f'<rect x="{LEFT + place * width + 1:.1f}" y="{y(count / max(counts)):.1f}" width="{width - 2:.1f}"'
        f' height="{y(0) - y(count / max(counts)):.1f}" rx="2" fill="{colour(5)}"/>'
        for place, count in enumerate(counts)
    )
    labels = "".join(
        f'<text x="{x(v / 4):.0f}" y="{HEIGHT - 14}" text-anchor="middle">{longest * v / 4:.1f} ms</text>'
        for v in range(5)
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{bars}{labels}</svg>'


def _lines(named: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str]) -> str:
    places = [i / max(len(labels) - 1, 1) for i in range(len(labels))]
    drawn = [
        drawing.Line(
            name,
            [
                (place, value, f"{name} at {label}: {percent(value)}")
                for place, value, label in zip(places, values, labels, strict=True)
            ],
            is_bold=name == OVERALL,
        )
        for name, values in named
    ]
    return drawing.lines(drawn, list(zip(places, labels, strict=True)))
