"""How `scale0 demo` looks: what happens and how the count goes on while it runs, and one screen at the end.

Lives here: text. Never here: what is counted, or whether it is right. Invariants: where nobody watches there are plain
lines and nothing moves; the last screen has at most 24 lines of 80 columns, but for a path that is longer.
"""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.cli.common import output

if TYPE_CHECKING:
    from scale0.cli.demo.counts import Totals

WIDTH: Final = 80
LINES: Final = 24
LINE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.1
LOOKS: Final = 3
"""At the count, between two at what is waited for: that may cost a request."""
CLEAR: Final = "\r\x1b[2K"


class Promise(NamedTuple):
    """What was promised, and what came of it."""

    text: str
    kept: bool


class Screen:
    """What a person sees while it runs."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._counted = 0.0
        self._live = False
        """A line that will be written over is there."""
        self._pause = threading.Event()
        self.count: Callable[[], str] | None = None
        """What is to be shown now and then."""
        self.line_seconds = LINE_SECONDS
        """Between two counts, where they are lines."""

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def chapter(self, text: str) -> None:
        """The next one."""
        self._clear()
        output.say()
        output.say(output.painted(f"== {text}", "cyan"))

    def event(self, text: str, colour: str = "") -> None:
        """Something happened."""
        self._clear()
        line = f"{self.seconds:5.1f} s  {text}"
        output.say(output.painted(line, colour) if colour else line)

    def plain(self, text: str) -> None:
        """What somebody else printed."""
        self._clear()
        output.say(output.clean(text.rstrip()))

    def look(self) -> None:
        """Show the count, if it is time."""
        now = time.monotonic()
        if self.count is None or (not output.on_terminal() and now - self._counted < self.line_seconds):
            return
        self._counted = now
        line = f"{self.seconds:5.1f} s    {self.count()}"
        if output.on_terminal():
            sys.stdout.write(f"{CLEAR}{line[: WIDTH - 1]}")
            sys.stdout.flush()
            self._live = True
        else:
            output.say(line)

    def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait, and show how the count goes on; False if it did not become true in time."""
        end = time.monotonic() + seconds
        while not true():
            for _ in range(LOOKS):
                if time.monotonic() >= end:
                    return False
                self.look()
                self._pause.wait(LOOK_SECONDS)
        return True

    def wait(self, seconds: float) -> None:
        """Let the work go on for so long."""
        self.until(lambda: False, seconds)

    def _clear(self) -> None:
        if self._live:
            sys.stdout.write(CLEAR)
            sys.stdout.flush()
            self._live = False


def counts(totals: Totals) -> str:
    """One line of how far it is."""
    return (
        f"calls {totals.answered:,} answered, {totals.failed} failed;"
        f" tasks {totals.accepted:,} accepted, {totals.finished:,} finished"
    )


def last_screen(
    promises: Sequence[Promise], notes: Sequence[str], seconds: tuple[float, float], page: str, logs: str
) -> list[str]:
    """All of it: the promises, what there is to know about the numbers, and where the rest is."""
    kept = sum(promise.kept for promise in promises)
    verdict = "every promise was kept" if kept == len(promises) else "A PROMISE WAS BROKEN"
    took = f"network {seconds[0]:.0f} s" + (f", Spark {seconds[1]:.0f} s" if seconds[1] else "")
    lines = [f"== Summary: {verdict} ({kept} of {len(promises)}; {took})", ""]
    for promise in promises:
        lines += _hung("kept    " if promise.kept else "BROKEN  ", promise.text)
    lines.append("")
    for note in notes:
        lines += _hung("", note)
    if page:
        lines.append(f"The report, with plots: {page}")
    lines.append("Nothing of it is left running." + (f" The logs: {logs}" if logs else ""))
    lines.append("Next: `scale0 up` starts a network of your own, and says what to type.")
    return lines


def _hung(mark: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False)


def show_last(lines: Sequence[str]) -> None:
    """In colour, where that is wanted."""
    output.say()
    for line in lines:
        colour = "green" if line.startswith("kept ") else "red" if "BROKEN" in line else ""
        output.say(output.painted(line, colour) if colour else line)
