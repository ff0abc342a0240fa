"""The records of a task client: futures, submission receipts, waits and queries.

`task_client` fills them, and their owner reads them. Invariants: a future that has ended keeps its value; `tag` belongs
to the owner, and is only handed back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

NEW: Final = 0
"""Submitted, and not acknowledged yet."""
ACCEPTED: Final = 1
"""Stored by the broker, and not known to have ended."""
REFUSED: Final = -1
"""The broker rejected it: it will never run."""
UNKNOWN: Final = -2
"""No acknowledgement came: it may be stored, or not."""
MISSING: Final = -3
"""The broker does not know it (any more), or it belongs to another client."""

CONNECT: Final = "client_connect"
STATUS: Final = "client_task_status"
CANCEL: Final = "client_task_cancel"
WAIT: Final = "client_task_wait"
POLL: Final = "look"
"""A wait with a timeout of 0, in case a notification was lost."""
CHECK: Final = "check"
"""Our own status query: does the task exist?"""
OWN_QUERIES: Final = frozenset({CONNECT, WAIT, POLL})
"""Queries that are made again for each connection, instead of being sent again."""


class TaskFault(msgspec.Struct, frozen=True, gc=False):
    """Why something failed: a JSON-RPC error, or a (positive) code of PROTOCOL 5."""

    code: int
    message: str
    data: bytes = b""
    """JSON; empty if there is none."""


class FutureChanged(msgspec.Struct, frozen=True, gc=False):
    """Notification: what the owner of `tag` waits for has changed."""

    tag: Any


class SubmissionTemplate:
    """The encoded parts that all submissions with one service and one set of options share."""

    __slots__ = ("head", "keyed", "notify", "service", "tail")

    def __init__(self, service: str, head: bytes, tail: bytes, notify: bool, keyed: bool) -> None:
        self.service = service
        self.head = head
        self.tail = tail
        self.notify = notify
        self.keyed = keyed


class TaskFuture:
    """One task, as its client knows it."""

    __slots__ = (
        *("__weakref__", "bound_to", "broker", "ended", "id", "template", "part", "receipt", "sent", "status"),
        *("pushed_on", "tries", "fault", "original", "value", "waits"),
    )

    def __init__(
        self, id_: str, template: SubmissionTemplate | None, receipt: SubmissionReceipt | None, part: bytes
    ) -> None:
        self.id = id_
        self.template = template
        """None if it was submitted elsewhere, or earlier."""
        self.receipt = receipt
        """Set until it is acknowledged."""
        self.part = part
        """The call that submits it, until it is acknowledged."""
        self.status = NEW if template is not None else ACCEPTED
        """One of the above, or FINISHED, FAILED or CANCELLED of `storage.task_rows`."""
        self.ended = False
        self.value = b""
        """The result in JSON."""
        self.fault: TaskFault | None = None
        self.waits: list[FutureWait] | None = None
        self.original: TaskFuture | None = None
        """Its key was used before: the future of the first task with this key."""
        self.broker = ""
        """The broker that has, or may have, it; empty if unknown."""
        self.bound_to = ""
        """The only broker that it may be submitted to; empty: any."""
        self.tries = 0
        """How often it may have been sent."""
        self.sent = 0
        """The number of the connection on which it was last sent."""
        self.pushed_on = 0
        """The number of the connection on which its end will be pushed; on any other, ask for it."""

    def bind(self, broker: str) -> None:
        """Submit it to this broker only; before it is sent."""
        self.broker = self.bound_to = broker

    @property
    def service(self) -> str:
        return self.template.service if self.template is not None else ""


class SubmissionReceipt:
    """Futures that were submitted together, and are acknowledged together."""

    __slots__ = ("bucket", "deadline", "ended", "remaining", "tag")

    def __init__(self, tag: Any, deadline: float) -> None:
        self.tag = tag
        self.deadline = deadline
        self.ended = False
        self.bucket = 0
        self.remaining = 0
        """How many are not acknowledged yet."""


class FutureWait:
    """Waits for futures to end."""

    __slots__ = ("completed", "fault", "tag")

    def __init__(self, tag: Any) -> None:
        self.tag = tag
        self.completed: deque[TaskFuture] = deque()
        """Futures that ended, in order, until the owner removes them."""
        self.fault: TaskFault | None = None
        """Why this wait will get nothing more."""

    @property
    def ended(self) -> bool:
        """True if there is something to read."""
        return bool(self.completed) or self.fault is not None


class TaskQuery:
    """One call about existing tasks."""

    __slots__ = (
        *(
            "answer",
            "broker",
            "bucket",
            "deadline",
            "ended",
            "kind",
            "number",
            "part",
            "sent",
            "tag",
            "futures",
            "tries",
        ),
        "fault",
    )

    def __init__(
        self, kind: str, number: int, part: bytes, deadline: float, tag: Any, futures: Sequence[TaskFuture] = ()
    ) -> None:
        self.kind = kind
        self.number = number
        """The id of its call."""
        self.broker = ""
        """The broker that it is for; empty for any."""
        self.part = part
        self.deadline = deadline
        self.tag = tag
        self.futures = futures
        self.ended = False
        self.bucket = 0
        self.tries = 0
        self.sent = 0
        self.answer = b""
        self.fault: TaskFault | None = None


Call = TaskFuture | TaskQuery
