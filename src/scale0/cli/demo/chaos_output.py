"""How `scale0 chaos` looks: one live line while it runs, one screen at the end.

Lives here: text. Never here: what is counted. Invariant: progress goes to stderr and leaves nothing behind there, so
that stdout holds the summary alone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scale0.cli.common import output
from scale0.cli.network.listing import counted

if TYPE_CHECKING:
    from scale0.cli.demo.chaos_audit import ChaosReport, DurationStats

LINE_SECONDS: Final = 10.0
"""Between two lines about how far it is, where nobody watches."""
MAX_LINE_CHARS: Final = 300
"""Of an example: a summary is one screen."""

Show = Callable[[str, float], None]
"""What it is at, and how much of its time is over (0 to 1)."""


@contextlib.contextmanager
def progress(name: str = "chaos", per_second: float = 10.0) -> Iterator[Show]:
    """A bar on a terminal, drawn so often, else a line now and then, with the name of the command before it."""
    if not sys.stderr.isatty():
        yield _in_lines(name)
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


def _in_lines(name: str) -> Show:
    last = 0.0

    def show(text: str, _share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            output.note(f"{name}: {text}")

    return show


def summary(report: ChaosReport, seed: int, workers: int, seconds: float, folder: Path | None) -> None:
    """What was killed, what came of it, and whether that is as promised."""
    kills = ", ".join(f"{name} {count} x" for name, count in sorted(report.kills.items())) or "nobody"
    output.say(f"Seed {seed}: {counted(workers, 'worker')} and a broker, {seconds:.0f} s in all; killed: {kills}\n")
    output.facts(
        [
            ("accepted", f"{report.accepted} of {report.submitted} submitted"),
            ("finished", report.finished),
            ("failed, as they should", report.failed_as_expected),
            ("failed, and should not", report.failed),
            ("lost", report.lost),
            ("two results", report.duplicated),
            ("out of order", report.out_of_order),
            ("executions", f"{report.executions}; tasks beyond max_attempts: {report.beyond_max_attempts}"),
        ]
    )
    output.say()
    heads = ("SECONDS FROM A KILL", "KILLS", "P50", "P99", "MAX")
    rows = [
        ("worker: to the first new completion", *_cells(report.recovery["worker"])),
        ("broker: to the first new completion", *_cells(report.recovery["broker"])),
        ("worker: until its work was taken back", *_cells(report.recovery["taken_back"])),
    ]
    output.table(heads, rows, numbers=heads[1:])
    for crash in report.crashed:
        output.say(f"crashed: {crash}")
    for name, examples in report.examples.items():
        for example in examples:
            output.say(output.clean(f"{name}: {example}")[:MAX_LINE_CHARS])
    output.say()
    if report.kept:
        output.say(output.painted("Kept: no acknowledged task was lost, and none has two results.", "green"))
    else:
        output.say(output.painted(f"BROKEN; seed {seed} kills the same again.", "red"))
    if folder is not None:
        output.say(f"Data and logs are in {folder}.")


def _cells(times: DurationStats) -> tuple[str, ...]:
    return (str(times.kills), *("-" if one is None else f"{one:.2f}" for one in (times.p50, times.p99, times.max)))
