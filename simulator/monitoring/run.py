"""One run of simulated Helens and agents, to its end or to the first broken promise, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from scale0.kernel import codes
from simulator.monitoring.faults import AgentFaults
from simulator.monitoring.plan import make_agent_plan
from simulator.monitoring.world import AgentWorld
from simulator.promises import replay_command, verdict, violation_of


class AgentOutcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    minutes: float
    broken: str
    """The name of the broken promise; empty: none."""
    story: str
    check_sum: int
    results: int
    """Scheduled results that agents spooled."""
    recorded: int
    """Of these, the results in the journal of a Helen."""
    asked: int
    answered: int
    messages: int


def simulate_agents(
    seed: int, minutes: float, keep_all: bool = False, only: Sequence[str] = ()
) -> tuple[AgentOutcome, AgentWorld]:
    """Run a seed to its end, or to the first broken promise."""
    world = AgentWorld(make_agent_plan(seed, minutes, only), keep_all)
    name, story = violation_of(world.begin, AgentFaults(world).begin, world.run)
    questions = world.network.questions.values()
    outcome = AgentOutcome(
        seed=seed,
        minutes=world.plan.seconds / 60,
        broken=name,
        story=story,
        check_sum=world.diary.check_sum,
        results=len(world.check.results),
        recorded=len(set().union(*world.check.recorded.values())),
        asked=len(questions),
        answered=sum(question.code == codes.OK for question in questions),
        messages=world.diary.messages,
    )
    return outcome, world


def replay_agents(outcome: AgentOutcome, only: Sequence[str]) -> str:
    """The command that reproduces a run."""
    return replay_command(f"{outcome.seed} --kind agents", outcome.minutes, only)


def report_agents(outcome: AgentOutcome, world: AgentWorld, whole: bool, only: Sequence[str]) -> Iterator[str]:
    """The report of a run."""
    plan = world.plan
    if whole or outcome.broken:
        yield from world.diary.lines()
        yield ""
    conditions = "calm" if plan.calm else "a storm of restarts" if plan.storm else "under faults"
    yield f"agents, seed {plan.seed}: {outcome.minutes:g} virtual minutes, {conditions}"
    helens = "1 Helen" if plan.helens == 1 else f"{plan.helens} Helens"
    yield f"  network   {helens}, {plan.agents} agents and {plan.old_agents} of version 1"
    yield f"            {len(plan.checks)} checks, heartbeats every {plan.heartbeat} s"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(world.fault_counts.items()))
    lives = "+".join(str(node.lives) for node in world.helens)
    yield f"  faults    {counts or 'none'}; lives of each Helen: {lives}"
    yield f"  results   {outcome.results}, recorded {outcome.recorded}, given up {len(world.check.exempt)}"
    yield f"  asked     {outcome.asked}, answered {outcome.answered}"
    seen = ", ".join(f"{name} {count}" for name, count in world.check.counts.items())
    yield f"  seen      {seen}; healed by tasks {world.health.healed}"
    yield f"  messages  {outcome.messages}, check sum {outcome.check_sum:08x}"
    yield from verdict(outcome.broken, outcome.story, world.agenda.now, replay_agents(outcome, only))
