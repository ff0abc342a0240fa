"""Unified diffs, applied to a copy of the package.

Lives here: just enough of `patch` for `planted/*.patch`. A hunk goes where its old lines stand, nearest to where it
says; if they stand nowhere, the patch is out of date, and the error shows what was looked for.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


class Planted(NamedTuple):
    """One patch and what it says of itself."""

    name: str
    promises: tuple[str, ...]
    run: tuple[str, ...]
    """Arguments of the simulation: somewhere in these seeds it shows."""
    seed: tuple[str, ...]
    """The same for one of these seeds, which shows it soon: that one is tried first."""
    hunks: tuple[Hunk, ...]


class Hunk(NamedTuple):
    """One place that changes."""

    file: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


class OutOfDate(Exception):
    """The code that a patch wants to change is not there."""


def read_patch(path: Path) -> Planted:
    """A patch with its header."""
    header: dict[str, str] = {}
    hunks: list[Hunk] = []
    file = ""
    old: list[str] = []
    new: list[str] = []
    at = 0

    def close() -> None:
        if old or new:
            hunks.append(Hunk(file, at, tuple(old), tuple(new)))
        old.clear()
        new.clear()

    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(("Promise: ", "Run: ", "Seed: ")):
            key, _, value = line.partition(": ")
            header[key] = value
        elif line.startswith(("--- ", "+++ ")):
            close()
            file = line[4:].partition("/")[2]
            at = 0
        elif match := HUNK.match(line):
            close()
            at = int(match[1])
        elif at:
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
    close()
    promises = tuple(name.strip() for name in header["Promise"].split(","))
    run = tuple(header["Run"].split())
    return Planted(path.stem, promises, run, one_seed(run, header.get("Seed", "")), tuple(hunks))


def one_seed(run: tuple[str, ...], seed: str) -> tuple[str, ...]:
    """What `Seed: 3 --minutes 4` makes of a run: its kind and its faults, and nothing else of it."""
    given = dict(pairwise(run))
    number, *rest = seed.split() or [given.get("--first", "1"), "--minutes", given.get("--minutes", "6")]
    kept = [word for name in ("--kind", "--faults") if name in given for word in (name, given[name])]
    return (*kept, *rest, "--first", number, "--seeds", "1")


def apply(planted: Planted, folder: Path) -> None:
    """Change the files below `folder`, which are copies."""
    for hunk in planted.hunks:
        path = folder / hunk.file
        lines = path.read_text(encoding="utf-8").splitlines()
        size = len(hunk.old)
        places = [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == hunk.old]
        if not places:
            wanted = "\n".join(hunk.old)
            raise OutOfDate(f"{planted.name}.patch: these lines are not in {hunk.file}:\n{wanted}")
        place = min(places, key=lambda at: abs(at + 1 - hunk.line))
        lines[place : place + size] = hunk.new
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
