"""Whether `scale0 demo` kept its promises: what was observed, compared with what was promised.

A promise that could not be checked counts as broken. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.cli.demo.audit import longest_gap

if TYPE_CHECKING:
    from scale0.cli.demo.audit import LoadRecord, RepeatedTasks
    from scale0.cli.demo.report import Computed

ONE: Final = "demo-1"
TWO: Final = "demo-2"
VICTIM: Final = "worker-1"
AGENT: Final = "demo"
BROKER_CHECK: Final = "demo-1-answers"
"""The check that fails while the first broker is dead."""
DEAD_SECONDS: Final = 8.0
"""Within this time another worker must do the work of a dead one: three heartbeats of a second, on a slow machine."""
GAP_SECONDS: Final = 8.0
"""The longest time without any answer: clients of a dead broker are served within 5 s, on a slow machine."""


class Promise(NamedTuple):
    text: str
    kept: bool


class ObservedIncident(NamedTuple):
    """Wall times, as Helen reports them."""

    opened: float
    closed: float | None


class DemoTimes(NamedTuple):
    """Monotonic times, except for the last two."""

    worker_killed: float
    worker_over: float
    """Until when the dead worker may have had an effect."""
    broker_killed: float
    broker_back: float
    home: float | None
    """When all clients were back; None: some were not."""
    broker_killed_wall: float
    broker_back_wall: float


class DemoObservations(NamedTuple):
    record: LoadRecord
    times: DemoTimes
    repeated: RepeatedTasks
    incident: ObservedIncident | None
    first_calls_right: bool


def network_promises(seen: DemoObservations) -> Iterator[Promise]:
    yield _calls(seen)
    yield _worker(seen)
    yield from _broker(seen)
    yield from _tasks(seen)
    yield _incident(seen)


def _calls(seen: DemoObservations) -> Promise:
    record = seen.record
    answered, failures = len(record.answered_at), record.failures.total()
    right = seen.first_calls_right and answered == record.calls and not failures and not record.wrong_answers
    by = ", ".join(f"{name} {count:,}" for name, count in sorted(record.by_worker.items()))
    failed = f", {failures} failed" if failures else ""
    return Promise(f"{answered:,} of {record.calls:,} calls answered{failed} ({by})", right and len(by) > 0)


def _worker(seen: DemoObservations) -> Promise:
    longest = seen.record.longest_wait(seen.times.worker_killed, seen.times.worker_over)
    return Promise(
        f"{VICTIM} killed: calls went on, none waited longer than {longest:.1f} s", 0.0 < longest <= DEAD_SECONDS
    )


def _broker(seen: DemoObservations) -> Iterator[Promise]:
    times, answered_at = seen.times, seen.record.answered_at
    gap = longest_gap(answered_at, times.broker_killed, times.broker_back)
    meanwhile = sum(times.broker_killed < at < times.broker_back for at in answered_at)
    yield Promise(
        f"{ONE} killed: {meanwhile} calls went on at {TWO}, the longest gap was {gap:.1f} s",
        gap <= GAP_SECONDS and meanwhile > 0,
    )
    if times.home is None:
        yield Promise(f"{ONE} back: but not all of its clients returned", False)
    else:
        yield Promise(f"{ONE} back: all of its clients returned within {times.home - times.broker_back:.1f} s", True)


def _tasks(seen: DemoObservations) -> Iterator[Promise]:
    accepted, lost = seen.record.accepted, seen.record.lost()
    refused = len(seen.record.tasks) - accepted
    more = f", {refused} not accepted" if refused else ""
    yield Promise(
        f"{accepted:,} tasks acknowledged, {accepted - len(lost):,} finished, {len(lost) or 'none'} lost{more}",
        accepted > 0 and not lost,
    )
    late = repeated_by_broker(seen)
    unexplained = sorted(set(seen.repeated.unexplained) - late)
    more = f", and {len(late)} in flight at {ONE}" if late else ""
    if unexplained:
        numbers = ", ".join(map(str, unexplained[:5]))
        yield Promise(f"tasks ran twice although no process died with them: {numbers}", False)
    else:
        count = seen.repeated.by_kill + len(late)
        yield Promise(f"{count} ran twice: in flight at {VICTIM} when it was killed{more}", True)


def repeated_by_broker(seen: DemoObservations) -> frozenset[int]:
    """Tasks that ran twice because their broker died: it or its nodes returned too late for them."""
    return frozenset(seen.repeated.unexplained) & seen.record.in_flight(seen.times.broker_killed)


def _incident(seen: DemoObservations) -> Promise:
    if seen.incident is None or seen.incident.closed is None:
        what = "did not open an incident" if seen.incident is None else "opened an incident and did not close it"
        return Promise(f"Helen {what} for {BROKER_CHECK}", False)
    opened = seen.incident.opened - seen.times.broker_killed_wall
    closed = seen.incident.closed - seen.times.broker_back_wall
    return Promise(
        f"Helen opened an incident ({BROKER_CHECK}) {opened:.1f} s after the kill, and closed it"
        f" {max(0.0, closed):.1f} s after {ONE} was back",
        True,
    )


def network_notes(seen: DemoObservations) -> Iterator[str]:
    held = seen.record.accepted_between(seen.times.broker_killed, seen.times.broker_back)
    yield (
        f"With SQLite each broker stores its own tasks: those of {ONE} waited for its return, and {held} new ones"
        f" went to {TWO}. With PostgreSQL the brokers of a group share them."
    )


def spark_promises(computed: Computed, seen: DemoObservations) -> Iterator[Promise]:
    finished = seen.record.accepted - len(seen.record.lost())
    yield Promise(
        f"Spark, over both brokers and Helen: {computed.finished:,} tasks finished,"
        f" {computed.retried} handed out again",
        # A task whose acknowledgement was lost with the first broker is at both brokers, and ends at both.
        0 <= computed.finished - finished <= len(repeated_by_broker(seen))
        and (computed.retried > 0 or not seen.repeated.by_kill),
    )
    died = [name for name in (VICTIM, ONE) if name in computed.died]
    yield Promise(f"Spark finds the killed processes: {', '.join(died) or 'none'}", died == [VICTIM, ONE])
    subject = f"{AGENT}/{BROKER_CHECK}"
    down = computed.incidents.get(subject)
    yield Promise(
        f"Spark finds the incident: {subject}" + (f", down for {down:.1f} s" if down is not None else " is missing"),
        down is not None,
    )


def spark_notes(computed: Computed, seen: DemoObservations) -> Iterator[str]:
    """Request statistics are stored every ten seconds; a killed broker loses those in memory."""
    yield (
        f"Spark counts {computed.answered:,} of those {len(seen.record.answered_at):,} calls: brokers store their"
        f" counts every ten seconds, and {ONE} was killed with counts in memory. The calls were answered."
    )
