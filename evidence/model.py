"""What a campaign records, and the judgement of it: pure functions from records to violations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

HEARTBEAT_SECONDS: Final = 1.0
LIVENESS: Final = 3
SLACK_SECONDS: Final = 3.0
"""What a busy machine may add to a promised time."""
START_SECONDS: Final = 12.0
"""Until a broker that starts serves again, on a busy machine."""
RECONNECT_SECONDS: Final = 45.0
"""The longest pause between two attempts of an agent to connect: pauses double while Helen is away."""
BOUNDS: Final = {
    "broker_killed": START_SECONDS,
    "broker_killed_twice": START_SECONDS,
    "broker_stopped": HEARTBEAT_SECONDS * (LIVENESS + 1) + SLACK_SECONDS,
    "disk_eio": START_SECONDS,
    "disk_full": START_SECONDS,
    "worker_killed": HEARTBEAT_SECONDS * (LIVENESS + 1) + 0.25 + SLACK_SECONDS,
    "worker_stopped": HEARTBEAT_SECONDS * (LIVENESS + 1) + 0.25 + SLACK_SECONDS,
    "second_broker": START_SECONDS,
    "clock_jumped": START_SECONDS,  # libfaketime makes a broker several times slower
    "helen_killed": RECONNECT_SECONDS + SLACK_SECONDS,
    "agent_killed": RECONNECT_SECONDS + SLACK_SECONDS,
    "helen_stopped": RECONNECT_SECONDS + SLACK_SECONDS,
    "group_broker_killed": START_SECONDS,
    "group_broker_stopped": START_SECONDS,
    "database_killed": START_SECONDS,
    "database_stopped": START_SECONDS,
    "log_cut": START_SECONDS,
    "log_flipped": START_SECONDS,
}
"""By fault, the seconds within which the network must have recovered."""
RECOVERS: Final = {"worker": "TASK-7", "helen": "AGENT-7", "agent": "AGENT-7"}
"""The promise of a recovery in time, by what failed; NEGO-5 for the others."""
CALM_FACTOR: Final = 2.0
LATENCY_FLOOR_SECONDS: Final = 0.5
"""An honest client's p99 under a flood may be twice the calm value, or this on a busy machine."""


class Violation(NamedTuple):
    """A broken promise: its id in docs/promises.md, and what happened."""

    promise: str
    what: str
    judged: bool = True
    """False: what would judge the promise could not be done. The campaign is red, but the promise is not broken."""

    def __str__(self) -> str:
        return f"{'broke' if self.judged else 'did not judge'} {self.promise}: {self.what}"


@dataclass(slots=True)
class TaskRecord:
    """One task, as its submitter knows it."""

    number: int
    seconds: float = 0.0
    """How long a run takes."""
    ids: list[str] = field(default_factory=list)
    """What each submission with its key was answered."""
    submissions: int = 0
    results: list[str] = field(default_factory=list)
    """Each result that was read, as text."""
    ended: str = ""
    """`finished`, or the error that it ended with."""

    @property
    def acknowledged(self) -> bool:
        return bool(self.ids)


class Run(NamedTuple):
    """One run of a task by a worker."""

    number: int
    run: str
    attempt: int
    pid: int
    begun: float
    ended: float | None


@dataclass(slots=True)
class FaultRecord:
    kind: str
    at: float
    """Seconds since the start of the campaign."""
    recovery: float | None = None
    """Seconds until the network had recovered; None: nothing was to recover."""
    note: str = ""


@dataclass(slots=True)
class AttackRecord:
    name: str
    promise: str
    keys: str
    answer: str
    succeeded: str = ""
    """Why it succeeded; empty: it did not."""
    unjudged: str = ""
    """Why it could not be judged; empty: it was."""
    seconds: float = 0.0
    latency: tuple[float, float] | None = None
    """An honest client's p99 before and during the attack, if it was measured."""


