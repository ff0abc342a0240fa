"""Planted bugs: each is found, by the promise that it breaks; without it the same runs keep every promise."""

# Promise: SIM-3
from __future__ import annotations

from pathlib import Path

import pytest

from evidence.planting import OutOfDate, Planted, apply, one_seed, plant, read_patch
from evidence.simulation import simulate
from simulator.main import main
from simulator.promises import PROMISES

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PATCHES = [read_patch(path) for path in sorted((Path(__file__).parent / "planted").glob("*.patch"))]


RUNS = sorted({planted.seed for planted in PATCHES})


def found(planted: Planted, said: str) -> bool:
    """True if one of its promises is said to be broken."""
    return any(f"broke {promise}: " in said for promise in planted.promises)


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
