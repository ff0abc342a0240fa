"""The invariants that every simulated network must keep, by name, and the error of a violation."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Final

PROMISES: Final = {
    "ends-once": "every call ends in exactly one answer or failure",
    "ends-in-time": "every call ends by its timeout and one grace",
    "runs-once": "a request is run again only if it may be retried, and only after a loss",
    "own-answer": "an answer belongs to the request that it answers",
    "whole-answer": "an answer in parts has all of them, in order, from one execution",
    "true-failure": "a failure states its cause: no handler's error without one, no failure without a fault",
    "silence-noticed": "a silent backend is declared dead within interval x (liveness + 1) + 0.25 s",
    "never-too-early": "no client is declared dead before interval x liveness of silence",
    "clock-kills-nobody": "only a client whose own clock is wrong is disconnected for it",
    "no-false-refusal": "an honest client is never refused for invalid input",
    "slots": "a backend never receives more work than its slots, in all or of one service",
    "no-leak": "when the network is idle, no request, slot or wait is left",
    "one-place": "a backend is once in each queue of its services, and in all of them while it has a free slot",
    "lru": "work goes to the free backend that received work least recently",
    "back-after-healing": "after healing every backend is back in its queues within the backoff and three heartbeats",
    "answered-again": "after healing every call is answered",
    "stored-then-sent": "acknowledged and published data is on disk, and survives every crash that the disk survives",
    "versions-forward": "no client returns to an older configuration",
    "journal": "the journal has no gaps over restarts, and its time never goes back within a boot",
    "sessions-pair-up": "a session begins before it changes or ends, and ends before it begins again",
    "bounded-memory": "records and timers stay in proportion to the clients",
    "task-never-lost": "a task that was acknowledged is known until its result is too old",
    "task-once": "the same id or key never makes two tasks",
    "task-one-lease": "an attempt is leased to one worker only",
    "task-one-result": "a task ends once, and its published end never changes",
    "task-own-result": "a result belongs to the task that it ends, and only its client receives it",
    "task-newest-attempt": "only the newest attempt, from the worker that holds it, ends a task",
    "task-attempts": "a task starts at most max_attempts times, and no counted start is forgotten",
    "task-true-end": "a task ends as it went: no failure without one, no cancelling unasked, nothing refused runs",
    "task-status-forward": "a published status never goes back, except to queued",
    "task-order": "tasks of one submitter, method and priority are handed out in the order in which they were accepted",
    "task-priority": "of one method, the more urgent task is handed out first",
    "task-after": "a task is handed out after its dependencies have finished",
    "task-not-before": "a task is handed out neither before its delay nor before its backoff is over",
    "task-concurrency": "no more tasks of a method are handed out than its limit says",
    "task-not-stuck": "no task waits while a live backend has room for it, whatever announcements were lost",
    "task-moved": "a dead worker holds no task after interval x (liveness + 1) + 0.25 s",
    "task-room": "a backend never gets a task beyond slots + prefetch, in all and of each service",
    "task-stored-then-sent": "what is published of a task, its lease included, is on disk at that moment",
    "task-accepted-again": "after healing every submission is accepted",
    "task-ends": "after healing every task that was stored ends",
    "task-notified": "a live client that waits for a task is notified of its end",
    "task-no-leak": "when the network is idle, no lease, slot, wait or task is left in memory",
    "task-memory": "tasks in memory stay within the windows",
    "task-journal": "each task has one task.submitted, and one task.completed when it has ended",
    "agent-result-once": "a result that was spooled and not discarded is recorded, and by no Helen twice",
    "agent-true-result": "what is recorded is what the agent found, at the time at which it found it",
    "agent-stored-then-acked": "nothing is acknowledged, and no check answered, before it is on Helen's disk",
    "agent-sequence": "reports are numbered without gaps on each connection, and an ack refers to sent reports",
    "agent-one-connection": "a Helen has one live connection for each identity",
    "agent-old-messages": "an agent of version 1 receives no message of version 2",
    "agent-asked-ends": "every helen.check ends once and in time: with its result, or an error that says why not",
    "agent-asked-once": "a requested check runs at most once, and its result is its own",
    "agent-revoked": "a revoked certificate has no connection one second later",
    "agent-schedule": "an agent runs the checks that its labels select, whatever is silenced",
    "agent-back": "all agents are back within 60 s of Helen's restart",
    "agent-times": "no event lies after its recording, and no duration is negative",
    "agent-no-leak": "when the network is idle, Helen waits for nothing",
    "check-state": "soft, hard, attempts and flapping follow from the recorded results, and old ones move nothing",
    "check-incident": "an incident opens when a check is down, and closes when it is up or gone",
    "check-incident-once": "of all Helens, one closes an incident and sends its recovery, once",
    "check-notice": "handlers are notified of every hard change, and of nothing that is suppressed",
    "check-notice-once": "a notification is stored before it is submitted, and becomes one task",
    "check-notice-direct": "a notification is delivered directly or by the queue, never both, and once if Helen lives",
    "progress": "not everything fails",
    "no-exception": "no input and no fault raises out of a machine",
}


class PromiseBroken(Exception):
    """A violated invariant; `name` is one of PROMISES."""

    def __init__(self, name: str, story: str) -> None:
        super().__init__(f"{name}: {story}")
        self.name = name
        self.story = story


def broken(name: str, story: str) -> PromiseBroken:
    """Returns the error; raises AssertionError for an unknown name."""
    if name not in PROMISES:
        raise AssertionError(f"{name} is not a promise")
    return PromiseBroken(name, story)


def violation_of(*steps: Callable[[], None]) -> tuple[str, str]:
    """Runs these steps to the end, or to the first violation: the name of the invariant, and what happened."""
    try:
        for step in steps:
            step()
    except PromiseBroken as failure:
        return failure.name, failure.story
    except Exception:
        return "no-exception", traceback.format_exc()
    return "", ""


def replay_command(seed: str, minutes: float, only: Sequence[str]) -> str:
    """The command that reproduces a run."""
    faults = f" --faults {','.join(only)}" if only else ""
    return f"python -m simulator.main --seed {seed} --minutes {minutes:g}{faults} --trace"


def verdict(broken: str, story: str, at: float, command: str) -> Iterator[str]:
    """The last lines of a report."""
    if broken:
        yield f"  BROKEN    at {at:.6f}: {broken}: {story}"
        yield f"            ({PROMISES[broken]})"
        yield f"            {command}"
    else:
        yield f"  kept      all {len(PROMISES)} promises"
