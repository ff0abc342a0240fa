"""A page is typed: its blocks in order, on machines of its own, and what is printed is compared with the page.

A command that only reads is typed again until it shows what the page shows, for a limited time; every other command is
typed once. A command without output on the page must succeed, and may print anything. A command that ends with `&` is a
job of its shell: the page continues once it has printed what stands below it, and `kill %1` ends it.

    python -m tests.docs.typing_pages docs/tutorial.md     prints the page's transcripts as they are today
        --section TITLE     only what stands below that heading
        --here              as an ordinary user, on this machine as it is (scripts/bare-root)
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs.blocks import REPOSITORY, Block, Page, read_page
from tests.docs.machines import Machines, Overdue, Shell, machines, whole_lines
from tests.docs.transcripts import ANYTHING, INTERRUPT, Bound, Typed, typed

LOOK_SECONDS: Final = float(os.environ.get("LOOK_SECONDS", "45"))
STAY_SECONDS: Final = 90.0
"""Spark's own servers, on a machine that has other things to do."""
PAUSE: Final = 0.3


class Saw(NamedTuple):
    line: int
    command: str
    printed: Sequence[str]
    why: str | None


def play(page: Page, at: Machines) -> Iterator[Saw]:
    bound = Bound()
    for block in page.blocks:
        if block.directives.file:
            _write(block, at, bound)
        elif block.lines[0] == INTERRUPT:
            yield _interrupt(block, at.shell(block.directives.host, block.directives.shells[0]), bound)
        elif block.is_transcript and not block.is_left_out:
            for name in block.directives.shells:
                yield from _play_block(block, at.shell(block.directives.host, name), bound)


def check(page: Page, at: Machines) -> None:
    """Type a page; the first difference is an error."""
    for saw in play(page, at):
        assert saw.why is None, f"line {saw.line}: $ {saw.command}\n{saw.why}\n\n" + "\n".join(saw.printed)


def _interrupt(block: Block, shell: Shell, bound: Bound) -> Saw:
    """A block that begins with ^C ends what stayed in that shell."""
    shell.interrupt()
    printed, _ = shell.wait()
    return Saw(block.line, INTERRUPT, printed, bound.difference([ANYTHING, *block.lines[1:]], printed))


def _write(block: Block, at: Machines, bound: Bound) -> None:
    path = at.home(block.directives.host) / block.directives.file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if block.directives.appends else "w", encoding="utf-8") as out:
        out.write(bound.fill("\n".join(block.lines)) + "\n")


def _play_block(block: Block, shell: Shell, bound: Bound) -> Iterator[Saw]:
    commands = list(typed(block.lines, block.line))
    if block.directives.in_source:
        shell.run(f"cd {REPOSITORY}")
    for one in commands:
        # Two shells that type one block have two sets of ids.
        ids = Bound() if len(block.directives.shells) > 1 else bound
        try:
            if (block.directives.stays and one is commands[-1]) or INTERRUPT in one.shown:
                yield _stay(one, shell, ids)
            elif one.command.endswith(" &"):
                yield _start(one, shell, ids)
            else:
                yield _type(one, shell, ids, block.directives.again or LOOK_SECONDS * one.looks)
        except Overdue as printed:
            yield Saw(one.line, one.command, str(printed).splitlines(), "it does not end")
            return


def _type(one: Typed, shell: Shell, bound: Bound, seconds: float) -> Saw:
    deadline = time.monotonic() + seconds
    while True:
        printed, status = shell.run(bound.fill(one.command))
        if one.shown:
            why = bound.difference(one.shown, printed)
        else:
            why = None if status == 0 else f"exit status {status}"
        if why is None or time.monotonic() >= deadline:
            return Saw(one.line, one.command, printed, why)
        time.sleep(PAUSE)  # the page says what to wait for; a person would look again, too


def _start(one: Typed, shell: Shell, bound: Bound) -> Saw:
    """Type a command that ends with `&`, and wait for what it prints first."""
    deadline = time.monotonic() + STAY_SECONDS
    log = shell.start(bound.fill(one.command))
    while True:
        printed = whole_lines(log.read_bytes())
        why = bound.difference([*one.shown, ANYTHING], printed)
        if why is None or time.monotonic() >= deadline:
            return Saw(one.line, one.command, printed, why)
        time.sleep(PAUSE)


def _stay(one: Typed, shell: Shell, bound: Bound) -> Saw:
    """Type a command that goes on; wait for what it prints, or end it where the page says ^C."""
    shown = list(one.shown)
    ends = INTERRUPT in shown
    first = shown[: shown.index(INTERRUPT)] if ends else shown
    why: list[str | None] = [None]

    def is_enough(lines: list[str]) -> bool:
        why[0] = bound.difference([*first, ANYTHING], lines)
        return why[0] is None

    shell.type(bound.fill(one.command))
    try:
        printed = shell.read_until(is_enough, STAY_SECONDS)
    except Overdue as overdue:
        return Saw(one.line, one.command, str(overdue).splitlines(), why[0])
    shell.forget()
    if not ends:
        return Saw(one.line, one.command, printed, None)
    shell.interrupt()
    rest, _ = shell.wait()
    shown = shown[shown.index(INTERRUPT) + 1 :]
    return Saw(one.line, one.command, [*printed, INTERRUPT, *rest], bound.difference([*shown, ANYTHING], rest))


def main() -> int:
    """Type a page for its author: each command with what it prints, and where the page differs; 1 if it does."""
    words = argparse.ArgumentParser(prog="typing_pages", description="Type a page.")
    words.add_argument("page", type=Path)
    words.add_argument("--section", metavar="TITLE")
    words.add_argument("--here", action="store_true")
    chosen = words.parse_args()
    page = read_page(chosen.page.read_text(encoding="utf-8"))
    if chosen.section:
        page = page.section(chosen.section)
    if not (page.hosts and page.blocks):
        words.error("nothing there is typed: a page says `<!-- run: this page -->`, and blocks have lines with `$ `")
    begun, differ = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder, machines(page, Path(folder), here=chosen.here) as at:
        for saw in play(page, at):
            lines = [f"$ {saw.command}", *saw.printed]
            shown = "\n".join(f"    {line}".rstrip() for each in lines for line in each.split("\n"))
            why = f"*** {saw.why}\n" if saw.why else ""
            differ += [saw.line] if saw.why else []
            sys.stdout.write(f"\n--- line {saw.line}, {time.monotonic() - begun:.1f} s\n{shown}\n{why}")
            sys.stdout.flush()
    sys.stdout.write(f"\ndiffers: {differ or 'nothing'}\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
