"""The judge of work: tasks, and what tasks and requests amount to in a minute, an hour and a day.

Plain loops over events, without Spark and anything of `scale0.pipeline`. Durations are microseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from tests.pipeline.judge.seconds import Seen, Source

GRAINS = {"minute": 60, "hour": 3600, "day": 86400}
ENDS = ("task.attempt_ended", "task.completed")


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


@dataclass
class Task:
    """One life of a task: from its submission, or its being reopened, to its end."""

    ref: str
    submitted: int | None = None
    client: str | None = None
    method: str | None = None
    group: str | None = None
    priority: int | None = None
    base: int = 0
    """The number of the last attempt of its life before."""
    tries: list[Seen] = field(default_factory=list)
    end: Seen | None = None

    @property
    def outcome(self) -> str:
        return "open" if self.end is None else str(self.end.row["state"])

    @property
    def attempts(self) -> int:
        numbers = [one.row["attempt"] for one in self._all() if one.row["attempt"] is not None]
        return max(numbers, default=self.base) - self.base

    @property
    def wait(self) -> int | None:
        """How long the first attempt waited."""
        for one in self._all():
            if one.row["attempt"] == self.base + 1:
                return micros(one.row["waited"])
        return None

    @property
    def first_assigned(self) -> int | None:
        """In microseconds of the history: when the first attempt began."""
        for one in self._all():
            if one.row["attempt"] == self.base + 1 and one.row["seconds"] is not None:
                return one.at * 1_000_000 - (micros(one.row["seconds"]) or 0)
        return None

    @property
    def run(self) -> int | None:
        return None if self.end is None else micros(self.end.row["seconds"])

    @property
    def wasted(self) -> int:
        return sum(micros(one.row["seconds"]) or 0 for one in self.tries)

    def _all(self) -> list[Seen]:
        return self.tries + ([self.end] if self.end is not None else [])


def whole_tasks(events: list[Seen]) -> set[str]:
    """The refs of which nothing was lost: only of these is it sure what their table must say."""
    out = set()
    for ref in {one.ref for one in events if one.kind.startswith("task.")}:
        mine = [one for one in events if one.ref == ref and one.kind in ("task.submitted", "task.reopened", *ENDS)]
        ended, last = True, 0
        for number, one in enumerate(mine):
            attempt = one.row["attempt"]
            if one.kind in ("task.submitted", "task.reopened"):
                sound = ended and (one.kind == "task.submitted") == (number == 0)
                ended = False
            else:
                sound = not ended and number > 0 and (attempt is None or attempt == last + 1)
                ended, last = one.kind == "task.completed", attempt or last
            if not sound:
                break
        else:
            out.add(ref)
    return out


def tasks_of(events: list[Seen]) -> list[Task]:
    out: list[Task] = []
    living: dict[str, Task] = {}
    tried: dict[str, int] = {}
    for one in events:
        if one.kind in ("task.submitted", "task.reopened"):
            task = living[one.ref] = Task(one.ref, one.at, one.identity, one.service, base=tried.get(one.ref, 0))
            if one.kind == "task.submitted":
                task.group, task.priority = one.data.get("group"), one.data.get("priority")
            out.append(task)
        elif one.kind in ENDS:
            task = living.get(one.ref) or Task(one.ref, method=one.service)
            if one.ref not in living:
                living[one.ref] = task
                out.append(task)
            tried[one.ref] = one.row["attempt"] or tried.get(one.ref, 0)
            if one.kind == "task.completed":
                task.end = one
                del living[one.ref]
            else:
                task.tries.append(one)
    return out


@dataclass
class TaskStats:
    submitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    attempts_ended: int = 0
    busy: int = 0
    waits: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)


def task_stats(events: list[Seen], grain: str) -> dict[tuple[str, int], TaskStats]:
    out: dict[tuple[str, int], TaskStats] = {}
    for one in events:
        if one.kind not in ("task.submitted", *ENDS):
            continue
        stats = out.setdefault((one.service, one.at // GRAINS[grain] * GRAINS[grain]), TaskStats())
        if one.kind == "task.submitted":
            stats.submitted += 1
            continue
        stats.busy += micros(one.row["seconds"]) or 0
        if one.row["waited"] is not None:
            stats.waits.append(one.row["waited"])
        if one.kind == "task.attempt_ended":
            stats.attempts_ended += 1
            continue
        setattr(stats, one.row["state"], getattr(stats, one.row["state"]) + 1)
        if one.row["seconds"] is not None:
            stats.runs.append(one.row["seconds"])
    return out


@dataclass
class RequestStats:
    answered: int = 0
    failed: Counter[int] = field(default_factory=Counter)
    longest: float | None = None
    bytes: int = 0
    buckets: Counter[int] = field(default_factory=Counter)


def request_stats(events: list[Seen], grain: str) -> dict[tuple[str, int], RequestStats]:
    out: dict[tuple[str, int], RequestStats] = {}
    for one in events:
        if one.kind not in ("request.summed", "request.failed"):
            continue
        stats = out.setdefault((one.service, one.at // GRAINS[grain] * GRAINS[grain]), RequestStats())
        if one.kind == "request.failed":
            stats.failed[one.row["code"]] += 1
            continue
        stats.answered += one.row["code"]
        stats.bytes += one.row["bytes"] or 0
        if one.row["seconds"] is not None:
            stats.longest = max(stats.longest or 0.0, one.row["seconds"])
        for entry in one.row["histogram"] or []:
            stats.buckets[entry["bucket"]] += entry["count"]
        for code, count in (one.data.get("failed") or {}).items():
            stats.failed[int(code)] += count
    return out


def nearest_rank(values: list[float], percent: int) -> float | None:
    """The value at rank ⌈percent · n / 100⌉ of those in order."""
    if not values:
        return None
    return sorted(values)[max(1, math.ceil(percent * len(values) / 100)) - 1]


def bucket_bounds(buckets: Counter[int], percent: int) -> tuple[float, float] | None:
    """Between which durations the nearest rank lies, by a histogram of factor 1.02."""
    ranks = [bucket for bucket in sorted(buckets) for _ in range(buckets[bucket])]
    if not ranks:
        return None
    bucket = ranks[max(1, math.ceil(percent * len(ranks) / 100)) - 1]
    return 1.02 ** (bucket - 1), 1.02**bucket


@dataclass
class Audit:
    events: int = 0
    first_seq: int = 0
    last_seq: int = 0
    holes: int = 0
    rewinds: int = 0


def audit_of(sources: dict[str, Source]) -> dict[tuple[str, int], Audit]:
    """By source and day of recording; a hole or a rewind counts where the numbers go on."""
    out: dict[tuple[str, int], Audit] = {}
    for name, source in sources.items():
        before: Seen | None = None
        for one in source.events:
            audit = out.setdefault((name, one.time // GRAINS["day"]), Audit(first_seq=one.seq))
            audit.events += 1
            audit.first_seq, audit.last_seq = min(audit.first_seq, one.seq), max(audit.last_seq, one.seq)
            if before is not None:
                audit.holes += one.seq > before.seq + 1
                audit.rewinds += one.boot != before.boot and one.seq <= before.seq
            before = one
    return out
