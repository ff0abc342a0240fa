"""Plots as SVG: lines, stacks, strips, histograms and forecasts.

An unknown value is a gap, never a zero. Unobserved time is hatched. Colour is never the only sign: every plot has a
legend, and every strip has its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scale0.pipeline.reports import axes
from scale0.pipeline.reports.axes import WIDE, PlotFrame, figure, legend, rect
from scale0.pipeline.reports.formatting import availability, duration, moment, number, share
from scale0.pipeline.reports.model import Bars, Cone, LinePlot, Plot, Stacks, Strip, Strips

HEIGHT: Final = 200
STRIP_HEIGHT: Final = 18
STRIP_GAP: Final = 6
NAME_WIDTH: Final = 260
NUMBER_WIDTH: Final = 132
LOG_SPAN: Final = 30.0
"""Values that differ by more than this factor are drawn on a logarithmic scale."""
LEAST: Final = 2.5
"""The minimum height of a nonzero value."""
ROOM: Final = 1.3
"""Margin above the highest and below the lowest point of a logarithmic scale."""
KINDS: Final = 4
"""Number of style classes for lines and stacks."""
STRIP_KINDS: Final = ("up", "unobserved", "downtime", "down", "absent")


def draw(plot: Plot, key: str) -> str:
    """`key` is the prefix of its ids."""
    match plot:
        case LinePlot():
            return draw_lines(plot, key)
        case Stacks():
            return draw_stacks(plot, key)
        case Strips():
            return draw_strips(plot, key)
        case Bars():
            return draw_bars(plot, key)
        case Cone():
            return draw_cone(plot, key)


def draw_lines(plot: LinePlot, key: str) -> str:
    frame = PlotFrame(HEIGHT)
    times = [us for line in plot.lines for us, _ in line.points]
    values = [value for line in plot.lines for _, value in line.points if value is not None]
    if not values:
        return _nothing(plot.title, plot.about, key)
    from_us, to_us = min(times), max(times)
    if from_us == to_us:
        to_us += 1
    low, high = min((value for value in values if value > 0), default=0.0), max(values)
    is_log = plot.unit == "seconds" and low > 0 and high / low > LOG_SPAN
    if is_log:
        low, high = low / ROOM, high * ROOM
        y = axes.logarithmic(low, high, frame.bottom, frame.top)
        ticks = axes.log_ticks(low, high)
    else:
        top = high * 1.05 or 1.0
        y = axes.linear(0, top, frame.bottom, frame.top)
        ticks = axes.nice_ticks(0, top)
    x = axes.linear(from_us, to_us, frame.left, frame.right)
    body = axes.y_axis(frame, y, ticks, _namer(plot.unit)) + axes.x_axis(frame, from_us, to_us)
    for at, line in enumerate(plot.lines):
        points = (None if value is None else (x(us), y(value)) for us, value in line.points)
        body.append(axes.path(f"line k{at % KINDS}", points))
    names = [(f"fill k{at % KINDS}", line.name) for at, line in enumerate(plot.lines)]
    scale = " The scale is logarithmic." if is_log else ""
    return figure(key, plot.title, plot.about + scale, frame, body, legend(names))


def draw_stacks(plot: Stacks, key: str) -> str:
    frame = PlotFrame(HEIGHT)
    top = max((sum(counts) for _, counts in plot.stacks), default=0)
    if not top:
        return _nothing(plot.title, plot.about, key)
    from_us, to_us = plot.stacks[0][0], plot.stacks[-1][0] + plot.unit_us
    x = axes.linear(from_us, to_us, frame.left, frame.right)
    y = axes.linear(0, top * 1.05, frame.bottom, frame.top)
    ticks = [tick for tick in axes.nice_ticks(0, top * 1.05) if tick == int(tick)]
    body = axes.y_axis(frame, y, ticks, number)
    gap = 1.5 if x(from_us + plot.unit_us) - x(from_us) > 5 else 0.3
    for start_us, counts in plot.stacks:
        base = float(frame.bottom)
        values = ", ".join(f"{count:,} {name}" for name, count in zip(plot.names, counts, strict=True) if count)
        for at, count in enumerate(counts):
            if count:
                height = max(frame.bottom - y(count), LEAST)
                left, right = x(start_us), x(start_us + plot.unit_us)
                tip = f"{moment(start_us)}: {values}"
                body.append(
                    rect(f"fill k{_stack_kind(plot, at)}", left, base - height, right - left - gap, height, tip)
                )
                base -= height
    body += axes.x_axis(frame, from_us, to_us)
    names = [(f"fill k{_stack_kind(plot, at)}", name) for at, name in enumerate(plot.names)]
    return figure(key, plot.title, plot.about, frame, body, legend(names))


def _stack_kind(plot: Stacks, at: int) -> str:
    """Failures are always red."""
    return "bad" if plot.names[at] == "failed" else str(at % KINDS)


def draw_strips(plot: Strips, key: str) -> str:
    height = axes.TOP + len(plot.strips) * (STRIP_HEIGHT + STRIP_GAP) + axes.BOTTOM
    frame = PlotFrame(height, WIDE, NAME_WIDTH, WIDE - NUMBER_WIDTH)
    starts = [cell.start_us for strip in plot.strips for cell in strip.cells]
    from_us, to_us = min(starts), max(starts) + plot.unit_us
    x = axes.linear(from_us, to_us, frame.left, frame.right)
    body = []
    for at, strip in enumerate(plot.strips):
        body += _strip(plot, strip, frame.top + at * (STRIP_HEIGHT + STRIP_GAP), x)
    body += axes.x_axis(frame, from_us, to_us)
    return figure(key, plot.title, plot.about, frame, body, legend([(f"c-{kind}", kind) for kind in STRIP_KINDS]))


def _strip(plot: Strips, strip: Strip, top: float, x: axes.Scale) -> list[str]:
    body = [axes.text("name", 0, top + 13, axes.fitted(strip.name, NAME_WIDTH - 8))]
    gap = 1.0 if x(plot.unit_us) - x(0) > 4 else 0.0
    for cell in strip.cells:
        left, width = x(cell.start_us), x(cell.start_us + plot.unit_us) - x(cell.start_us) - gap
        seconds = [(kind, getattr(cell, f"{kind}_seconds")) for kind in STRIP_KINDS]
        whole = sum(value for _, value in seconds)
        if not whole:
            continue
        values = ", ".join(f"{kind} {duration(value)}" for kind, value in seconds if value)
        tip = f"{strip.name}, {moment(cell.start_us)}: {values}"
        y = top
        for kind, least in heights([(kind, value / whole) for kind, value in seconds]):
            body.append(rect(f"c-{kind}", left, y, width, least, tip))
            y += least
    low, high = strip.low, strip.high
    label = "–" if low is None or high is None else availability(low)
    if low is not None and high is not None and availability(low) != availability(high):
        label = f"{availability(low)[:-2]} – {availability(high)}"
    body.append(axes.text("name", WIDE, top + 13, label, "end"))
    return body


def heights(shares: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The height of each share of a strip: every nonzero share is visible, and the sum is the strip's height."""
    least = [(kind, max(value * STRIP_HEIGHT, LEAST) if value else 0.0) for kind, value in shares]
    over = sum(value for _, value in least) - STRIP_HEIGHT
    largest = max(range(len(least)), key=lambda at: least[at][1])
    return [(kind, value - over if at == largest else value) for at, (kind, value) in enumerate(least) if value]


