"""Tasks as the simulated world knows them: what was submitted, what is done about it, and how it ended.

Lives here: one record per submission, kept by the world, not by any party, and the dice of how a task behaves. Never
here: a message. Invariant: a nonce names one submission for ever and travels in its params, so that whatever a broker
stores or a worker runs can be held against what was asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

FINISH: Final = "finish"
FAIL: Final = "fail"
"""A failure that is final."""
RETRY: Final = "retry"
"""A failure that may be tried again."""
DIE: Final = "die"
"""The worker's process ends with it."""

TASK_ERROR: Final = -32000
"""The code of a task's own error here."""
RESULT_SECONDS: Final = 30 * 86_400.0
"""A wall clock that jumps by a day must not make a result too old to be read."""
HANG_SECONDS: Final = 40.0
PULLED_SECONDS: Final = 15.0
"""The timeout of tasks that may be pulled: an answer that got lost on the way costs so much."""
METHODS: Final = ("t0", "t1")
"""Methods that only tasks have: `t0` has a limit, `t1` is pulled by nodes alone."""


class TaskRecord:
    """One submission."""

    __slots__ = (
        *("accepted", "after", "asked", "cancel_asked", "cancel_told", "client", "ends", "executions", "id", "key"),
        *("kind", "method", "named", "nonce", "options", "refused", "seconds", "told", "told_status", "unknown"),
        *("void", "watched"),
    )

    def __init__(self, nonce: int, client: str, method: str, asked: float) -> None:
        self.nonce = nonce
        self.client = client
        self.method = method
        self.asked = asked
        self.id: str | None = None
        """Under which it is known, or was asked for; None: the broker makes one."""
        self.key: str | None = None
        self.options: dict[str, Any] = {}
        self.after: tuple[TaskRecord, ...] = ()
        self.kind = FINISH
        self.ends: tuple[str, ...] = ()
        """How its first executions end; those after them finish."""
        self.seconds = 0.0
        self.executions: list[tuple[int, str]] = []
        """Attempt and worker of each."""
        self.accepted: float | None = None
        self.refused: int | None = None
        """The code, if its client was told that it will never run."""
        self.unknown = False
        """Its client was told that nobody knows."""
        self.cancel_asked = False
        self.cancel_told = False
        self.named = False
        """A node asked for it by name: it may run out of turn."""
        self.watched = False
        """Its client, alive still, waits to hear of its end."""
        self.told: tuple[int, bytes] | None = None
        """The end that its client heard of."""
        self.told_status: tuple[int, int] = (0, 0)
        """Attempt and code of the status that its client heard last."""
        self.void = False
        """A disk was lost: nothing is promised any more."""

    @property
    def max_attempts(self) -> int:
        """How often it may start."""
        count: int = self.options.get("max_attempts", 3)
        return count

    @property
    def priority(self) -> int:
        """Higher first."""
        priority: int = self.options.get("priority", 4)
        return priority

    @property
    def params(self) -> bytes:
        """What is sent."""
        return b'{"nonce":%d,"pad":"%b"}' % (self.nonce, b"." * (self.nonce * 7 % 60))

    @property
    def error(self) -> bytes:
        """What a worker says when it fails, without `retry`."""
        return b'{"code":%d,"message":"task %d was not to be"' % (TASK_ERROR, self.nonce)

    def begin(self, attempt: int, worker: str) -> tuple[str, float]:
        """A worker starts: how this execution will end, and when."""
        number = len(self.executions)
        self.executions.append((attempt, worker))
        return (self.ends[number] if number < len(self.ends) else FINISH), self.seconds

    def result(self, attempt: int, worker: str) -> bytes:
        """What a worker answers."""
        return b'[%d,%d,"%b"]' % (self.nonce, attempt, worker.encode())


class TaskRecords:
    """All submissions of a world."""

    __slots__ = ("_rng", "by_client", "by_nonce", "strain")

    def __init__(self, rng: random.Random, strain: bool) -> None:
        self._rng = rng
        self.strain = strain
        self.by_nonce: dict[int, TaskRecord] = {}
        self.by_client: dict[str, list[TaskRecord]] = {}

    def make(self, client: str, methods: Sequence[str], asked: float, short: bool) -> TaskRecord:
        """A new submission, its options and its worker's behaviour thrown by dice; `short`: it must end soon."""
        dice = self._rng
        record = TaskRecord(len(self.by_nonce) + 1, client, dice.choice(methods), asked)
        record.options = {"result_ttl": RESULT_SECONDS}
        record.seconds = dice.expovariate(1 / 0.02)
        own = self.by_client.setdefault(client, [])
        self._behave(record, short)
        self._depend(record, own, short)
        if record.method in METHODS:
            record.options.setdefault("timeout", PULLED_SECONDS)
        if dice.random() < 0.3:
            record.options["priority"] = dice.choice((0, 4, 5, 9))
        if dice.random() < 0.15:
            record.options["delay"] = dice.uniform(0.0, 2.0 if short else 12.0)
        if dice.random() < 0.6:
            record.options["notify"] = True
        self.by_nonce[record.nonce] = record
        own.append(record)
        return record

    def _behave(self, record: TaskRecord, short: bool) -> None:
        dice, options = self._rng, record.options
        if not self.strain:
            return
        kind = dice.random()
        if kind < 0.08:
            record.ends = (RETRY,) * dice.randint(1, 2)
            options["backoff"] = dice.choice((0.0, 0.3, 1.0))
        elif kind < 0.12:
            record.ends = (FAIL,)
        elif short:
            pass
        elif kind < 0.15:
            record.ends = (RETRY,) * 20
            options["max_attempts"] = dice.randint(1, 4)
            options["backoff"] = dice.choice((0.0, 0.0, 0.5))
        elif kind < 0.165:
            record.kind = DIE
            record.ends = (DIE,) * 20
            options["max_attempts"] = dice.randint(1, 3)
        elif kind < 0.18:
            record.seconds = HANG_SECONDS
            options["timeout"], options["max_attempts"] = dice.uniform(0.5, 3.0), dice.randint(1, 2)
        elif kind < 0.26:
            record.seconds = dice.uniform(0.3, 5.0)

    def _depend(self, record: TaskRecord, own: Sequence[TaskRecord], short: bool) -> None:
        dice = self._rng
        if own and dice.random() < 0.12:
            chosen = {each.nonce: each for each in (dice.choice(own[-20:]) for _ in range(dice.randint(1, 3)))}
            fit = [each for each in chosen.values() if each.accepted is not None and not each.void and each.id]
            record.after = tuple(each for each in fit if not short or each.told is not None or not each.ends)
            if record.after:
                record.options["after"] = [each.id for each in record.after]
        if dice.random() < 0.10:
            earlier = [each for each in own[-20:] if each.key is not None and each.method == record.method]
            again = bool(earlier) and dice.random() < 0.5
            record.key = dice.choice(earlier).key if again else f"key-{record.nonce}"
            record.options["key"] = record.key
