"""Plots of `make bench`: horizontal bars as SVG, one for each table.

Without a library, so that the same figures always make the same file. Invariant: a plot is legible on a light and on a
dark page: it has no background, and colours between both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABEL_WIDTH = 270
BAR_WIDTH = 370
ROW_HEIGHT = 28
BAR_HEIGHT = 15
TOP = 34
BOTTOM = 10
TEXT = "#6e7781"
OURS = "#0a8f86"
OTHERS = "#9aa4af"
WHISKER = "#57606a"
STYLE = f"text{{font:13px system-ui,sans-serif;fill:{TEXT}}}.head{{font-weight:600}}"


@dataclass(frozen=True)
class Bar:
    """One row: its value, how far it went in the rounds, and what is written beside it."""

    label: str
    value: float
    least: float
    most: float
    text: str
    ours: bool


def svg(title: str, bars: Sequence[Bar]) -> str:
    """All bars, from nothing to the longest."""
    height = TOP + ROW_HEIGHT * len(bars) + BOTTOM
    longest = max((bar.most for bar in bars), default=0.0) or 1.0
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="head" x="0" y="18">{escape(title)}</text>',
    ]
    for number, bar in enumerate(bars):
        parts += row(bar, TOP + ROW_HEIGHT * number, BAR_WIDTH / longest)
    return "\n".join([*parts, "</svg>"]) + "\n"


def row(bar: Bar, top: int, scale: float) -> list[str]:
    """Label, bar, from the least to the most as a line over it, and the value."""
    middle = top + ROW_HEIGHT // 2
    value, least, most = (one * scale for one in (bar.value, bar.least, bar.most))
    place = f'x="{LABEL_WIDTH}" y="{middle - BAR_HEIGHT // 2}" width="{max(1.0, value):.1f}" height="{BAR_HEIGHT}"'
    ends = f"M{LABEL_WIDTH + least:.1f} {middle - 4}v8M{LABEL_WIDTH + most:.1f} {middle - 4}v8"
    line = f"M{LABEL_WIDTH + least:.1f} {middle}H{LABEL_WIDTH + most:.1f}{ends}"
    return [
        f'<text x="{LABEL_WIDTH - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect {place} rx="2" fill="{OURS if bar.ours else OTHERS}"/>',
        f'<path d="{line}" stroke="{WHISKER}" fill="none"/>',
        f'<text x="{LABEL_WIDTH + max(value, most) + 8:.1f}" y="{middle + 4}">{escape(bar.text)}</text>',
    ]
