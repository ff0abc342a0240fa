"""How answers are shown: tables, JSON, values, times.

Lives here: text for people and for programs. Never here: what is asked. Invariants: colour and frames only on a
terminal; what came from the network cannot move a terminal's cursor; JSON is one value on one line, unless a person
reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

MINUTE_SECONDS: Final = 60
HOUR_SECONDS: Final = 3_600
DAY_SECONDS: Final = 86_400
GAP: Final = "  "
WIDTH: Final = 80
"""Of a table that is no terminal's."""
MIN_CUT: Final = 24
"""A text that was cut shorter than this would say nothing: the table becomes wider."""


def on_terminal() -> bool:
    """True if a person reads our output."""
    return sys.stdout.isatty()


def clean(text: str) -> str:
    """Text from elsewhere, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def say(text: str = "") -> None:
    """One piece of text to stdout, at once."""
    click.echo(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Something beside the answer: to stderr."""
    click.echo(text, err=True)


def as_json(value: Any) -> str:
    """JSON: indented for a person, one line for a program."""
    if on_terminal():
        # A terminal may read what the network says as a command: control characters stay escaped in JSON.
        return json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=False)


def as_value(value: Any) -> str:
    """What a service answered: text as it is, the rest as JSON."""
    if isinstance(value, str):
        return clean(value) if on_terminal() else value
    return as_json(value)


Palette = Mapping[str, Mapping[str, str]]
"""Of a table: by the head of a column, the colour for each first word of a cell."""


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Sequence[str] = (),
    palette: Palette | None = None,
    cut: str = "",
) -> None:
    """Rows under their heads; those named in `numbers` stand to the right.

    A terminal folds what is too wide for it; elsewhere the column `cut` is cut, so that a line is at most WIDTH wide.
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
    """Names and values, one pair on a line; `colours` by name."""
    colours = colours or {}
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        label = click.style(name.ljust(width), bold=True) if coloured() else name.ljust(width)
        text = clean(str(value))
        click.echo(f"{label}{GAP}{painted(text, colours[name]) if name in colours else text}")


def coloured() -> bool:
    """True if colour is wanted: a terminal, and nobody said NO_COLOR."""
    import os

    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str) -> str:
    """Text in a colour, where colour is wanted."""
    return click.style(text, fg=colour) if coloured() else text


def span(seconds: float | None) -> str:
    """A length of time, as short as it is exact enough."""
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
    """A wall time, in this machine's zone."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
