"""`python -m simulator.main`: simulates whole networks under faults. `--seed N` reports one run; `--seeds COUNT` runs
many and prints each violation with the command that reproduces it. `--kind` selects networks of a broker and its
clients, agents with their Helens, or both for each seed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scale0.storage.task_rows import STATUS_NAMES
from simulator.monitoring.plan import FAULTS as AGENT_FAULTS
from simulator.monitoring.run import replay_agents, report_agents, simulate_agents
from simulator.network.faults import Faults
from simulator.network.task_records import TaskRecords
from simulator.network.world import World
from simulator.plan import FAULTS, MIN_MINUTES, make_plan
from simulator.promises import replay_command, verdict, violation_of

DEFAULT_MINUTES: Final = 6.0
PROGRESS_EVERY: Final = 10
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
    name, story = violation_of(world.begin, Faults(world).begin, world.run)
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
        ended=sum(record.notified is not None for record in records),
        messages=world.diary.messages,
    )
    return outcome, world


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def replay(outcome: Outcome, only: Sequence[str]) -> str:
    return replay_command(str(outcome.seed), outcome.minutes, only)


def report(outcome: Outcome, world: World, whole: bool, only: Sequence[str]) -> Iterator[str]:
    plan = world.plan
    if whole or outcome.broken:
        yield from world.diary.lines()
        yield ""
    yield f"seed {plan.seed}: {outcome.minutes:g} virtual minutes, {'calm' if plan.calm else 'under faults'}"
    slots = "+".join(map(str, plan.slots))
    yield f"  network   1 broker, {plan.backends} backends ({slots} slots), {plan.frontends} frontends"
    yield f"            heartbeats every {plan.interval:g} s, {plan.liveness} missed are death"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(world.fault_counts.items()))
    yield f"  faults    {counts or 'none'}; the broker lived {world.broker.lives} times"
    ends = ", ".join(f"{code}: {count}" for code, count in sorted(world.calls.outcomes.items()))
    yield f"  calls     {outcome.calls}, answered {outcome.answered} ({ends})"
    if world.tasks is not None:
        yield from report_tasks(world.tasks.records)
    managed = ", ".join(f"{what}: {count}" for what, count in sorted(world.check.acknowledged.items()))
    yield f"  changes   {managed or 'none'}"
    yield f"  messages  {outcome.messages}, check sum {outcome.check_sum:08x}"
    yield from verdict(outcome.broken, outcome.story, world.agenda.now, replay(outcome, only))


def report_tasks(records: TaskRecords) -> Iterator[str]:
    every = records.by_nonce.values()
    accepted = sum(record.accepted is not None for record in every)
    runs = sum(len(record.executions) for record in every)
    ends: dict[str, int] = {}
    for record in every:
        if record.notified is not None:
            name = STATUS_NAMES[record.notified[0]]
            ends[name] = ends.get(name, 0) + 1
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(ends.items()))
    yield f"  tasks     {len(every)}, acknowledged {accepted}, executions {runs}; notified of their end: {counts}"
    void, unknown = sum(record.void for record in every), sum(record.unknown for record in every)
    refused = sum(record.refused is not None for record in every)
    yield f"            refused {refused}, unknown {unknown}, lost with a disk {void}"


def summary(totals: Counter[str]) -> str:
    calls = f"{totals['answered']} of {totals['calls']} calls answered"
    return f"{calls}, {totals['tasks']} tasks acknowledged, {totals['ended']} with a known end"


def summary_of_agents(totals: Counter[str]) -> str:
    results = f"{totals['recorded']} of {totals['results']} results recorded"
    return f"{results}, {totals['answered']} of {totals['asked']} checks answered"


class Kind(NamedTuple):
    """A kind of world."""

    suffix: str
    faults: tuple[str, ...]
    simulate: Callable[[int, float, bool, Sequence[str]], tuple[Any, Any]]
    report: Callable[[Any, Any, bool, Sequence[str]], Iterator[str]]
    replay: Callable[[Any, Sequence[str]], str]
    summary: Callable[[Counter[str]], str]


KINDS: Final = {
    "networks": Kind("", FAULTS, simulate, report, replay, summary),
    "agents": Kind(" of agents", AGENT_FAULTS, simulate_agents, report_agents, replay_agents, summary_of_agents),
}


def run_many(kind: Kind, first: int, count: int, minutes: float, only: Sequence[str], stop: bool) -> int:
    """Runs many seeds; returns how many violated an invariant."""
    failures = 0
    totals: Counter[str] = Counter()
    for done, seed in enumerate(range(first, first + count), start=1):
        outcome, _ = kind.simulate(seed, minutes, False, only)
        totals.update({name: value for name, value in msgspec.structs.asdict(outcome).items() if type(value) is int})
        if outcome.broken:
            failures += 1
            write_line(f"seed {seed}{kind.suffix} broke {outcome.broken}: {outcome.story.strip().splitlines()[-1]}")
            write_line(f"    {kind.replay(outcome, only)}")
            if stop:
                break
        if done % PROGRESS_EVERY == 0 or done == count:
            write_line(f"{done} of {count} seeds{kind.suffix}, {failures} broken; {kind.summary(totals)}")
    return failures


def run_one(kind: Kind, seed: int, minutes: float, trace: bool, only: Sequence[str]) -> bool:
    """Runs and reports one seed; returns True if all invariants held."""
    outcome, world = kind.simulate(seed, minutes, trace, only)
    for line in kind.report(outcome, world, trace, only):
        write_line(line)
    return not outcome.broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m simulator.main", description="Simulate networks under faults.")
    parser.add_argument("--seed", type=int, help="run this seed, and report what happened")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every message")
    parser.add_argument("--seeds", type=int, help="run this many seeds, and report violations")
    parser.add_argument("--first", type=int, default=1, help="the first of --seeds (1)")
    parser.add_argument("--stop", action="store_true", help="with --seeds: stop at the first broken promise")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="virtual minutes of each run (6)")
    parser.add_argument("--faults", default="", help="only these, by name, separated by commas")
    parser.add_argument("--kind", choices=(*KINDS, ALL_KINDS), default="networks", help="which worlds (networks)")
    given = parser.parse_args(arguments)
    if (given.seed is None) == (given.seeds is None):
        parser.error("either --seed N or --seeds COUNT is required")
    if not given.minutes >= MIN_MINUTES:
        parser.error(f"--minutes is at least {MIN_MINUTES:g}: healing alone takes most of that")
    kinds = tuple(KINDS) if given.kind == ALL_KINDS else (given.kind,)
    faults = tuple(name for name in given.faults.split(",") if name)
    for kind in kinds:
        for name in faults:
            if name not in KINDS[kind].faults:
                parser.error(f"no fault of {kind} is called {name}: there are {', '.join(KINDS[kind].faults)}")
    if given.seed is not None:
        kept = [run_one(KINDS[kind], given.seed, given.minutes, given.trace, faults) for kind in kinds]
        return 0 if all(kept) else 1
    failures = [run_many(KINDS[kind], given.first, given.seeds, given.minutes, faults, given.stop) for kind in kinds]
    return 1 if any(failures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