@dataclass(slots=True)
class Seeds:
    kind: str
    tried: int = 0
    first: int = 0
    last: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Campaign:
    """Everything that one campaign recorded."""

    seed: int
    began: str
    versions: dict[str, str]
    minutes: float
    seconds: float = 0.0
    tasks: list[TaskRecord] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    attacks: list[AttackRecord] = field(default_factory=list)
    seeds: list[Seeds] = field(default_factory=list)
    faults_known: list[str] = field(default_factory=list)
    """The kinds of faults of the parts that ran."""
    attacks_known: int = 0
    """How many different ones there are: a short campaign tries some of them."""
    checks_run: list[str] = field(default_factory=list)
    """What each run of a check returned: no two return the same."""
    checks_unsure: set[str] = field(default_factory=set)
    """Of these, the last ones before a kill of the agent: it may not have read what they returned."""
    results_stored: list[str] = field(default_factory=list)
    """What each result says that Helen has stored."""
    lost_workers: set[int] = field(default_factory=set)
    """Process ids of workers that were killed or suspended: what they ran may run again."""
    extra: list[Violation] = field(default_factory=list)
    """What a part found by itself: a process that ended, a disk that did not fail, a configuration that went back."""


SHARES: Final = (("p50", 0.5, 2), ("p90", 0.9, 10), ("p99", 0.99, 100))
"""The percentiles of the page, and how many values each needs."""


def percentile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def read_runs(lines: Iterable[str]) -> list[Run]:
    """The file of runs; a line that was cut off is not one."""
    found: dict[str, Run] = {}
    for line in lines:
        words = line.split()
        if len(words) != 6:
            continue
        what, number, run, attempt, at, pid = words
        if what == "begun":
            found[run] = Run(int(number), run, int(attempt), int(pid), float(at), None)
        elif run in found:
            found[run] = found[run]._replace(ended=float(at))
    return list(found.values())


def judge(campaign: Campaign) -> list[Violation]:
    """Every broken promise; the campaign is green if there is none."""
    return [
        *campaign.extra,
        *judge_tasks(campaign.tasks, campaign.runs, campaign.lost_workers),
        *judge_results(campaign.checks_run, campaign.results_stored, campaign.checks_unsure),
        *judge_recoveries(campaign.faults),
        *judge_attacks(campaign.attacks),
        *(Violation(promise_of(line), line) for seeds in campaign.seeds for line in seeds.broken),
    ]


def judge_tasks(tasks: Sequence[TaskRecord], runs: Sequence[Run], lost_workers: set[int]) -> list[Violation]:
    found = []
    by_number: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_number[run.number].append(run)
    for task in tasks:
        name = f"task {task.number} ({task.ids[0] if task.ids else 'not acknowledged'})"
        if not task.acknowledged:
            continue
        if not task.ended:
            found.append(Violation("TASK-11", f"{name} was acknowledged and has no end: lost"))
        elif task.ended != "finished":
            found.append(Violation("TASK-11", f"{name} was acknowledged and ended with {task.ended}"))
        if len(set(task.ids)) > 1:
            found.append(
                Violation("TASK-4", f"{name}: its key made {len(set(task.ids))} tasks: {sorted(set(task.ids))}")
            )
        if len(set(task.results)) > 1:
            found.append(
                Violation("TASK-5", f"{name} has {len(set(task.results))} results: {sorted(set(task.results))}")
            )
        # A worker that was suspended may begin an old attempt when the next one has ended.
        mine = sorted(by_number[task.number], key=lambda run: (run.attempt, run.begun))
        if task.results and not any(run.run in task.results[0] for run in mine):
            found.append(Violation("TASK-5", f"{name} has a result that no run returned: {task.results[0]}"))
        again = [run for run in mine[:-1] if run.pid not in lost_workers]
        if again:
            pids = [run.pid for run in mine]
            found.append(Violation("TASK-11", f"{name} ran {len(mine)} times, at {pids}, although its worker lived"))
        attempts = Counter(run.attempt for run in mine)
        if attempts and attempts.most_common(1)[0][1] > 1:
            found.append(Violation("TASK-16", f"{name}: one attempt ran twice: {dict(attempts)}"))
    return found


def judge_results(checks_run: Sequence[str], results_stored: Sequence[str], unsure: set[str]) -> list[Violation]:
    """Each run of a check is stored exactly once; one that a kill of the agent interrupted, at most once."""
    stored = Counter(results_stored)
    missing = [run for run in checks_run if not stored[run] and run not in unsure]
    lost = [Violation("AGENT-7", f"the result of the check run {run} is lost") for run in missing]
    twice = [
        Violation("AGENT-7", f"the result of the check run {run} is stored {count} times")
        for run, count in stored.items()
        if count > 1
    ]
    made_up = [f"a result is stored that no check returned: {run}" for run in stored.keys() - {*checks_run}]
    return [*lost, *twice, *(Violation("AGENT-7", what) for what in made_up)]


