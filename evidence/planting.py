"""Planted bugs: patches against production code, read, checked and applied to a copy of the package.

A patch begins with a sentence, then header lines, then a unified diff with as little context as it needs. The patches
of the simulator name one of its invariants and a run; those of this folder name a promise of docs/promises.md, the part
of the campaign that covers it, and the fault or attack.
"""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from evidence.processes import REPOSITORY

HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
HEADERS: Final = ("Promise: ", "Run: ", "Seed: ", "Part: ", "Only: ")
SIMULATION: Final = "simulation"
FOLDERS: Final = (REPOSITORY / "evidence" / "planted", REPOSITORY / "tests" / "simulator" / "planted")
PACKAGES: Final = {"scale0": REPOSITORY / "src" / "scale0", "simulator": REPOSITORY / "simulator"}


class Hunk(NamedTuple):
    """One place that changes."""

    file: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


class Planted(NamedTuple):
    """One patch and what it says of itself."""

    name: str
    what: str
    promises: tuple[str, ...]
    part: str
    only: str
    run: tuple[str, ...]
    """Arguments of the simulation: somewhere in these seeds it shows."""
    seed: tuple[str, ...]
    """The same for one of these seeds, which shows it soon: that one is tried first."""
    hunks: tuple[Hunk, ...]

    @property
    def is_production(self) -> bool:
        return all(hunk.file.startswith("scale0/") for hunk in self.hunks)


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

    lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith(HEADERS) and not at:
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
    run = tuple(header.get("Run", "").split())
    part, only = header.get("Part", SIMULATION), header.get("Only", "")
    seed = one_seed(run, header.get("Seed", "")) if part == SIMULATION else ()
    return Planted(path.stem, lines[0], promises, part, only, run, seed, tuple(hunks))


def read_all() -> list[Planted]:
    """Every patch against production code, those of this folder first."""
    every = [read_patch(path) for folder in FOLDERS for path in sorted(folder.glob("*.patch"))]
    return [planted for planted in every if planted.is_production]


def one_seed(run: tuple[str, ...], seed: str) -> tuple[str, ...]:
    """What `Seed: 3 --minutes 4` makes of a run: its kind and its faults, and nothing else of it."""
    given = dict(pairwise(run))
    number, *rest = seed.split() or [given.get("--first", "1"), "--minutes", given.get("--minutes", "6")]
    kept = [word for name in ("--kind", "--faults") if name in given for word in (name, given[name])]
    return (*kept, *rest, "--first", number, "--seeds", "1")


def places_of(hunk: Hunk, lines: list[str]) -> list[int]:
    """Where the old lines are."""
    size = len(hunk.old)
    return [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == hunk.old]


def apply(planted: Planted, folder: Path) -> None:
    """Change the files below `folder`, which are copies."""
    for hunk in planted.hunks:
        path = folder / hunk.file
        lines = path.read_text(encoding="utf-8").splitlines()
        places = places_of(hunk, lines)
        if not places:
            wanted = "\n".join(hunk.old)
            raise OutOfDate(f"{planted.name}.patch: these lines are not in {hunk.file}:\n{wanted}")
        place = min(places, key=lambda at: abs(at + 1 - hunk.line))
        lines[place : place + len(hunk.old)] = hunk.new
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()


def plant(planted: Planted, folder: Path) -> None:
    """The packages with the bug in them, below `folder`: only what a hunk changes is copied, the rest is linked."""
    for name, package in PACKAGES.items():
        changed = {Path(hunk.file).parts[1] for hunk in planted.hunks if hunk.file.startswith(f"{name}/")}
        (folder / name).mkdir()
        for entry in package.iterdir():
            if entry.name in changed:  # but not bytecode that another process is just writing
                shutil.copytree(entry, folder / name / entry.name, ignore=shutil.ignore_patterns("*.pyc*"))
            else:
                (folder / name / entry.name).symlink_to(entry)
    apply(planted, folder)
