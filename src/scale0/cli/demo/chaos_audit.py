"""What came of `scale0 chaos`: what was acknowledged, told, stored, recorded and run, held against each other.

Lives here: counting. Never here: a process, a socket or a file. Invariant: a task counts as finished only if everybody
agrees on it: its client, a client that asks later, the journal, and the worker that ran it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from scale0.cli.demo.chaos_plan import BEGUN, BROKER, ENDED, FAILED, FINISHED, SORTS

MICRO: Final = 1_000_000
MAX_EXAMPLES: Final = 5
"""Of each kind of trouble, so that a summary stays on one screen."""


class TaskEnd(NamedTuple):
    """How a task ended, in somebody's words."""

    status: str
    value: Any
    code: int | None = None
    message: str = ""


class AuditedTask:
    """One task, and all that is known of it."""

    __slots__ = ("after", "id", "kind", "number", "other_id", "refusal", "stored", "told")

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.id: str | None = None
        """None: nobody acknowledged it."""
        self.other_id: str | None = None
        """What the second submission with the same key was answered."""
        self.after: int | None = None
        """The number of the task that it had to wait for."""
        self.refusal = ""
        self.told: TaskEnd | None = None
        self.stored: TaskEnd | None = None


class RecordedRuns:
    """Every time that a function ran, as the workers wrote it down."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.begun: Counter[int] = Counter()
        self.attempts: Counter[tuple[int, int]] = Counter()
        self.first_begun: dict[int, float] = {}
        self.first_ended: dict[int, float] = {}
        self.ended: set[tuple[int, str]] = set()
        for line in lines:
            match line.split():
                case [word, number, run, attempt, at] if word == BEGUN:
                    self.begun[int(number)] += 1
                    self.attempts[int(number), int(attempt)] += 1
                    self.first_begun[int(number)] = min(float(at), self.first_begun.get(int(number), float(at)))
                case [word, number, run, _, at] if word == ENDED:
                    self.ended.add((int(number), run))
                    self.first_ended[int(number)] = min(float(at), self.first_ended.get(int(number), float(at)))
                case _:
                    pass  # the last line of a process that was killed while it wrote


class JournalFacts:
    """What the broker's journal says."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.completed: Counter[str] = Counter()
        self.times: list[float] = []
        """Of completions, in order."""
        self.taken_back: dict[str, float] = {}
        """When the last task of a lost node was taken back from it."""
        for event in events:
            if event["kind"] == "task.completed":
                self.completed[event["ref"]] += 1
                self.times.append(event["time"] / MICRO)
            elif event["kind"] == "task.attempt_ended" and event["state"] == "lost":
                self.taken_back[event["identity"]] = event["time"] / MICRO
        self.times.sort()


class DurationStats(NamedTuple):
    """Times, in seconds."""

    kills: int
    p50: float | None
    p99: float | None
    max: float | None


class ChaosReport(NamedTuple):
    """Everything that is told at the end."""

    submitted: int
    accepted: int
    unanswered: int
    finished: int
    failed_as_expected: int
    failed: int
    lost: int
    duplicated: int
    out_of_order: int
    executions: int
    beyond_max_attempts: int
    attempts_repeated: int
    kills: dict[str, int]
    recovery: dict[str, DurationStats]
    crashed: tuple[str, ...]
    examples: dict[str, list[str]]

    @property
    def kept(self) -> bool:
        """True if every promise was kept."""
        return not (self.lost or self.duplicated or self.failed or self.out_of_order or self.crashed)


