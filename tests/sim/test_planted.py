"""Planted bugs: each is found, by the promise that it breaks; without it the same runs keep every promise."""

# Promise: SIM-3
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scale0
from scale0.testing.promises import PROMISES
from tests.sim.patches import OutOfDate, Planted, apply, read_patch

pytestmark = pytest.mark.slow

PACKAGE = Path(scale0.__file__).parent
PATCHES = [read_patch(path) for path in sorted((Path(__file__).parent / "planted").glob("*.patch"))]


def runs() -> list[tuple[str, ...]]:
    """What the patches run, but for runs that are the beginning of another one."""
    most: dict[tuple[str, ...], int] = {}
    for run in {planted.run for planted in PATCHES}:
        at = run.index("--seeds") + 1
        rest = (*run[: at - 1], *run[at + 1 :])
        most[rest] = max(most.get(rest, 0), int(run[at]))
    return sorted((*rest, "--seeds", str(count)) for rest, count in most.items())


RUNS = runs()


def found(planted: Planted, said: str) -> bool:
    """True if one of its promises is said to be broken."""
    return any(f"broke {promise}: " in said for promise in planted.promises)


def simulate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The simulation of the package in `folder`."""
    command = [sys.executable, "-m", "scale0.testing.sim", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize("planted", PATCHES, ids=[planted.name for planted in PATCHES])
def test_a_planted_bug_is_found_by_its_promise(planted, tmp_path):
    # Bytecode too, so that only what changes is compiled anew; but not what somebody is just writing.
    shutil.copytree(PACKAGE, tmp_path / "scale0", ignore=shutil.ignore_patterns("*.pyc.*"))
    apply(planted, tmp_path)
    result = simulate(tmp_path, *planted.run, "--stop")
    if not found(planted, result.stdout):  # perhaps it broke something else first
        result = simulate(tmp_path, *planted.run)
    assert result.returncode == 1, f"nothing was found:\n{result.stdout}{result.stderr}"
    assert found(planted, result.stdout), result.stdout
    assert "python -m scale0.testing.sim --seed " in result.stdout


@pytest.mark.parametrize("run", RUNS, ids=[" ".join(run) for run in RUNS])
def test_the_same_runs_without_the_bug_keep_every_promise(run):
    result = simulate(PACKAGE.parent, *run)
    assert result.returncode == 0, result.stdout + result.stderr


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
