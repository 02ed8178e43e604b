"""Chart: lines in an SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 52
LEGEND_ROW, SUBTITLE_ROW = 18, 17
# Distinguishable with every common colour blindness (Wong 2011).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """``points`` from left to right. ``dashed`` distinguishes what was published from what is simulated. ``like``: the
    name of an earlier line whose colour this one has.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    like: str | None = None


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """An SVG with both axes from 0. Further lines of the title are smaller. Raises ValueError without points."""
    points = [point for line in lines for point in line.points]
    if not points:
        raise ValueError("a chart needs points")
    x_ticks, y_ticks = ticks(max(x for x, _ in points)), ticks(max(y for _, y in points))
    head, *rest = title.split("\n")
    top, bottom = TOP + SUBTITLE_ROW * len(rest), HEIGHT - BOTTOM
    colours: dict[str, str] = {}
    for line in lines:
        own = COLOURS[len(set(colours.values())) % len(COLOURS)]
        colours[line.name] = own if line.like is None else colours[line.like]

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * x / x_ticks[-1],
            bottom - (bottom - top) * y / y_ticks[-1],
        )

    height = HEIGHT + LEGEND_ROW * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{escape(head)}</text>',
    ]
    for row, text in enumerate(rest, 1):
        parts.append(f'<text x="{LEFT}" y="{24 + SUBTITLE_ROW * row}" fill="#444">{escape(text)}</text>')
    for tick in y_ticks:
        _, y = place(0, tick)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>',
        ]
    for tick in x_ticks:
        x, _ = place(tick, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts += [
        f'<text x="{middle:.1f}" y="{bottom + 38}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {(top + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    for index, line in enumerate(lines):
        colour = colours[line.name]
        fill = "#fff" if line.dashed else colour
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        placed = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>'
            for x, y in placed
        ]
        y = HEIGHT + LEGEND_ROW * index
        parts += [
            f'<line x1="{LEFT}" x2="{LEFT + 28}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>',
            f'<text x="{LEFT + 36}" y="{y + 4}">{escape(line.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def ticks(most: float) -> list[float]:
    """From 0 to the first round number from ``most`` on, at steps of 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    count = math.ceil(most / step - 1e-9)
    return [round(step * index, 12) for index in range(count + 1)]