def judge_recoveries(faults: Sequence[FaultRecord]) -> list[Violation]:
    return [
        Violation(RECOVERS.get(fault.kind.partition("_")[0], "NEGO-5"), f"{fault.kind}: {late(fault)}")
        for fault in faults
        if fault.recovery is not None and fault.recovery > BOUNDS[fault.kind]
    ]


def late(fault: FaultRecord) -> str:
    return f"recovered after {fault.recovery:.2f} s, not within {BOUNDS[fault.kind]:.2f} s"


def judge_attacks(attacks: Sequence[AttackRecord]) -> list[Violation]:
    found = []
    for attack in attacks:
        if attack.succeeded:
            found.append(Violation(attack.promise, f"attack {attack.name} succeeded: {attack.succeeded}"))
        if attack.unjudged:
            found.append(Violation(attack.promise, f"attack {attack.name}: {attack.unjudged}", judged=False))
        if attack.latency is not None:
            calm, during = attack.latency
            bound = max(CALM_FACTOR * calm, LATENCY_FLOOR_SECONDS)
            if during > bound:
                what = f"an honest client's p99 was {during:.3f} s during {attack.name}, {calm:.3f} s before"
                found.append(Violation("ZMTP-5", what))
    return found


def promise_of(line: str) -> str:
    """The name of the invariant in `seed 3 broke task-once: …`."""
    return line.partition(" broke ")[2].partition(":")[0] or "simulation"


def totals(campaign: Campaign) -> dict[str, int]:
    """The numbers at the top of the page."""
    violations = judge_tasks(campaign.tasks, campaign.runs, campaign.lost_workers)
    acknowledged = [task for task in campaign.tasks if task.acknowledged]
    return {
        "operations": sum(task.submissions for task in campaign.tasks),
        "acknowledged": len(acknowledged),
        "finished": sum(task.ended == "finished" for task in acknowledged),
        "lost": sum(task.ended != "finished" for task in acknowledged),
        "doubled": len([one for one in violations if one.promise != "TASK-11" or " times" in one.what]),
        "runs": len(campaign.runs),
        "check_results": len(campaign.results_stored),
        "results_lost": len({*campaign.checks_run} - {*campaign.results_stored} - campaign.checks_unsure),
        "results_doubled": len(campaign.results_stored) - len(set(campaign.results_stored)),
        "faults": len(campaign.faults),
        "attacks": len(campaign.attacks),
        "attacks_succeeded": sum(bool(attack.succeeded) for attack in campaign.attacks),
        "attacks_not_judged": sum(bool(attack.unjudged) for attack in campaign.attacks),
        "seeds": sum(seeds.tried for seeds in campaign.seeds),
        "seeds_broken": sum(len(seeds.broken) for seeds in campaign.seeds),
    }


def fault_rows(campaign: Campaign) -> list[dict[str, Any]]:
    """By kind: how many, and the percentiles of the recovery times."""
    kinds: dict[str, list[FaultRecord]] = defaultdict(list)
    for fault in campaign.faults:
        kinds[fault.kind].append(fault)
    rows = []
    for kind, faults in sorted(kinds.items()):
        times = [fault.recovery for fault in faults if fault.recovery is not None]
        # A percentile of fewer values is only their maximum.
        enough = [(name, share) for name, share, least in SHARES if len(times) >= least]
        shares: dict[str, float | None] = {name: None for name, _, _ in SHARES}
        shares |= {name: percentile(times, share) for name, share in enough}
        rows.append(
            {"kind": kind, "count": len(faults), **shares, "max": max(times, default=None), "bound": BOUNDS[kind]}
        )
    return rows


def as_json(campaign: Campaign) -> dict[str, Any]:
    """The document that is written; tasks are summed up, everything else is listed."""
    violations = judge(campaign)
    return {
        "green": not violations,
        "violations": [one._asdict() for one in violations],
        "began": campaign.began,
        "minutes": campaign.minutes,
        "seconds": round(campaign.seconds, 1),
        "seed": campaign.seed,
        "versions": campaign.versions,
        "totals": totals(campaign),
        "faults_known": sorted(set(campaign.faults_known)),
        "attacks_known": campaign.attacks_known,
        "faults": fault_rows(campaign),
        "fault_list": [asdict(fault) for fault in campaign.faults],
        "attacks": [asdict(attack) for attack in campaign.attacks],
        "simulation": [asdict(seeds) for seeds in campaign.seeds],
    }
