"""The output of `scale0 demo`: events and counters while it runs, and one screen at the end.

Without a terminal the output is plain lines. The last screen has at most 24 lines of 80 columns, except for paths that
are longer.
"""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from scale0.cli.common import output

if TYPE_CHECKING:
    from scale0.cli.demo.promises import Promise

WIDTH: Final = 80
LINE_SECONDS: Final = 2.0
REFRESH_SECONDS: Final = 0.1
REFRESHES: Final = 3
"""Of the counters between two evaluations of a condition, which may cost a request."""
CLEAR: Final = "\r\x1b[2K"


class Screen:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._counted = 0.0
        self._has_live_line = False
        self._pause = threading.Event()
        self.count: Callable[[], str] | None = None
        """The text of the counters."""
        self.line_seconds = LINE_SECONDS
        """Between two lines of counters, without a terminal."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def section(self, text: str) -> None:
        self._clear()
        output.say()
        output.say(output.painted(f"== {text}", "cyan"))

    def event(self, text: str, colour: str = "") -> None:
        self._clear()
        line = f"{self.seconds:5.1f} s  {text}"
        output.say(output.painted(line, colour) if colour else line)

    def plain(self, text: str) -> None:
        """Output of another command or of a service."""
        self._clear()
        output.say(output.clean(text.rstrip()))

    def refresh(self) -> None:
        now = time.monotonic()
        if self.count is None or (not output.on_terminal() and now - self._counted < self.line_seconds):
            return
        self._counted = now
        line = f"{self.seconds:5.1f} s    {self.count()}"
        if output.on_terminal():
            sys.stdout.write(f"{CLEAR}{line[: WIDTH - 1]}")
            sys.stdout.flush()
            self._has_live_line = True
        else:
            output.say(line)

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition while the counters go on; False if it did not become true in time."""
        end = time.monotonic() + seconds
        while not condition():
            for _ in range(REFRESHES):
                if time.monotonic() >= end:
                    return False
                self.refresh()
                self._pause.wait(REFRESH_SECONDS)
        return True

    def wait(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def _clear(self) -> None:
        if self._has_live_line:
            sys.stdout.write(CLEAR)
            sys.stdout.flush()
            self._has_live_line = False


def last_screen(
    promises: Sequence[Promise], notes: Sequence[str], seconds: tuple[float, float], page: str, logs: str
) -> list[str]:
    """The lines of the last screen: promises, notes about the numbers, and where the files are."""
    kept = sum(promise.kept for promise in promises)
    verdict = "every promise was kept" if kept == len(promises) else "A PROMISE WAS BROKEN"
    took = f"network {seconds[0]:.0f} s" + (f", Spark {seconds[1]:.0f} s" if seconds[1] else "")
    lines = [f"== Summary: {verdict} ({kept} of {len(promises)}; {took})", ""]
    for promise in promises:
        lines += _wrapped("kept    " if promise.kept else "BROKEN  ", promise.text)
    lines.append("")
    for note in notes:
        lines += _wrapped("", note)
    if page:
        lines.append(f"The report, with plots: {page}")
    lines.append("No process is left running." + (f" The logs: {logs}" if logs else ""))
    lines.append("Next: `scale0 up` starts a network of your own and lists commands to try.")
    return lines


def _wrapped(mark: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False)


def show_last(lines: Sequence[str]) -> None:
    output.say()
    for line in lines:
        colour = "green" if line.startswith("kept ") else "red" if "BROKEN" in line else ""
        output.say(output.painted(line, colour) if colour else line)
