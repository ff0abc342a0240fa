"""Whether `scale0 demo` kept its promises: what was seen, held against what was promised.

Lives here: the verdicts, and their words. Never here: a process, a clock or a file. Invariant: a promise that nobody
could look at counts as broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scale0.cli.demo.output import Promise
from scale0.cli.demo.plan import DEAD_SECONDS, DOOR, GAP_SECONDS, ONE, TWO, VICTIM, WATCHER

if TYPE_CHECKING:
    from scale0.cli.demo.counts import DemoCounts, RepeatedTasks
    from scale0.cli.demo.report import Computed


class ObservedIncident(NamedTuple):
    """As Helen tells of it; wall times."""

    opened: float
    closed: float | None


class DemoTimes(NamedTuple):
    """When what happened, by the monotonic clock."""

    worker_killed: float
    worker_over: float
    """Until when its death may have been felt."""
    broker_killed: float
    broker_back: float
    home: float | None
    """When everybody was back at it; None: somebody was not."""
    broker_killed_wall: float
    """The same two by the wall clock, by which Helen tells of incidents."""
    broker_back_wall: float


class DemoObservations(NamedTuple):
    """All that is known when the network has stopped."""

    ledger: DemoCounts
    marks: DemoTimes
    twice: RepeatedTasks
    incident: ObservedIncident | None
    greeted: bool
    """The first calls were answered as they should."""


def judged(seen: DemoObservations) -> Iterator[Promise]:
    """What was promised of a network, in the order of the story."""
    yield _calls(seen)
    yield _worker(seen)
    yield from _broker(seen)
    yield from _tasks(seen)
    yield _incident(seen)


def _calls(seen: DemoObservations) -> Promise:
    totals = seen.ledger.totals()
    right = seen.greeted and totals.answered == totals.asked and not totals.failed and not seen.ledger.wrong
    by = ", ".join(f"{name} {count:,}" for name, count in sorted(seen.ledger.by.items()))
    failed = f", {totals.failed} failed" if totals.failed else ""
    return Promise(f"{totals.answered:,} of {totals.asked:,} calls answered{failed} ({by})", right and len(by) > 0)


def _worker(seen: DemoObservations) -> Promise:
    marks = seen.marks
    longest = seen.ledger.longest_wait(marks.worker_killed, marks.worker_over)
    return Promise(
        f"{VICTIM} killed: calls went on, none waited longer than {longest:.1f} s",
        0.0 < longest <= DEAD_SECONDS,
    )


def _broker(seen: DemoObservations) -> Iterator[Promise]:
    marks, ledger = seen.marks, seen.ledger
    gap = ledger.gap(marks.broker_killed, marks.broker_back)
    meanwhile = sum(marks.broker_killed < at < marks.broker_back for at in ledger.answers)
    yield Promise(
        f"{ONE} killed: {meanwhile} calls went on at {TWO}, the longest gap was {gap:.1f} s",
        gap <= GAP_SECONDS and meanwhile > 0,
    )
    if marks.home is None:
        yield Promise(f"{ONE} back: but not everybody came home", False)
    else:
        yield Promise(f"{ONE} back: everybody was home after {marks.home - marks.broker_back:.1f} s", True)


def _tasks(seen: DemoObservations) -> Iterator[Promise]:
    totals, lost = seen.ledger.totals(), seen.ledger.lost()
    refused = len(seen.ledger.entries) - totals.accepted
    more = f", {refused} not accepted" if refused else ""
    done = totals.accepted - len(lost)
    yield Promise(
        f"{totals.accepted:,} tasks acknowledged, {done:,} finished, {len(lost) or 'none'} lost{more}",
        totals.accepted > 0 and not lost,
    )
    late = with_broker(seen)
    odd = sorted(set(seen.twice.unexplained) - late)
    more = f", and {len(late)} that {ONE} had" if late else ""
    if odd:
        yield Promise(f"tasks ran twice though nobody died with them: {', '.join(map(str, odd[:5]))}", False)
    else:
        yield Promise(f"{seen.twice.in_hand + len(late)} ran twice: {VICTIM} had them in hand when killed{more}", True)


def with_broker(seen: DemoObservations) -> frozenset[int]:
    """Tasks that ran twice because their broker died: it, or its nodes, came back too late for what they had."""
    return frozenset(seen.twice.unexplained) & seen.ledger.under_way(seen.marks.broker_killed)


def _incident(seen: DemoObservations) -> Promise:
    if seen.incident is None or seen.incident.closed is None:
        what = "never opened an incident" if seen.incident is None else "opened an incident, and never closed it"
        return Promise(f"Helen {what} for {DOOR}", False)
    opened = seen.incident.opened - seen.marks.broker_killed_wall
    closed = seen.incident.closed - seen.marks.broker_back_wall
    return Promise(
        f"Helen opened an incident ({DOOR}) {opened:.1f} s after the kill, and closed it"
        f" {max(0.0, closed):.1f} s after {ONE} was back",
        True,
    )


def notes(seen: DemoObservations) -> Iterator[str]:
    """What one must know to read the numbers."""
    marks = seen.marks
    held = seen.ledger.accepted_between(marks.broker_killed, marks.broker_back)
    yield (
        f"On SQLite each broker has its own tasks: those of {ONE} waited for its return, and {held} went to {TWO}"
        " meanwhile. On PostgreSQL a group shares them."
    )


def spark_is_right(computed: Computed, seen: DemoObservations) -> Iterator[Promise]:
    """Do the tables say what we saw?"""
    finished = seen.ledger.totals().accepted - len(seen.ledger.lost())
    yield Promise(
        f"Spark, over both brokers and Helen: {computed.finished:,} tasks finished,"
        f" {computed.retried} handed out again",
        # One that both brokers have, since an acknowledgement died with the first, ends at both.
        0 <= computed.finished - finished <= len(with_broker(seen))
        and (computed.retried > 0 or not seen.twice.in_hand),
    )
    died = [name for name in (VICTIM, ONE) if name in computed.died]
    yield Promise(f"Spark knows who was killed: {', '.join(died) or 'nobody'}", died == [VICTIM, ONE])
    subject = f"{WATCHER}/{DOOR}"
    down = computed.incidents.get(subject)
    yield Promise(
        f"Spark knows the incident: {subject}" + (f", down for {down:.1f} s" if down is not None else " is missing"),
        down is not None,
    )


def spark_notes(computed: Computed, seen: DemoObservations) -> Iterator[str]:
    """Sums of calls are made every ten seconds; those that a killed broker had not yet stored are gone."""
    answered = seen.ledger.totals().answered
    yield (
        f"Spark counts {computed.answered:,} of those {answered:,} calls: they are summed up every ten seconds, and"
        f" {ONE} was killed with sums in memory. The calls were answered."
    )
