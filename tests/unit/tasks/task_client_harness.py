"""A task client's session on a bench: a frontend with a rider, and a broker that answers when the test lets it.

Lives here: what the tests of the asker share. Never here: a promise.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from scale0.kernel.limits import Limits
from scale0.tasks.client.futures import FutureChanged, FutureWait, SubmissionReceipt, TaskFuture, TaskQuery
from scale0.tasks.client.task_client import TaskClientSession
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects
from tests.processes.client.bench import Bench
from tests.unit.tasks.model import TaskBroker

PLACE = "tcp://127.0.0.1:5700"
GRAIN_SECONDS = 1 / 32


class Sent(NamedTuple):
    """What was submitted together."""

    receipt: SubmissionReceipt
    futures: list[TaskFuture]

    @property
    def ended(self) -> bool:
        return self.receipt.ended


class TaskClientHarness(Bench):
    """A frontend with a task client, and a broker that answers when the test lets it."""

    def __init__(self, patience: float | None = None, limits: Limits | None = None) -> None:
        self.tasks = TaskClientSession("me", random.Random(5), limits)
        self.frontend = FrontendSession([PLACE], None, random.Random(3), patience, sub_protocol=self.tasks)
        super().__init__(self.frontend)
        self.broker = TaskBroker()
        self.act("start")
        self.ack()

    def submit(self, *bodies: bytes, watch: FutureWait | None = None, timeout: float = 30.0, **options: Any) -> Sent:
        id_ = options.pop("id", None)
        order = self.tasks.template(options.pop("service", "s"), {"notify": True, **options})
        made: list[Sent] = []
        submit = self.tasks.submit
        self.run_task_action(lambda now: made.append(Sent(*submit(order, bodies, timeout, "r", now, watch, id_))))
        return made[0]

    def ask(self, kind: str, id_: str, timeout: float = 30.0) -> TaskQuery:
        made: list[TaskQuery] = []
        self.run_task_action(lambda now: made.append(self.tasks.query(kind, id_, timeout, "q", now)))
        return made[0]

    def watch(self, *held: TaskFuture, tag: str = "w") -> FutureWait:
        watch = FutureWait(tag)
        self.run_task_action(lambda now: self.tasks.add_wait(watch, held, now))
        return watch

    def run_task_action(self, do: Any) -> None:
        self.act("run_sub_protocol", do)

    def frames(self) -> list[bytes]:
        """The JSON-RPC frames since the last time."""
        return ready(self.hush())

    def serve(self) -> None:
        """The broker reads all that was said, and its answers arrive, until nothing more is said."""
        while frames := self.frames():
            for frame in frames:
                for answer in self.broker.hear(frame):
                    self.tell(answer)

    def tell(self, frame: bytes) -> None:
        out = SessionEffects()
        self.session.receive([frame], self.now, out)
        self._perform(out)

    def lose(self) -> None:
        """The connection is gone, with all that is on it."""
        self.broker.waits.clear()
        self.act("closed", "the cable")

    def back(self) -> None:
        """The connection is back, and taken in."""
        self.hush()
        self.reopen()
        self.ack()

    def told(self, tag: str) -> int:
        return sum(one.tag == tag for one in self.take(FutureChanged))


def ready(said: list[Any]) -> list[bytes]:
    """The ready frames among what was said."""
    return [message[0] for message in said if isinstance(message, list)]


def one(receipt: Sent) -> TaskFuture:
    [future] = receipt.futures
    return future


def states(receipt: Sent) -> list[int]:
    return [future.status for future in receipt.futures]
