"""`python -m simulator.main`: simulates whole networks under faults. `--seed N` reports one run; `--seeds COUNT` runs
many and prints each violation with the command that reproduces it. `--kind` selects networks of a broker and its
clients, agents with their Helens, or both for each seed."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from scale0.storage.task_rows import STATUS_NAMES
from simulator.monitoring import plan as agent_plan
from simulator.monitoring.run import replay_agents, simulate_agents, told_agents
from simulator.network.faults import Faults
from simulator.network.task_records import TaskRecords
from simulator.network.world import World
from simulator.plan import FAULTS, MIN_MINUTES, make_plan
from simulator.promises import PROMISES, PromiseBroken

DEFAULT_MINUTES: Final = 6.0
PROGRESS_EVERY: Final = 10
KINDS: Final = {"networks": FAULTS, "agents": agent_plan.FAULTS}
"""The kinds of worlds, and the faults of each."""
ALL_KINDS: Final = "all"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    minutes: float
    broken: str
    """The name of the violated invariant; empty: none."""
    story: str
    check_sum: int
    calls: int
    answered: int
    tasks: int
    """Submitted and acknowledged."""
    ended: int
    messages: int


def simulate(
    seed: int, minutes: float = DEFAULT_MINUTES, keep_all: bool = False, only: Sequence[str] = ()
) -> tuple[Outcome, World]:
    """Runs one seed to its end, or to the first violation."""
    world = World(make_plan(seed, minutes, only), keep_all)
    name = story = ""
    try:
        world.begin()
        Faults(world).begin()
        world.run()
    except PromiseBroken as failure:
        name, story = failure.name, failure.story
    except Exception:
        name, story = "no-exception", traceback.format_exc()
    calls = world.calls.by_nonce.values()
    records = world.tasks.records.by_nonce.values() if world.tasks is not None else ()
    outcome = Outcome(
        seed=seed,
        minutes=world.plan.seconds / 60,
        broken=name,
        story=story,
        check_sum=world.diary.check_sum,
        calls=len(calls),
        answered=sum(call.answered for call in calls),
        tasks=sum(record.accepted is not None for record in records),
        ended=sum(record.told is not None for record in records),
        messages=world.diary.messages,
    )
    return outcome, world


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def replay(outcome: Outcome, only: Sequence[str]) -> str:
    """Returns the command that reproduces a run."""
    faults = f" --faults {','.join(only)}" if only else ""
    return f"python -m simulator.main --seed {outcome.seed} --minutes {outcome.minutes:g}{faults} --trace"


def tell(outcome: Outcome, world: World, whole: bool, only: Sequence[str]) -> None:
    plan = world.plan
    if whole or outcome.broken:
        for line in world.diary.lines():
            say(line)
        say("")
    say(f"seed {plan.seed}: {outcome.minutes:g} virtual minutes, {'calm' if plan.calm else 'under faults'}")
    slots = "+".join(map(str, plan.slots))
    say(f"  network   1 broker, {plan.backends} backends ({slots} slots), {plan.frontends} frontends")
    say(f"            heartbeats every {plan.interval:g} s, {plan.liveness} missed are death")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(world.fault_counts.items()))
    say(f"  faults    {counts or 'none'}; the broker lived {world.broker.lives} times")
    ends = ", ".join(f"{code}: {count}" for code, count in sorted(world.calls.outcomes.items()))
    say(f"  calls     {outcome.calls}, answered {outcome.answered} ({ends})")
    if world.tasks is not None:
        for line in told_tasks(world.tasks.records):
            say(line)
    managed = ", ".join(f"{what}: {count}" for what, count in sorted(world.check.acknowledged.items()))
    say(f"  changes   {managed or 'none'}")
    say(f"  messages  {outcome.messages}, check sum {outcome.check_sum:08x}")
    if outcome.broken:
        say(f"  BROKEN    at {world.agenda.now:.6f}: {outcome.broken}: {outcome.story}")
        say(f"            ({PROMISES[outcome.broken]})")
        say(f"            {replay(outcome, only)}")
    else:
        say(f"  kept      all {len(PROMISES)} promises")


def told_tasks(records: TaskRecords) -> Iterator[str]:
    every = records.by_nonce.values()
    accepted = sum(record.accepted is not None for record in every)
    runs = sum(len(record.executions) for record in every)
    ends: dict[str, int] = {}
    for record in every:
        if record.told is not None:
            name = STATUS_NAMES[record.told[0]]
            ends[name] = ends.get(name, 0) + 1
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(ends.items()))
    yield f"  tasks     {len(every)}, acknowledged {accepted}, executions {runs}; told of their end: {counts}"
    void, unknown = sum(record.void for record in every), sum(record.unknown for record in every)
    refused = sum(record.refused is not None for record in every)
    yield f"            refused {refused}, unknown {unknown}, lost with a disk {void}"


def run_many(first: int, count: int, minutes: float, only: Sequence[str], stop: bool) -> int:
    """Runs many seeds; returns how many violated an invariant."""
    failures = calls = answered = tasks = ended = 0
    for done, seed in enumerate(range(first, first + count), start=1):
        outcome, _ = simulate(seed, minutes, only=only)
        calls, answered = calls + outcome.calls, answered + outcome.answered
        tasks, ended = tasks + outcome.tasks, ended + outcome.ended
        if outcome.broken:
            failures += 1
            say(f"seed {seed} broke {outcome.broken}: {outcome.story.strip().splitlines()[-1]}")
            say(f"    {replay(outcome, only)}")
            if stop:
                break
        if done % PROGRESS_EVERY == 0 or done == count:
            known = f"{answered} of {calls} calls answered, {tasks} tasks acknowledged, {ended} heard of to the end"
            say(f"{done} of {count} seeds, {failures} broken; {known}")
    return failures


def run_many_agents(first: int, count: int, minutes: float, only: Sequence[str], stop: bool) -> int:
    failures = results = recorded = asked = answered = 0
    for done, seed in enumerate(range(first, first + count), start=1):
        outcome, _ = simulate_agents(seed, minutes, only=only)
        results, recorded = results + outcome.results, recorded + outcome.recorded
        asked, answered = asked + outcome.asked, answered + outcome.answered
        if outcome.broken:
            failures += 1
            say(f"seed {seed} of agents broke {outcome.broken}: {outcome.story.strip().splitlines()[-1]}")
            say(f"    {replay_agents(outcome, only)}")
            if stop:
                break
        if done % PROGRESS_EVERY == 0 or done == count:
            known = f"{recorded} of {results} results recorded, {answered} of {asked} checks answered"
            say(f"{done} of {count} seeds of agents, {failures} broken; {known}")
    return failures


def run_one(kind: str, seed: int, minutes: float, trace: bool, only: Sequence[str]) -> bool:
    """Runs and reports one seed; returns True if all invariants held."""
    if kind == "agents":
        agents, fleet = simulate_agents(seed, minutes, trace, only)
        for line in told_agents(agents, fleet, trace, only):
            say(line)
        return not agents.broken
    outcome, world = simulate(seed, minutes, trace, only)
    tell(outcome, world, trace, only)
    return not outcome.broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m simulator.main", description="Simulate networks under faults.")
    parser.add_argument("--seed", type=int, help="run this one, and tell what happened")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell all of it")
    parser.add_argument("--seeds", type=int, help="run so many, and tell what broke")
    parser.add_argument("--first", type=int, default=1, help="the first of --seeds (1)")
    parser.add_argument("--stop", action="store_true", help="with --seeds: stop at the first broken promise")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="virtual minutes of each run (6)")
    parser.add_argument("--faults", default="", help="only these, by name, separated by commas")
    parser.add_argument("--kind", choices=(*KINDS, ALL_KINDS), default="networks", help="which worlds (networks)")
    given = parser.parse_args(arguments)
    if (given.seed is None) == (given.seeds is None):
        parser.error("say --seed N or --seeds COUNT")
    if not given.minutes >= MIN_MINUTES:
        parser.error(f"--minutes is at least {MIN_MINUTES:g}: healing alone takes most of that")
    kinds = tuple(KINDS) if given.kind == ALL_KINDS else (given.kind,)
    faults = tuple(name for name in given.faults.split(",") if name)
    for kind in kinds:
        for name in faults:
            if name not in KINDS[kind]:
                parser.error(f"no fault of {kind} is called {name}: there are {', '.join(KINDS[kind])}")
    if given.seed is not None:
        kept = [run_one(kind, given.seed, given.minutes, given.trace, faults) for kind in kinds]
        return 0 if all(kept) else 1
    many = {"networks": run_many, "agents": run_many_agents}
    failures = [many[kind](given.first, given.seeds, given.minutes, faults, given.stop) for kind in kinds]
    return 1 if any(failures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
