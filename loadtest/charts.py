"""Line charts as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 520, 300, 56
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
GRID_COLUMNS = 2
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Curves over one x axis; both axes begin at 0."""

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Points]


@dataclass(frozen=True)
class _Scale:
    """From values to pixels."""

    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return MARGIN + value / self.x_max * (WIDTH - 1.5 * MARGIN)

    def y(self, value: float) -> float:
        return HEIGHT - MARGIN - value / self.y_max * (HEIGHT - 2 * MARGIN)


def write(path: Path, charts: Sequence[Chart]) -> None:
    """One SVG file, two charts a row."""
    places = [divmod(i, GRID_COLUMNS) for i in range(len(charts))]
    groups = [
        f'<g transform="translate({column * WIDTH} {row * HEIGHT})">{draw(chart)}</g>'
        for (row, column), chart in zip(places, charts, strict=True)
    ]
    width, height = WIDTH * min(GRID_COLUMNS, len(charts)), HEIGHT * (places[-1][0] + 1)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(groups)
        + "</svg>\n"
    )


def draw(chart: Chart) -> str:
    points = [point for curve in chart.curves.values() for point in curve]
    x_step = step(max((x for x, _ in points), default=1.0))
    y_step = step(max((y for _, y in points), default=1.0))
    scale = _Scale(_ceiling([x for x, _ in points], x_step), _ceiling([y for _, y in points], y_step))
    parts = [_text(WIDTH / 2, 18, chart.title, "middle", 'font-weight="bold"')]
    parts += [_text(WIDTH / 2, HEIGHT - 14, chart.x_label, "middle"), _text(8, MARGIN - 14, chart.y_label)]
    parts += _grid(scale, x_step, y_step)
    for i, (name, curve) in enumerate(chart.curves.items()):
        parts += _curve(scale, curve, COLOURS[i % len(COLOURS)])
        parts.append(_text(WIDTH - 8, 16 + 13 * i, name, "end", f'fill="{COLOURS[i % len(COLOURS)]}"'))
    return "\n".join(parts)


def step(largest: float) -> float:
    """A round distance between ticks: 1, 2 or 5 times a power of ten, four to ten of them up to `largest`."""
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest / 4))
    return max(power * factor for factor in (1, 2, 5) if power * factor <= largest / 4)


def _ceiling(values: Sequence[float], tick: float) -> float:
    """The first tick that no value exceeds."""
    return max(1, math.ceil(max(values, default=1.0) / tick - 1e-9)) * tick


def _grid(scale: _Scale, x_step: float, y_step: float) -> list[str]:
    left, right, bottom, top = scale.x(0), scale.x(scale.x_max), scale.y(0), scale.y(scale.y_max)
    parts = []
    for i in range(round(scale.y_max / y_step) + 1):
        y = scale.y(i * y_step)
        parts.append(f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="#ddd"/>')
        parts.append(_text(left - 6, y + 4, f"{i * y_step:g}", "end"))
    for i in range(round(scale.x_max / x_step) + 1):
        parts.append(_text(scale.x(i * x_step), bottom + 16, f"{i * x_step:g}", "middle"))
    return [*parts, f'<path d="M{left:.1f} {top:.1f}V{bottom:.1f}H{right:.1f}" fill="none" stroke="#333"/>']


def _curve(scale: _Scale, curve: Points, colour: str) -> list[str]:
    pixels = [f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in curve]
    line = f'<polyline points="{" ".join(pixels)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    if len(pixels) > 30:
        return [line]
    marks = [f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" fill="{colour}"/>' for p in pixels]
    return [line, *marks]


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
