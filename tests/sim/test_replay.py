"""One seed is one run: the same in every process, whatever the hashes of strings; and no clock or socket is near."""

# Promise: SIM-2
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scale0.testing.plan import FAULTS, make_plan
from scale0.testing.sim import main, simulate

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from scale0.testing.sim import simulate
for seed in map(int, sys.argv[1:]):
    outcome, world = simulate(seed, minutes=4)
    print(seed, outcome.check_sum, outcome.messages, outcome.answered, outcome.broken, repr(world.chance.random()))
print(sorted(name for name in sys.modules if name.split(".")[0] == "zmq"))
"""


def tell(hash_seed: str, *seeds: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, *map(str, seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout.splitlines()


def test_a_seed_is_the_same_run_in_every_process():
    seeds = (1, 4, 7, 12, 19)
    one, other = tell("1", *seeds), tell("4242", *seeds)
    assert one == other
    assert len(one) == len(seeds) + 1


def test_the_simulated_world_needs_no_sockets():
    assert tell("0", 10)[-1] == "[]"


def test_a_seed_is_the_same_run_twice_in_one_process():
    one, _ = simulate(7, minutes=4)
    other, _ = simulate(7, minutes=4)
    assert one == other


def test_other_seeds_are_other_runs():
    sums = {simulate(seed, minutes=4)[0].check_sum for seed in (1, 2, 3)}
    assert len(sums) == 3


def test_every_fault_is_in_some_of_two_hundred_plans():
    seen = {fault for seed in range(1, 201) for fault in make_plan(seed, 10).faults}
    assert seen == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_can_be_had_alone(fault):
    outcome, world = simulate(5, minutes=4, only=(fault,))
    assert outcome.broken == "", outcome.story
    assert world.fault_counts[fault]


def test_the_command_tells_one_run(capsys):
    assert main(["--seed", "10", "--minutes", "4"]) == 0
    said = capsys.readouterr().out
    assert "seed 10: 4 virtual minutes, calm" in said
    assert "check sum" in said
    assert "kept      all" in said


def test_the_command_tells_all_of_it(capsys):
    assert main(["--seed", "10", "--minutes", "4", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "backend-0 -> broker  b'READY'" in said


def test_the_command_runs_many(capsys):
    assert main(["--seeds", "3", "--first", "10", "--minutes", "4"]) == 0
    assert "3 of 3 seeds, 0 broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["--seed", "1", "--seeds", "2"], ["--seed", "1", "--minutes", "1"], ["--seed", "1", "--faults", "x"]],
)
def test_wrong_usage_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refusal:
        main(arguments)
    assert refusal.value.code == 2
    assert "error" in capsys.readouterr().err