def judge(
    entries: Sequence[AuditedTask],
    recorded: JournalFacts,
    runs: RecordedRuns,
    killed: Sequence[tuple[str, str, float]],
    crashed: Sequence[str],
) -> ChaosReport:
    """Hold everything against everything."""
    known = [entry for entry in entries if entry.id is not None]
    lost = [one for one in known if is_lost(one, recorded)]
    missing = set(lost)
    others = [one for one in known if one not in missing]
    duplicated = [one for one in others if is_duplicated(one, recorded, runs)]
    ended = Counter((one.told.status, SORTS[one.kind].ends) for one in others if one.told is not None)
    failed = [one for one in others if one.told is not None and one.told.status != SORTS[one.kind].ends]
    beyond = [one for one in known if runs.begun[one.number] > SORTS[one.kind].max_attempts]
    disorder = [one for one in known if is_out_of_order(one, runs)]
    troubles = {"lost": lost, "duplicated": duplicated, "failed": failed, "out_of_order": disorder, "beyond": beyond}
    return ChaosReport(
        submitted=len(entries),
        accepted=len(known),
        unanswered=len(entries) - len(known),
        finished=ended[FINISHED, FINISHED],
        failed_as_expected=ended[FAILED, FAILED],
        failed=len(failed),
        lost=len(lost),
        duplicated=len(duplicated),
        out_of_order=len(disorder),
        executions=runs.begun.total(),
        beyond_max_attempts=len(beyond),
        attempts_repeated=sum(1 for count in runs.attempts.values() if count > 1),
        kills=dict(Counter(part_of(victim) for victim, _, _ in killed)),
        recovery=recovery(killed, recorded),
        crashed=tuple(crashed),
        examples={name: [shown(one, recorded, runs) for one in some[:MAX_EXAMPLES]] for name, some in troubles.items()},
    )


def is_lost(entry: AuditedTask, recorded: JournalFacts) -> bool:
    """True for an acknowledged task that did not end, is unknown, or is not recorded."""
    told, stored = entry.told, entry.stored
    ends = (FINISHED, FAILED)
    if told is None or stored is None or told.status not in ends or stored.status not in ends:
        return True
    return not recorded.completed[entry.id or ""]


def is_duplicated(entry: AuditedTask, recorded: JournalFacts, runs: RecordedRuns) -> bool:
    """True if it has two ends: told and stored differ, it is recorded twice, or one key made two tasks."""
    if entry.told != entry.stored or recorded.completed[entry.id or ""] > 1:
        return True
    if entry.other_id is not None and entry.other_id != entry.id:
        return True
    told = entry.told
    if told is None or told.status != FINISHED:
        return False
    # A result that no run gave, or another task's.
    value = told.value
    return value.get("number") != entry.number or (entry.number, value.get("run")) not in runs.ended


def is_out_of_order(entry: AuditedTask, runs: RecordedRuns) -> bool:
    """True if it began before the task that it had to wait for had ended."""
    if entry.after is None or entry.number not in runs.first_begun:
        return False
    return runs.first_begun[entry.number] < runs.first_ended.get(entry.after, float("inf"))


def recovery(killed: Sequence[tuple[str, str, float]], recorded: JournalFacts) -> dict[str, DurationStats]:
    """From each kill to the first new completion, and to when all of a dead worker's work was taken back."""
    found: dict[str, list[float]] = {"worker": [], BROKER: [], "taken_back": []}
    for victim, identity, wall in killed:
        place = bisect_right(recorded.times, wall)
        if place < len(recorded.times):
            found[part_of(victim)].append(recorded.times[place] - wall)
        if recorded.taken_back.get(identity, 0.0) > wall:
            found["taken_back"].append(recorded.taken_back[identity] - wall)
    return {name: spread(times) for name, times in found.items()}


def part_of(victim: str) -> str:
    """The broker, or a worker."""
    return BROKER if victim == BROKER else "worker"


def spread(times: Sequence[float]) -> DurationStats:
    """The middle, the end and the worst."""
    if not times:
        return DurationStats(0, None, None, None)
    ordered = sorted(times)
    last = len(ordered) - 1
    return DurationStats(len(ordered), ordered[last // 2], ordered[round(last * 0.99)], ordered[last])


def shown(entry: AuditedTask, recorded: JournalFacts, runs: RecordedRuns) -> str:
    """All that is known of a task, on one line."""
    return (
        f"{entry.kind} {entry.number} {entry.id}: told {entry.told}, stored {entry.stored}, "
        f"recorded {recorded.completed[entry.id or '']}, run {runs.begun[entry.number]}"
    )
