"""What `scale0 demo` and `scale0 chaos` know about their calls and tasks, and the judgement about it.

A task counts as finished only if all sources agree: its client, a client that asks later, the journal, and the worker
that ran it. The module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

FINISHED: Final = "finished"
FAILED: Final = "failed"
BEGUN: Final = "begun"
ENDED: Final = "ended"
"""The first word of a line in the file of runs."""
MICRO: Final = 1_000_000
MAX_EXAMPLES: Final = 5
"""For each kind of problem, so that a summary fits on one screen."""


class TaskEnd(NamedTuple):
    status: str
    value: Any
    code: int | None = None
    message: str = ""


class SubmittedTask:
    """One task and all that is known about it. Times are monotonic."""

    def __init__(
        self, number: int, submitted_at: float = 0.0, kind: str = "", ends: str = FINISHED, max_attempts: int = 10
    ) -> None:
        self.number = number
        self.kind = kind
        self.ends = ends
        """The status with which it must end."""
        self.max_attempts = max_attempts
        self.submitted_at = submitted_at
        self.id: str | None = None
        """None: it was not acknowledged."""
        self.accepted_at = 0.0
        self.other_id: str | None = None
        """The id that the second submission with the same key got."""
        self.after: int | None = None
        """The number of the task that it depends on."""
        self.refusal = ""
        self.result: TaskEnd | None = None
        """What its client received."""
        self.ended_at: float | None = None
        self.stored: TaskEnd | None = None
        """What a client that asks later received."""

    def has_own_result(self) -> bool:
        """True if its client received a result, and the number in it is its own."""
        value = self.result.value if self.result is not None else None
        return isinstance(value, dict) and value.get("number") == self.number


class LoadRecord:
    """Calls and tasks as their clients saw them. One thread writes; other threads read the counters."""

    def __init__(self) -> None:
        self.calls = 0
        self.answered_at: list[float] = []
        self.waits: list[tuple[float, float]] = []
        """When a call was answered, and how long it took."""
        self.by_worker: Counter[str] = Counter()
        self.wrong_answers = 0
        self.failures: Counter[str] = Counter()
        self.tasks: list[SubmittedTask] = []
        self.accepted = 0
        self.ended = 0
        self.finished = 0

    def call_answered(self, number: int, answer: Any, began: float, now: float) -> None:
        self.answered_at.append(now)
        self.waits.append((now, now - began))
        self.by_worker[answer["who"]] += 1
        self.wrong_answers += answer["number"] != number

    def counts(self) -> str:
        return (
            f"calls {len(self.answered_at):,} answered, {self.failures.total()} failed;"
            f" tasks {self.accepted:,} accepted, {self.finished:,} finished"
        )

    def longest_wait(self, since: float, until: float) -> float:
        """Of the calls that were answered in this time."""
        return max((took for at, took in self.waits if since <= at <= until), default=0.0)

    def accepted_between(self, since: float, until: float) -> int:
        return sum(1 for task in self.tasks if task.id and since <= task.accepted_at <= until)

    def in_flight(self, at: float) -> frozenset[int]:
        """Tasks that were submitted at this time and had no result yet."""
        return frozenset(task.number for task in self.tasks if task.submitted_at <= at and (task.ended_at or at) >= at)

    def lost(self) -> list[SubmittedTask]:
        """Acknowledged tasks without a result of their own."""
        return [task for task in self.tasks if task.id and not task.has_own_result()]


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """The longest pause between two of these ordered times that overlaps the range."""
    inside = [at for at in times if since <= at <= until]
    before = max((at for at in times if at < since), default=since)
    after = min((at for at in times if at > until), default=until)
    return max(b - a for a, b in pairwise([before, *inside, after]))


class RepeatedTasks(NamedTuple):
    by_kill: int
    """Because the process that ran them was killed."""
    unexplained: tuple[int, ...]


class RecordedRuns:
    """Every run of a task, as the workers recorded it."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.begun: Counter[int] = Counter()
        self.attempts: Counter[tuple[int, int]] = Counter()
        self.first_begun: dict[int, float] = {}
        self.first_ended: dict[int, float] = {}
        self.ended: set[tuple[int, str]] = set()
        self._pids: defaultdict[int, list[int]] = defaultdict(list)
        self._ended_in: set[tuple[int, int]] = set()
        for line in lines:
            match line.split():
                case [word, number, run, attempt, at, pid] if word in (BEGUN, ENDED):
                    self._add(word, int(number), run, int(attempt), float(at), int(pid))
                case _:
                    pass  # the last line of a process that was killed while it wrote

    def _add(self, word: str, number: int, run: str, attempt: int, at: float, pid: int) -> None:
        first = self.first_begun if word == BEGUN else self.first_ended
        first[number] = min(at, first.get(number, at))
        if word == BEGUN:
            self.begun[number] += 1
            self.attempts[number, attempt] += 1
            self._pids[number].append(pid)
        else:
            self.ended.add((number, run))
            self._ended_in.add((number, pid))

    def repeated(self, killed: frozenset[int]) -> RepeatedTasks:
        """Tasks that ran again. Only a run that a kill interrupted (`killed`: process ids) explains another one."""
        again = {number: pids for number, pids in self._pids.items() if len(pids) > 1}
        unexplained = sorted(
            number
            for number, pids in again.items()
            if sum(pid not in killed or (number, pid) in self._ended_in for pid in pids) != 1
        )
        return RepeatedTasks(len(again) - len(unexplained), tuple(unexplained))


