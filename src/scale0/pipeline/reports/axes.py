"""The geometry of plots: frames, scales, axes and SVG elements.

Every text is escaped. Every plot has a title and a description for screen readers. Colours are classes of the style
sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from scale0.pipeline.time_ranges import DAY_US, HOUR_US, to_time

NARROW: Final = 540
WIDE: Final = 1130
"""Width in the plot's own units: about as many pixels as on the page, so that text has its size."""
LEFT: Final = 64
RIGHT: Final = 16
TOP: Final = 10
BOTTOM: Final = 26
CHARACTER: Final = 6.4
"""The approximate width of a character."""
TICK_WIDTH: Final = 62
"""The width of a time label."""

_TIME_STEPS: Final = (
    *(HOUR_US * hours for hours in (1, 2, 3, 6, 12)),
    *(DAY_US * days for days in (1, 2, 3, 7, 14, 28, 91, 182, 364, 728, 1820)),
)

Scale = Callable[[float], float]


class PlotFrame(NamedTuple):
    height: int
    width: int = NARROW
    left: int = LEFT
    right: int = NARROW - RIGHT
    top: int = TOP

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM


def figure(key: str, title: str, about: str, frame: PlotFrame, body: Iterable[str], legend: str = "") -> str:
    inner = "".join(body)
    wide = ' class="wide"' if frame.width == WIDE else ""
    return (
        f"<figure{wide}><figcaption>{escape(title)}</figcaption>{legend}"
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(about)}</desc>{inner}</svg></figure>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(class, name) of each entry."""
    items = "".join(
        f'<li><svg viewBox="0 0 14 10" aria-hidden="true"><rect class="{kind}" width="14" height="10"/></svg>'
        f"{escape(name)}</li>"
        for kind, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def px(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def rect(kind: str, x: float, y: float, width: float, height: float, tip: str = "") -> str:
    end = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
    return (
        f'<rect class="{kind}" x="{px(x)}" y="{px(y)}" width="{px(max(width, 0))}" height="{px(max(height, 0))}"{end}'
    )


def text(kind: str, x: float, y: float, label: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{px(x)}" y="{px(y)}" text-anchor="{anchor}">{escape(label)}</text>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}"/>'


def fitted(label: str, width: float) -> str:
    """Shorten to this width by removing the middle, because names differ at both ends."""
    most = max(5, int(width / CHARACTER))
    if len(label) <= most:
        return label
    head = (most - 1) // 2
    return f"{label[:head]}…{label[len(label) - (most - 1 - head) :]}"


def linear(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    inner = linear(math.log(low), math.log(max(high, low * 1.0001)), start, end)
    return lambda value: inner(math.log(max(value, low)))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.9999)
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and 2 and 5 between them if there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def time_ticks(from_us: int, to_us: int, most: float) -> list[tuple[int, str]]:
    step = next((one for one in _TIME_STEPS if (to_us - from_us) / one <= most), _TIME_STEPS[-1])
    anchor = -3 * DAY_US if step % (7 * DAY_US) == 0 else 0  # weeks begin on Monday
    first = -((anchor - from_us) // step) * step + anchor
    form = "%H:%M" if step < DAY_US else "%-d %b" if to_us - from_us < 300 * DAY_US else "%b %Y"
    found = []
    for us in range(first, to_us + 1, step):
        time = to_time(us)
        found.append((us, time.strftime("%-d %b" if step < DAY_US and us % DAY_US == 0 else form)))
    return found


def x_axis(frame: PlotFrame, from_us: int, to_us: int) -> list[str]:
    scale = linear(from_us, to_us, frame.left, frame.right)
    found = [line("axis", frame.left, frame.bottom, frame.right, frame.bottom)]
    for us, name in time_ticks(from_us, to_us, (frame.right - frame.left) / TICK_WIDTH):
        if from_us <= us <= to_us:
            x = scale(us)
            half = len(name) * CHARACTER / 2
            anchor = "start" if x - half < 0 else "end" if x + half > frame.width else "middle"
            found.append(line("axis", x, frame.bottom, x, frame.bottom + 4))
            found.append(text("tick", x, frame.bottom + 17, name, anchor))
    return found


def y_axis(frame: PlotFrame, scale: Scale, ticks: Iterable[float], name: Callable[[float], str]) -> list[str]:
    """Labels beside the plot, with lines across it."""
    found = []
    for tick in ticks:
        y = scale(tick)
        found.append(line("grid", frame.left, y, frame.right, y))
        found.append(text("tick", frame.left - 7, y + 4, name(tick), "end"))
    return found


def path(kind: str, points: Iterable[tuple[float, float] | None]) -> str:
    """A line through points with gaps for None; an isolated point is a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    drawn = ["M" + "L".join(f"{px(x)},{px(y)}" for x, y in run) for run in runs if len(run) > 1]
    dots = [
        f'<circle class="{kind} dot" cx="{px(run[0][0])}" cy="{px(run[0][1])}" r="2"/>' for run in runs if len(run) == 1
    ]
    return (f'<path class="{kind}" d="{"".join(drawn)}"/>' if drawn else "") + "".join(dots)
