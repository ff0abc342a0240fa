"""The tasks of a simulation: one record for each submission, kept by the world and not by any participant, with the
random behaviour of the task. Invariant: a nonce identifies one submission forever and is part of its params, so that
everything that a broker stores or a worker runs can be compared with the submission."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

FINISH: Final = "finish"
FAIL: Final = "fail"
"""A final failure."""
RETRY: Final = "retry"
"""A failure that may be retried."""
DIE: Final = "die"
"""The worker's process ends with it."""

TASK_ERROR: Final = -32000
"""The code of a task's own error."""
RESULT_SECONDS: Final = 30 * 86_400.0
"""Longer than any clock jump, so that a jump does not expire a result."""
HANG_SECONDS: Final = 40.0
PULLED_SECONDS: Final = 15.0
"""Timeout of tasks that may be pulled: the cost of a lost answer."""
METHODS: Final = ("t0", "t1")
"""Methods that only tasks have: `t0` has a limit, `t1` is only pulled."""


class TaskRecord:
    __slots__ = (
        *("accepted", "after", "asked", "cancel_asked", "cancel_confirmed", "client", "ends", "executions", "id"),
        *("key", "kind", "method", "named", "nonce", "notified", "notified_status", "options", "refused", "seconds"),
        *("unknown", "void", "watched"),
    )

    def __init__(self, nonce: int, client: str, method: str, asked: float) -> None:
        self.nonce = nonce
        self.client = client
        self.method = method
        self.asked = asked
        self.id: str | None = None
        """The id; None: the broker generates one."""
        self.key: str | None = None
        self.options: dict[str, Any] = {}
        self.after: tuple[TaskRecord, ...] = ()
        self.kind = FINISH
        self.ends: tuple[str, ...] = ()
        """How its first executions end; later ones finish."""
        self.seconds = 0.0
        self.executions: list[tuple[int, str]] = []
        """Attempt and worker of each."""
        self.accepted: float | None = None
        self.refused: int | None = None
        """The code, if its client received the refusal of the task."""
        self.unknown = False
        """True if its client received no definite outcome."""
        self.cancel_asked = False
        self.cancel_confirmed = False
        self.named = False
        """A node requested it by id, so it may run out of order."""
        self.watched = False
        """Its client is alive and waits for its end."""
        self.notified: tuple[int, bytes] | None = None
        """The end that was reported to its client."""
        self.notified_status: tuple[int, int] = (0, 0)
        """Attempt and code of the last status that was reported to its client."""
        self.void = False
        """A disk was lost, so no guarantee applies."""

    @property
    def max_attempts(self) -> int:
        count: int = self.options.get("max_attempts", 3)
        return count

    @property
    def priority(self) -> int:
        priority: int = self.options.get("priority", 4)
        return priority

    @property
    def params(self) -> bytes:
        return b'{"nonce":%d,"pad":"%b"}' % (self.nonce, b"." * (self.nonce * 7 % 60))

    @property
    def error(self) -> bytes:
        """The error that a worker reports, without `retry`."""
        return b'{"code":%d,"message":"task %d was not to be"' % (TASK_ERROR, self.nonce)

    def begin(self, attempt: int, worker: str) -> tuple[str, float]:
        """Starts an execution; returns how and when it will end."""
        number = len(self.executions)
        self.executions.append((attempt, worker))
        return (self.ends[number] if number < len(self.ends) else FINISH), self.seconds

    def result(self, attempt: int, worker: str) -> bytes:
        return b'[%d,%d,"%b"]' % (self.nonce, attempt, worker.encode())


class TaskRecords:
    def __init__(self, rng: random.Random, strain: bool) -> None:
        self._rng = rng
        self.strain = strain
        self.by_nonce: dict[int, TaskRecord] = {}
        self.by_client: dict[str, list[TaskRecord]] = {}

    def make(self, client: str, methods: Sequence[str], asked: float, short: bool) -> TaskRecord:
        """Makes a submission with random options and behaviour; `short`: it must end soon."""
        rng = self._rng
        record = TaskRecord(len(self.by_nonce) + 1, client, rng.choice(methods), asked)
        record.options = {"result_ttl": RESULT_SECONDS}
        record.seconds = rng.expovariate(1 / 0.02)
        own = self.by_client.setdefault(client, [])
        self._behave(record, short)
        self._depend(record, own, short)
        if record.method in METHODS:
            record.options.setdefault("timeout", PULLED_SECONDS)
        if rng.random() < 0.3:
            record.options["priority"] = rng.choice((0, 4, 5, 9))
        if rng.random() < 0.15:
            record.options["delay"] = rng.uniform(0.0, 2.0 if short else 12.0)
        if rng.random() < 0.6:
            record.options["notify"] = True
        self.by_nonce[record.nonce] = record
        own.append(record)
        return record

    def _behave(self, record: TaskRecord, short: bool) -> None:
        rng, options = self._rng, record.options
        if not self.strain:
            return
        kind = rng.random()
        if kind < 0.08:
            record.ends = (RETRY,) * rng.randint(1, 2)
            options["backoff"] = rng.choice((0.0, 0.3, 1.0))
        elif kind < 0.12:
            record.ends = (FAIL,)
        elif short:
            pass
        elif kind < 0.15:
            record.ends = (RETRY,) * 20
            options["max_attempts"] = rng.randint(1, 4)
            options["backoff"] = rng.choice((0.0, 0.0, 0.5))
        elif kind < 0.165:
            record.kind = DIE
            record.ends = (DIE,) * 20
            options["max_attempts"] = rng.randint(1, 3)
        elif kind < 0.18:
            record.seconds = HANG_SECONDS
            options["timeout"], options["max_attempts"] = rng.uniform(0.5, 3.0), rng.randint(1, 2)
        elif kind < 0.26:
            record.seconds = rng.uniform(0.3, 5.0)

    def _depend(self, record: TaskRecord, own: Sequence[TaskRecord], short: bool) -> None:
        rng = self._rng
        if own and rng.random() < 0.12:
            chosen = {each.nonce: each for each in (rng.choice(own[-20:]) for _ in range(rng.randint(1, 3)))}
            fit = [each for each in chosen.values() if each.accepted is not None and not each.void and each.id]
            record.after = tuple(each for each in fit if not short or each.notified is not None or not each.ends)
            if record.after:
                record.options["after"] = [each.id for each in record.after]
        if rng.random() < 0.10:
            earlier = [each for each in own[-20:] if each.key is not None and each.method == record.method]
            again = bool(earlier) and rng.random() < 0.5
            record.key = rng.choice(earlier).key if again else f"key-{record.nonce}"
            record.options["key"] = record.key
