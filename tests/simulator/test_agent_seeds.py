"""Fleets of agents and their Helens under faults: every promise is kept in every seed; `make sim` tries more."""

# Promise: SIM-1, SIM-2
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.main import main
from simulator.monitoring.plan import FAULTS, make_agent_plan
from simulator.monitoring.run import replay_agents, simulate_agents

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SEEDS = 40
CHUNK = 10
MINUTES = 4.0

PROGRAM = """
import sys
from simulator.monitoring.run import simulate_agents
for seed in map(int, sys.argv[1:]):
    outcome, world = simulate_agents(seed, 4)
    print(seed, outcome.check_sum, outcome.messages, outcome.recorded, outcome.broken, repr(world.rng.random()))
print(sorted(name for name in sys.modules if name.split(".")[0] in ("zmq", "ssl", "asyncio")))
"""


def tell(hash_seed: str, *seeds: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, *map(str, seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_every_promise_is_kept(first):
    broken, faults, changes = [], 0, 0
    for seed in range(first, first + CHUNK):
        outcome, world = simulate_agents(seed, MINUTES)
        faults += sum(world.fault_counts.values())
        changes += world.check.counts["state changes"]
        if outcome.broken:
            broken.append(f"seed {seed} broke {outcome.broken}: {outcome.story}\n    {replay_agents(outcome, ())}")
    assert not broken, "\n".join(broken)
    assert faults
    assert changes


@pytest.mark.parametrize("seed", [10, 20])
def test_in_calm_every_result_is_recorded_and_every_check_answered(seed):
    outcome, world = simulate_agents(seed, MINUTES)
    assert outcome.broken == "", outcome.story
    assert world.plan.calm
    assert outcome.results > 100
    assert outcome.recorded == outcome.results
    assert not world.check.exempt
    assert world.check.recorded_twice == 0
    assert outcome.answered > 20


def test_a_whole_fleet_comes_back_after_each_restart():
    outcome, world = simulate_agents(3, 6.0)
    assert outcome.broken == "", outcome.story
    assert world.plan.storm
    assert world.plan.agents >= 24
    assert sum(node.lives for node in world.helens) > world.plan.helens


def test_a_seed_is_the_same_run_in_every_process_and_needs_no_sockets():
    one, other = tell("1", 1, 2, 6), tell("4242", 1, 2, 6)
    assert one == other
    assert one[-1] == "[]"


def test_every_fault_is_in_some_of_two_hundred_plans():
    seen = {fault for seed in range(1, 201) for fault in make_agent_plan(seed, 10).faults}
    assert seen == set(FAULTS)


def test_plans_differ_in_what_matters():
    plans = [make_agent_plan(seed, 6) for seed in range(1, 61)]
    assert {plan.helens for plan in plans} == {1, 2}
    assert {plan.old_agents for plan in plans} == {0, 1, 2}
    assert any(plan.max_agents[0] < plan.agents for plan in plans)
    assert any(plan.spool_records < 100 for plan in plans)
    assert any(check.depends_on for plan in plans for check in plan.checks)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_can_be_had_alone(fault):
    outcome, world = simulate_agents(5, MINUTES, only=(fault,))
    assert outcome.broken == "", outcome.story
    assert world.fault_counts[fault]


def test_the_command_tells_one_run_of_each_kind(capsys):
    assert main(["--kind", "all", "--seed", "10", "--minutes", "4"]) == 0
    said = capsys.readouterr().out
    assert "agents, seed 10: 4 virtual minutes, calm" in said
    assert "\nseed 10: 4 virtual minutes, calm" in "\n" + said
    assert said.count("kept      all") == 2


def test_the_command_runs_many_and_tells_all_of_one(capsys):
    assert main(["--kind", "agents", "--seeds", "2", "--first", "10", "--minutes", "4"]) == 0
    assert "2 of 2 seeds of agents, 0 broken" in capsys.readouterr().out
    assert main(["--kind", "agents", "--seed", "10", "--minutes", "4", "--trace"]) == 0
    assert "agent-0 -> helen-" in capsys.readouterr().out


def test_a_fault_of_another_kind_is_refused(capsys):
    for arguments in (["--kind", "agents", "--faults", "split"], ["--kind", "all", "--faults", "agent_killed"]):
        with pytest.raises(SystemExit) as refusal:
            main([*arguments, "--seed", "1"])
        assert refusal.value.code == 2
        assert "there are" in capsys.readouterr().err
