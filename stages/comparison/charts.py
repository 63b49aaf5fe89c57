"""Inline SVG charts of a comparison. Each has a title and a description, and its figures stand in a table as well."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 360
LETTERS = 44  # of the page's type that fit into it, with room to spare
# Distinct in hue and in lightness, so that they stay apart in grey and for colour-blind readers.
COLOURS = ("#1f5fa8", "#b4540a", "#2e7d4f", "#7a3e9d", "#8a6d00", "#a3244b", "#3f6b75", "#555555")
DASHES = ("", "6 3", "2 3", "9 3 2 3")
SHADES = (1.0, 0.62, 0.38, 0.24)
MOST = 12  # bars or curves in one chart


class Bar(NamedTuple):
    """A labelled bar of stacked parts; `text` is its total in words."""

    label: str
    parts: Sequence[float]
    text: str
    colour: int


class Curve(NamedTuple):
    label: str
    points: Sequence[tuple[float, float]]
    colour: int


class Mark(NamedTuple):
    """A base and a final value on one scale, and the gate between them."""

    label: str
    base: float | None
    final: float
    gate: float
    passed: bool
    colour: int


def svg(name: str, title: str, description: str, height: float, body: str) -> str:
    """A chart that scales with its column and says what it shows to who cannot see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}</desc>{body}</svg>'
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def heading(y: float, label: str, figure: str) -> str:
    """A row's name on the left and its figure on the right. A long name gives way; the tables have it whole."""
    room = LETTERS - len(figure) - 2
    half = max(3, (room - 1) // 2)
    shown = label if len(label) <= room else f"{label[:half]}…{label[-half:]}"
    return text(0, y, shown) + text(WIDTH, y, figure, "figure", "end")


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def bars(name: str, title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars on one scale from zero, the parts of each in shades of its side's colour."""
    shown = rows[:MOST]
    top = max(sum(row.parts) for row in shown) or 1
    body, y = "", 0.0
    for row in shown:
        body += heading(y + 13, row.label, row.text)
        x = 0.0
        for part, shade in zip(row.parts, (*SHADES, *(SHADES[-1],) * len(row.parts)), strict=False):
            if part <= 0:  # a segment of other bars
                continue
            width = part / top * WIDTH
            shape = f'x="{x:.1f}" y="{y + 19:.1f}" width="{max(width, 0.5):.1f}" height="12"'
            body += f'<rect {shape} fill="{colour(row.colour)}" fill-opacity="{shade}"/>'
            x += width
        y += 44
    description = "; ".join(f"{row.label}: {row.text}" for row in shown)
    return svg(name, title, description, y, body)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    return [low + (high - low) * i / count for i in range(count + 1)]


def curves(name: str, title: str, found: Sequence[Curve]) -> str:
    """Loss over steps, one line per run."""
    shown = found[:MOST]
    xs = [x for curve in shown for x, _ in curve.points]
    ys = [y for curve in shown for _, y in curve.points]
    right, top, bottom, left = max(xs) or 1, max(ys) * 1.05 or 1, 180.0, 46.0
    scale_x, scale_y = (WIDTH - left - 4) / right, (bottom - 8) / top
    body = ""
    for y in ticks(0, top):
        at = bottom - y * scale_y
        body += f'<line x1="{left}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
        body += text(left - 5, at + 4, f"{y:.3g}", "tick", "end")
    for x in ticks(0, right):
        anchor = "end" if x == right else "start" if x == 0 else "middle"
        body += text(left + x * scale_x, bottom + 16, f"{x:.0f}", "tick", anchor)
    body += text(WIDTH, bottom + 33, "step", "tick", "end")
    for i, curve in enumerate(shown):
        path = " ".join(f"{left + x * scale_x:.1f},{bottom - y * scale_y:.1f}" for x, y in curve.points)
        dash = f' stroke-dasharray="{DASHES[i % len(DASHES)]}"' if i % len(DASHES) else ""
        body += f'<polyline points="{path}" stroke="{colour(curve.colour)}" class="curve"{dash}/>'
    last = "; ".join(f"{c.label}: from {c.points[0][1]:.4g} to {c.points[-1][1]:.4g}" for c in shown)
    return svg(name, title, last, bottom + 38, body)


def marks(name: str, title: str, rows: Sequence[Mark]) -> str:
    """Base (ring) and final value (disc) against the gate (line), per side."""
    shown = rows[:MOST]
    values = [v for row in shown for v in (row.base, row.final, row.gate) if v is not None]
    low, high = min(values), max(values)
    margin = (high - low or 1) * 0.06
    scale = (WIDTH - 12) / (high - low + 2 * margin)

    def at(value: float) -> float:
        return 6 + (value - low + margin) * scale

    body, y = "", 0.0
    for row in shown:
        verdict = "met" if row.passed else "FAILED"
        body += heading(y + 13, row.label, f"{row.final:.4f}, gate {verdict}")
        body += f'<line x1="0" x2="{WIDTH}" y1="{y + 30:.1f}" y2="{y + 30:.1f}" class="grid"/>'
        body += f'<line x1="{at(row.gate):.1f}" x2="{at(row.gate):.1f}" y1="{y + 21}" y2="{y + 39}" class="gate"/>'
        if row.base is not None:
            body += f'<circle cx="{at(row.base):.1f}" cy="{y + 30}" r="5" class="ring" stroke="{colour(row.colour)}"/>'
        body += f'<circle cx="{at(row.final):.1f}" cy="{y + 30}" r="5.5" fill="{colour(row.colour)}"/>'
        y += 50
    body += text(0, y + 8, f"{low:.4g}", "tick") + text(WIDTH, y + 8, f"{high:.4g}", "tick", "end")
    description = "; ".join(f"{row.label}: {row.final:.4f}, gate {row.gate:.4g}" for row in shown)
    return svg(name, title, description, y + 14, body)
