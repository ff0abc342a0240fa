"""Progress of a run: which table, how many, how long it may still take.

Lives here: what a person sees while Spark works. Never here: what it does. Invariant: nothing on stdout, and nothing at
all where nobody looks at stderr.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown_progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A function to be told (what, done, total)."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("starting", total=1)

        def told(what: str, done: int, total: int) -> None:
            bar.update(row, description=what, completed=done, total=max(total, 1))

        yield told
