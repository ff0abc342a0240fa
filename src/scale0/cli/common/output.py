"""Output of commands: tables, JSON, values, times and progress.

Colour and frames are used on a terminal only. Text from the network cannot control the terminal. JSON is one value on
one line, except on a terminal. Progress goes to stderr, so that stdout has the result alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

MINUTE_SECONDS: Final = 60
HOUR_SECONDS: Final = 3_600
DAY_SECONDS: Final = 86_400
GAP: Final = "  "
WIDTH: Final = 80
"""Of a table without a terminal."""
MIN_CUT: Final = 24
"""A column is not cut shorter than this; the table becomes wider."""
PROGRESS_SECONDS: Final = 10.0
"""Between two lines of progress without a terminal."""

Show = Callable[[str, float], None]
"""Shows progress: a text, and the share of the time that is over (0 to 1)."""
Palette = Mapping[str, Mapping[str, str]]
"""Of a table: by column head, the colour for each first word of a cell."""


def on_terminal() -> bool:
    return sys.stdout.isatty()


def clean(text: str) -> str:
    """Text from the network, with control characters escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def say(text: str = "") -> None:
    click.echo(text)
    sys.stdout.flush()


def note(text: str) -> None:
    click.echo(text, err=True)


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: Any) -> Any:
    """A value for a CSV file. A spreadsheet evaluates a text that begins like a formula, unless ' is before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def as_json(value: Any) -> str:
    """Indented on a terminal, otherwise one line."""
    if on_terminal():
        return json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=False)


def as_value(value: Any) -> str:
    """The answer of a service: text as it is, other values as JSON."""
    if isinstance(value, str):
        return clean(value) if on_terminal() else value
    return as_json(value)


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Sequence[str] = (),
    palette: Palette | None = None,
    cut: str = "",
) -> None:
    """Rows under their heads; the columns in `numbers` are aligned to the right.

    A terminal folds wide cells. Without one, the column `cut` is cut so that a line has at most WIDTH columns.
    """
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    if on_terminal():
        _framed(heads, cells, numbers, (palette or {}) if coloured() else {})
        return
    widths = [max(len(row[i]) for row in [list(heads), *cells]) for i in range(len(heads))]
    if cut:
        at = heads.index(cut)
        widths[at] = min(widths[at], max(MIN_CUT, WIDTH - sum(widths) + widths[at] - len(GAP) * (len(heads) - 1)))
        for row in cells:
            row[at] = row[at] if len(row[at]) <= widths[at] else f"{row[at][: widths[at] - 1]}…"
    for row in [list(heads), *cells]:
        parts = [
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for cell, width, head in zip(row, widths, heads, strict=True)
        ]
        click.echo(GAP.join(parts).rstrip())


def _framed(heads: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[str], palette: Palette) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for head in heads:
        number = head in numbers
        shown.add_column(head, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in cells:
        colours = (palette.get(head, {}).get(cell.partition(" ")[0], "") for head, cell in zip(heads, row, strict=True))
        shown.add_row(*(Text(cell, style=colour) for cell, colour in zip(row, colours, strict=True)))
    Console(markup=False, highlight=False).print(shown)


def facts(pairs: Sequence[tuple[str, object]], colours: Mapping[str, str] | None = None) -> None:
    """Names and values, one pair on each line; `colours` by name."""
    colours = colours or {}
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        label = click.style(name.ljust(width), bold=True) if coloured() else name.ljust(width)
        text = clean(str(value))
        click.echo(f"{label}{GAP}{painted(text, colours[name]) if name in colours else text}")


def coloured() -> bool:
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if coloured() else text


def span(seconds: float | None) -> str:
    """A duration, rounded for people."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 2 * MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR_SECONDS:
        return f"{seconds / MINUTE_SECONDS:.0f} min"
    if seconds < 2 * DAY_SECONDS:
        return f"{seconds / HOUR_SECONDS:.0f} h"
    return f"{seconds / DAY_SECONDS:.0f} d"


def moment(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


@contextlib.contextmanager
def progress(name: str, per_second: float = 10.0) -> Iterator[Show]:
    """A progress bar on a terminal, otherwise a line now and then that starts with the command's name."""
    if not sys.stderr.isatty():
        yield _progress_lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True, refresh_per_second=per_second) as shown:
        bar = shown.add_task("", total=1.0)

        def show(text: str, share: float) -> None:
            shown.update(bar, description=text, completed=share)

        yield show


def _progress_lines(name: str) -> Show:
    last = 0.0

    def show(text: str, _share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_SECONDS:
            last = now
            note(f"{name}: {text}")

    return show
