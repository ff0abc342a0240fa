"""Planted bugs: each is found, by the promise that it breaks; without it the same runs keep every promise."""

# Promise: SIM-3
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import scale0
import simulator
from simulator.main import main
from simulator.promises import PROMISES

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


pytestmark = [pytest.mark.slow, pytest.mark.extended]

PACKAGE = Path(scale0.__file__).parent
SIMULATOR = Path(simulator.__file__).parent
PATCHES = [read_patch(path) for path in sorted((Path(__file__).parent / "planted").glob("*.patch"))]


RUNS = sorted({planted.seed for planted in PATCHES})


def found(planted: Planted, said: str) -> bool:
    """True if one of its promises is said to be broken."""
    return any(f"broke {promise}: " in said for promise in planted.promises)


def plant(planted: Planted, folder: Path) -> None:
    """The packages with the bug in them, below `folder`: only what a hunk changes is copied, the rest is linked."""
    for package in (PACKAGE, SIMULATOR):
        changed = {Path(hunk.file).parts[1] for hunk in planted.hunks if hunk.file.startswith(f"{package.name}/")}
        (folder / package.name).mkdir()
        for entry in package.iterdir():
            if entry.name in changed:  # but not bytecode that another process is just writing
                shutil.copytree(entry, folder / package.name / entry.name, ignore=shutil.ignore_patterns("*.pyc.*"))
            else:
                (folder / package.name / entry.name).symlink_to(entry)
    apply(planted, folder)


def simulate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The simulation of the package in `folder`."""
    command = [sys.executable, "-m", "simulator.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize("planted", PATCHES, ids=[planted.name for planted in PATCHES])
def test_a_planted_bug_is_found_by_its_promise(planted, tmp_path):
    plant(planted, tmp_path)
    result = simulate(tmp_path, *planted.seed)
    if not found(planted, result.stdout):  # the code has changed, and other seeds show it
        assert main(planted.run) == 0
        result = simulate(tmp_path, *planted.run)
    assert result.returncode == 1, f"nothing was found:\n{result.stdout}{result.stderr}"
    assert found(planted, result.stdout), result.stdout
    assert "python -m simulator.main --seed " in result.stdout


@pytest.mark.parametrize("run", RUNS, ids=[" ".join(run) for run in RUNS])
def test_the_same_runs_without_the_bug_keep_every_promise(run, capsys):
    assert main(run) == 0, capsys.readouterr().out


def test_the_seed_of_a_patch_has_the_kind_and_the_faults_of_its_run():
    run = ("--kind", "agents", "--first", "7", "--seeds", "3", "--minutes", "9", "--faults", "a,b")
    kept = ("--kind", "agents", "--faults", "a,b")
    assert one_seed(run, "8 --minutes 4") == (*kept, "--minutes", "4", "--first", "8", "--seeds", "1")
    assert one_seed(run, "") == (*kept, "--minutes", "9", "--first", "7", "--seeds", "1")


def test_every_patch_names_promises_that_exist():
    assert len(PATCHES) >= 8
    for planted in PATCHES:
        assert set(planted.promises) <= PROMISES.keys(), planted.name


def test_a_patch_out_of_date_says_what_it_looked_for(tmp_path):
    (tmp_path / "scale0").mkdir()
    path = tmp_path / "old.patch"
    path.write_text("Promise: lru\nRun: --seed 1\n\n--- a/scale0/x.py\n+++ b/scale0/x.py\n@@ -1,1 +1,1 @@\n-a\n+b\n")
    (tmp_path / "scale0" / "x.py").write_text("c\n")
    with pytest.raises(OutOfDate, match="these lines are not in"):
        apply(read_patch(path), tmp_path)
