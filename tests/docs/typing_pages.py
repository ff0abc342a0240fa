"""A page is typed: its blocks in order, on machines of its own, and what is printed held against the page.

Lives here: how a block is typed. Never here: what may differ, or how a shell is run. Invariant: a command that only
looks is typed again until it shows what the page shows, for so long; every other command is typed once. What prints
nothing on the page must succeed, and may print what it likes.

    python -m tests.docs.typing_pages docs/tutorial.md     prints the page's transcripts as they are today
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs.blocks import Block, Page, read_page
from tests.docs.machines import REPOSITORY, Machines, Overdue, Shell, machines
from tests.docs.transcripts import INTERRUPT, Bound, Typed, typed

LOOK_SECONDS: Final = float(os.environ.get("LOOK_SECONDS", "45"))
STAY_SECONDS: Final = 90.0
"""Spark's own servers, on a machine that has other things to do."""
PAUSE: Final = 0.3


class Saw(NamedTuple):
    """What became of one command."""

    line: int
    command: str
    printed: list[str]
    why: str | None


def play(page: Page, at: Machines) -> Iterator[Saw]:
    """Type a page."""
    bound = Bound()
    if page.has_postgresql:
        at.serve_postgresql()
    for block in page.blocks:
        if block.said.file:
            _write(block, at, bound)
        elif block.lines[0] == INTERRUPT:
            yield _interrupt(block, at.shell(block.said.host, block.said.shells[0]), bound)
        elif any(line.startswith("$ ") for line in block.lines) and not (block.said.reason or block.said.parsed):
            for name in block.said.shells:
                yield from _play_block(block, at.shell(block.said.host, name), bound)


def _interrupt(block: Block, shell: Shell, bound: Bound) -> Saw:
    """A block that begins with ^C ends what stayed in that shell."""
    shell.interrupt()
    printed, _ = shell.wait()
    return Saw(block.line, INTERRUPT, printed, bound.difference(["…", *block.lines[1:]], printed))


def _write(block: Block, at: Machines, bound: Bound) -> None:
    path = at.home(block.said.host) / block.said.file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if block.said.appends else "w", encoding="utf-8") as out:
        out.write(bound.fill("\n".join(block.lines)) + "\n")


def _play_block(block: Block, shell: Shell, bound: Bound) -> Iterator[Saw]:
    commands = list(typed(block.lines, block.line))
    if block.said.in_source:
        shell.run(f"cd {REPOSITORY}")
    for one in commands:
        is_last = one is commands[-1]
        # Two shells that type one block have two sets of ids.
        ids = Bound() if len(block.said.shells) > 1 else bound
        try:
            if (block.said.stays and is_last) or INTERRUPT in one.shown:
                yield _stay(one, shell, ids)
            else:
                yield _type(one, shell, ids)
        except Overdue as printed:
            yield Saw(one.line, one.command, str(printed).splitlines(), "it does not end")
            return


def _type(one: Typed, shell: Shell, bound: Bound) -> Saw:
    deadline = time.monotonic() + LOOK_SECONDS
    while True:
        printed, status = shell.run(bound.fill(one.command))
        shown = list(one.shown)
        while shown and not shown[-1]:
            shown.pop()
        if shown:
            why = bound.difference(shown, printed)
        else:
            why = None if status == 0 else f"exit status {status}"
        if why is None or not one.looks or time.monotonic() > deadline:
            return Saw(one.line, one.command, printed, why)
        time.sleep(PAUSE)  # the page says what to wait for; a person would look again, too


def _stay(one: Typed, shell: Shell, bound: Bound) -> Saw:
    """Type a command that goes on; wait for what it prints, or end it where the page says ^C."""
    shown = list(one.shown)
    ends = INTERRUPT in shown
    first = shown[: shown.index(INTERRUPT)] if ends else shown
    why: list[str | None] = [None]

    def is_enough(lines: list[str]) -> bool:
        why[0] = bound.difference([*first, "…"], lines)
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
    return Saw(one.line, one.command, [*printed, INTERRUPT, *rest], bound.difference([*shown, "…"], rest))


def main() -> None:
    """Type a page for its author: each command with what it prints, and where the page differs."""
    page = read_page(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, machines(page.hosts, Path(folder)) as at:
        begun = time.monotonic()
        for saw in play(page, at):
            lines = [f"$ {saw.command}", *saw.printed]
            shown = "\n".join(f"    {line}".rstrip() for each in lines for line in each.split("\n"))
            why = f"*** {saw.why}\n" if saw.why else ""
            sys.stdout.write(f"\n--- line {saw.line}, {time.monotonic() - begun:.1f} s\n{shown}\n{why}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
