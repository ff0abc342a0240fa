"""One seed is one run: the same in every process, whatever the hashes of strings; and no clock or socket is near."""

# Promise: SIM-2
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.main import main, simulate
from simulator.plan import FAULTS, make_plan

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PROGRAM = """
import sys
from simulator.main import simulate
for seed in map(int, sys.argv[1:]):
    outcome, world = simulate(seed, minutes=4)
    print(seed, outcome.check_sum, outcome.messages, outcome.answered, outcome.broken, repr(world.rng.random()))
print(sorted(name for name in sys.modules if name.split(".")[0] == "zmq"))
"""


def tell(hash_seed: str, *seeds: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, *map(str, seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout.splitlines()


def test_a_seed_is_the_same_run_in_every_process_and_needs_no_sockets():
    seeds = (7, 1, 4, 12, 19, 7)  # one of them twice in a process
    one, other = tell("1", *seeds), tell("4242", *seeds)
    assert one == other
    assert one[0] == one[-2]
    assert len({line.split()[1] for line in one[:-1]}) == len(seeds) - 1, "other seeds are other runs"
    assert one[-1] == "[]"


def test_every_fault_is_in_some_of_two_hundred_plans():
    seen = {fault for seed in range(1, 201) for fault in make_plan(seed, 10).faults}
    assert seen == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_can_be_had_alone(fault):
    outcome, world = simulate(5, minutes=4, only=(fault,))
    assert outcome.broken == "", outcome.story
    assert world.fault_counts[fault]


def test_the_command_tells_one_run(capsys):
    assert main(["--seed", "10", "--minutes", "4", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "backend-0 -> broker  b'READY'" in said
    assert "seed 10: 4 virtual minutes, calm" in said
    assert "check sum" in said
    assert "kept      all" in said


def test_the_command_runs_many(capsys):
    assert main(["--seeds", "2", "--first", "10", "--minutes", "4"]) == 0
    assert "2 of 2 seeds, 0 broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["--seed", "1", "--seeds", "2"], ["--seed", "1", "--minutes", "1"], ["--seed", "1", "--faults", "x"]],
)
def test_wrong_usage_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refusal:
        main(arguments)
    assert refusal.value.code == 2
    assert "error" in capsys.readouterr().err
