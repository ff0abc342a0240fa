"""What `scale0 demo` counts: calls, tasks, gaps, and which tasks ran more than once.

Lives here: counting over what clients were told and workers wrote down. Never here: a socket, a process or a file.
Invariants: a task is lost if it was acknowledged and nobody was told its result; a second run is explained only if the
first was in the hands of a process that was killed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from scale0.cli.demo.plan import BEGUN, ENDED


class CountedTask:
    """One task, and all that its client knows of it."""

    __slots__ = ("accepted", "asked", "ended", "id", "number", "result", "trouble")

    def __init__(self, number: int, asked: float) -> None:
        self.number = number
        self.asked = asked
        """When it was submitted, by the monotonic clock."""
        self.id = ""
        """Blank: nobody acknowledged it."""
        self.accepted = 0.0
        """When it was acknowledged."""
        self.ended: float | None = None
        self.result: Any = None
        self.trouble = ""


class Totals(NamedTuple):
    """How far it is."""

    asked: int
    answered: int
    failed: int
    accepted: int
    finished: int


class DemoCounts:
    """Calls and tasks as their client saw them; one thread writes, others read totals."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: list[float] = []
        """When each call was answered, by the monotonic clock."""
        self.by: Counter[str] = Counter()
        self.wrong = 0
        self.failed: Counter[str] = Counter()
        self.waits: list[tuple[float, float]] = []
        """When a call was answered, and how long that took."""
        self.entries: list[CountedTask] = []
        self.accepted = 0
        self.finished = 0

    def answered(self, number: int, answer: Any, began: float, now: float) -> None:
        """One call has its answer."""
        self.answers.append(now)
        self.waits.append((now, now - began))
        self.by[answer["who"]] += 1
        self.wrong += answer["number"] != number

    def totals(self) -> Totals:
        """As it is now."""
        return Totals(self.asked, len(self.answers), self.failed.total(), self.accepted, self.finished)

    def gap(self, since: float, until: float) -> float:
        """The longest time without any answer that began or ended between these moments."""
        return longest_gap(self.answers, since, until)

    def longest_wait(self, since: float, until: float) -> float:
        """Of a call that was answered between these moments."""
        return max((took for at, took in self.waits if since <= at <= until), default=0.0)

    def accepted_between(self, since: float, until: float) -> int:
        """Tasks that were acknowledged in this time."""
        return sum(1 for one in self.entries if one.id and since <= one.accepted <= until)

    def under_way(self, at: float) -> frozenset[int]:
        """Tasks that were submitted before this moment, and had no result then."""
        return frozenset(one.number for one in self.entries if one.asked <= at and (one.ended or at) >= at)

    def lost(self) -> list[CountedTask]:
        """Tasks that were acknowledged, and whose result nobody was told, or another's."""
        return [one for one in self.entries if one.id and not is_right(one)]


def is_right(entry: CountedTask) -> bool:
    """True if its result is its own."""
    return entry.ended is not None and isinstance(entry.result, dict) and entry.result.get("number") == entry.number


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """The longest pause between two of these (in order) that reaches into a span of time."""
    inside = [at for at in times if since <= at <= until]
    before = max((at for at in times if at < since), default=since)
    after = min((at for at in times if at > until), default=until)
    points = [before, *inside, after]
    return max(b - a for a, b in pairwise(points))


class RepeatedTasks(NamedTuple):
    """Tasks that ran more than once."""

    in_hand: int
    """Because the process that had them was killed."""
    unexplained: tuple[int, ...]


def ran_twice(lines: Iterable[str], killed: frozenset[int]) -> RepeatedTasks:
    """From the pages of the workers; `killed`: the numbers of processes that were."""
    begun: defaultdict[int, list[int]] = defaultdict(list)
    ended: set[tuple[int, int]] = set()
    for line in lines:
        match line.split():
            case [word, number, _, pid] if word == BEGUN:
                begun[int(number)].append(int(pid))
            case [word, number, _, pid] if word == ENDED:
                ended.add((int(number), int(pid)))
            case _:
                pass  # the last line of a process that was killed while it wrote
    again = {number: pids for number, pids in begun.items() if len(pids) > 1}
    odd = [
        number
        for number, pids in again.items()
        if sum(pid not in killed or (number, pid) in ended for pid in pids) != 1
    ]
    return RepeatedTasks(len(again) - len(odd), tuple(sorted(odd)))