class JournalFacts:
    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.completed: Counter[str] = Counter()
        self.times: list[float] = []
        """Of completions, in order."""
        self.taken_back: dict[str, float] = {}
        """By lost node: when the last of its tasks was reclaimed."""
        for event in events:
            if event["kind"] == "task.completed":
                self.completed[event["ref"]] += 1
                self.times.append(event["time"] / MICRO)
            elif event["kind"] == "task.attempt_ended" and event["state"] == "lost":
                self.taken_back[event["identity"]] = event["time"] / MICRO
        self.times.sort()


class Killed(NamedTuple):
    """A process that was killed; `part` is `broker` or `worker`."""

    part: str
    identity: str
    wall: float


class DurationStats(NamedTuple):
    kills: int
    p50: float | None
    p99: float | None
    max: float | None


class ChaosReport(NamedTuple):
    """The report of `scale0 chaos`; its fields are those of --json."""

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
        return not (self.lost or self.duplicated or self.failed or self.out_of_order or self.crashed)


def judge(
    tasks: Sequence[SubmittedTask],
    journal: JournalFacts,
    runs: RecordedRuns,
    killed: Sequence[Killed],
    crashed: Sequence[str],
) -> ChaosReport:
    """Compare what was acknowledged, received, stored, recorded and run."""
    known = [task for task in tasks if task.id is not None]
    lost = [task for task in known if is_lost(task, journal)]
    missing = set(lost)
    others = [task for task in known if task not in missing]
    duplicated = [task for task in others if is_duplicated(task, journal, runs)]
    ended = Counter((task.result.status, task.ends) for task in others if task.result is not None)
    failed = [task for task in others if task.result is not None and task.result.status != task.ends]
    beyond = [task for task in known if runs.begun[task.number] > task.max_attempts]
    disorder = [task for task in known if is_out_of_order(task, runs)]
    problems = {"lost": lost, "duplicated": duplicated, "failed": failed, "out_of_order": disorder, "beyond": beyond}
    examples = {name: [line_of(one, journal, runs) for one in some[:MAX_EXAMPLES]] for name, some in problems.items()}
    return ChaosReport(
        submitted=len(tasks),
        accepted=len(known),
        unanswered=len(tasks) - len(known),
        finished=ended[FINISHED, FINISHED],
        failed_as_expected=ended[FAILED, FAILED],
        failed=len(failed),
        lost=len(lost),
        duplicated=len(duplicated),
        out_of_order=len(disorder),
        executions=runs.begun.total(),
        beyond_max_attempts=len(beyond),
        attempts_repeated=sum(1 for count in runs.attempts.values() if count > 1),
        kills=dict(Counter(one.part for one in killed)),
        recovery=recovery(killed, journal),
        crashed=tuple(crashed),
        examples=examples,
    )


def is_lost(task: SubmittedTask, journal: JournalFacts) -> bool:
    """True for an acknowledged task that did not end, is unknown, or is not recorded."""
    ends = (FINISHED, FAILED)
    if any(end is None or end.status not in ends for end in (task.result, task.stored)):
        return True
    return not journal.completed[task.id or ""]


def is_duplicated(task: SubmittedTask, journal: JournalFacts, runs: RecordedRuns) -> bool:
    """True if it has two ends: received and stored differ, it is recorded twice, or one key made two tasks."""
    if task.result != task.stored or journal.completed[task.id or ""] > 1:
        return True
    if task.other_id is not None and task.other_id != task.id:
        return True
    if task.result is None or task.result.status != FINISHED:
        return False
    # A result that no run returned, or that of another task.
    return not task.has_own_result() or (task.number, task.result.value.get("run")) not in runs.ended


def is_out_of_order(task: SubmittedTask, runs: RecordedRuns) -> bool:
    """True if it began before the task that it depends on had ended."""
    if task.after is None or task.number not in runs.first_begun:
        return False
    return runs.first_begun[task.number] < runs.first_ended.get(task.after, float("inf"))


def recovery(killed: Sequence[Killed], journal: JournalFacts) -> dict[str, DurationStats]:
    """From each kill to the next completion, and to the time when all tasks of a dead worker were reclaimed."""
    found: dict[str, list[float]] = {"worker": [], "broker": [], "taken_back": []}
    for part, identity, wall in killed:
        index = bisect_right(journal.times, wall)
        if index < len(journal.times):
            found[part].append(journal.times[index] - wall)
        if journal.taken_back.get(identity, 0.0) > wall:
            found["taken_back"].append(journal.taken_back[identity] - wall)
    return {name: duration_stats(times) for name, times in found.items()}


def duration_stats(times: Sequence[float]) -> DurationStats:
    if not times:
        return DurationStats(0, None, None, None)
    ordered = sorted(times)
    last = len(ordered) - 1
    return DurationStats(len(ordered), ordered[last // 2], ordered[round(last * 0.99)], ordered[last])


def line_of(task: SubmittedTask, journal: JournalFacts, runs: RecordedRuns) -> str:
    return (
        f"{task.kind} {task.number} {task.id}: received {task.result}, stored {task.stored}, "
        f"recorded {journal.completed[task.id or '']}, run {runs.begun[task.number]}"
    )