def draw_bars(plot: Bars, key: str) -> str:
    frame = PlotFrame(HEIGHT)
    top = max((count for _, _, count in plot.bars), default=0)
    if not top:
        return _nothing(plot.title, plot.about, key)
    low, high = plot.bars[0][0], plot.bars[-1][1]
    x = axes.logarithmic(low, high, frame.left, frame.right)
    y = axes.linear(0, top * 1.12, frame.bottom, frame.top)
    body = axes.y_axis(frame, y, [t for t in axes.nice_ticks(0, top) if t == int(t)], number)
    for start, end, count in plot.bars:
        if count:
            tip = f"{duration(start)} to {duration(end)}: {count:,}"
            height = max(frame.bottom - y(count), 1.0)
            body.append(rect("fill k0", x(start), frame.bottom - height, x(end) - x(start) - 0.8, height, tip))
    body.append(axes.line("axis", frame.left, frame.bottom, frame.right, frame.bottom))
    for tick in axes.log_ticks(low, high):
        body.append(axes.text("tick", x(tick), frame.bottom + 17, duration(tick), "middle"))
    right_end = frame.left - 99.0
    for name, value in plot.marks:
        if low <= value <= high:
            at = x(value)
            body.append(axes.line("mark", at, frame.top, at, frame.bottom))
            width = len(name) * axes.CHARACTER
            # A label that would leave the plot is left of its line; one that would cover another is a line lower.
            left = at + 3 if at + 3 + width <= frame.right else at - 3 - width
            lower = 12 if left < right_end else 0
            body.append(axes.text("tick", left, frame.top + 8 + lower, name))
            right_end = left + width if not lower else right_end
    marks = ", ".join(f"{name} {duration(value)}" for name, value in plot.marks)
    return figure(key, plot.title, f"{plot.about} {marks}. The scale is logarithmic.", frame, body)


def draw_cone(plot: Cone, key: str) -> str:
    frame = PlotFrame(HEIGHT)
    history_from = plot.history[0][0] if plot.history else plot.at_us
    # Limit the end: a very late one would compress everything else.
    end_us = min(plot.high_us or plot.meets_us, plot.meets_us + 2 * (plot.meets_us - history_from))
    end_us = max(end_us, plot.meets_us) + (plot.meets_us - history_from) // 20
    values = [*(value for _, value in plot.history), plot.value, plot.limit]
    low, high = min(values), max(values)
    margin = (high - low) * 0.1 or 1.0
    low = max(0.0, low - margin) if low >= 0 else low - margin
    y = axes.linear(low, high + margin, frame.bottom, frame.top)
    x = axes.linear(history_from, end_us, frame.left, frame.right)
    body = axes.y_axis(frame, y, axes.nice_ticks(low, high + margin, 4), number)
    late = min(plot.high_us or end_us, end_us)
    start, limit = (x(plot.at_us), y(plot.value)), y(plot.limit)
    early_x, late_x = x(max(plot.low_us, plot.at_us)), x(late)
    cone = " ".join(f"{axes.px(px)},{axes.px(py)}" for px, py in (start, (early_x, limit), (late_x, limit)))
    body.append(f'<polygon class="cone" points="{cone}"/>')
    body.append(axes.line("limit", frame.left, limit, frame.right, limit))
    body.append(axes.path("line k0", ((x(us), y(value)) for us, value in plot.history)))
    body.append(axes.path("line dashed k0", (start, (x(plot.meets_us), limit))))
    body += axes.x_axis(frame, history_from, end_us)
    names = [("fill k0", "measured, and its trend"), ("cone", "90 % confidence"), ("fill kbad", "limit")]
    return figure(key, plot.title, plot.about, frame, body, legend(names))


def _namer(unit: str) -> Callable[[float], str]:
    match unit:
        case "seconds":
            return duration
        case "share":
            return share
        case _:
            return number


def _nothing(title: str, about: str, key: str) -> str:
    return figure(key, title, f"{about} There is no data.", PlotFrame(40), [axes.text("tick", 0, 24, "no data")])
