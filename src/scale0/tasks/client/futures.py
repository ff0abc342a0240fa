"""What a task client keeps of its tasks: tickets, receipts, watches and questions.

Lives here: plain records that `asker` fills and their owner reads. Never here: a frame, a wait, or when anything is
filled. Invariants: a ticket that has ended keeps its value; `tag` is the owner's own and is only handed back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

NEW: Final = 0
"""On its way: nobody has said yet that it is stored."""
ACCEPTED: Final = 1
"""Stored by the broker, and not ended as far as we know."""
REFUSED: Final = -1
"""The broker did not take it: it will never run."""
UNKNOWN: Final = -2
"""No answer came: it may be stored, or not."""
MISSING: Final = -3
"""The broker does not know it (any more), or it is not ours."""

HELLO: Final = "client_connect"
STATUS: Final = "client_task_status"
CANCEL: Final = "client_task_cancel"
WAIT: Final = "client_task_wait"
LOOK: Final = "look"
"""A wait that does not wait: in case a notification got lost."""
CHECK: Final = "check"
"""A status that we ask for ourselves: is it there at all?"""
OWN_QUESTIONS: Final = frozenset({HELLO, WAIT, LOOK})
"""Made anew for each connection, in place of being sent again."""


class TaskFault(msgspec.Struct, frozen=True, gc=False):
    """Why something did not come about: a JSON-RPC error, or our own code of PROTOCOL 5 (a positive one)."""

    code: int
    message: str
    data: bytes = b""
    """JSON; empty: none."""


class FutureChanged(msgspec.Struct, frozen=True, gc=False):
    """News: look again at what you wait for."""

    tag: Any


class SubmissionTemplate:
    """What all tickets of one service and one set of options have in common, ready for the wire."""

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
        *("__weakref__", "at", "ended", "id", "order", "part", "receipt", "sent", "status"),
        *("told_by", "tries", "trouble", "twin", "value", "watches"),
    )

    def __init__(
        self, id_: str, order: SubmissionTemplate | None, receipt: SubmissionReceipt | None, part: bytes
    ) -> None:
        self.id = id_
        self.order = order
        """None: it was submitted elsewhere, or at another time."""
        self.receipt = receipt
        """Until it is acknowledged."""
        self.part = part
        """The call that submits it, until it is acknowledged."""
        self.status = NEW if order is not None else ACCEPTED
        """One of the above, or FINISHED, FAILED or CANCELLED of `storage.task_rows`."""
        self.ended = False
        self.value = b""
        """JSON: what it returned."""
        self.trouble: TaskFault | None = None
        self.watches: list[FutureWait] | None = None
        self.twin: TaskFuture | None = None
        """Its key was used before: the task that it stands for."""
        self.at = ""
        """The broker that has it, or may have it; empty: nobody knows."""
        self.tries = 0
        """How often it may have left."""
        self.sent = 0
        """The connection that it last left on."""
        self.told_by = 0
        """The connection on which its end will be told; another one than the present: ask."""

    @property
    def service(self) -> str:
        """What it was submitted to, if that was here."""
        return self.order.service if self.order is not None else ""


class SubmissionReceipt:
    """Tickets that were submitted together, and wait to be acknowledged together."""

    __slots__ = ("bucket", "deadline", "ended", "left", "tag")

    def __init__(self, tag: Any, deadline: float) -> None:
        self.tag = tag
        self.deadline = deadline
        self.ended = False
        self.bucket = 0
        self.left = 0
        """How many are not answered yet."""


class FutureWait:
    """Somebody who waits for tickets to end."""

    __slots__ = ("came", "tag", "trouble")

    def __init__(self, tag: Any) -> None:
        self.tag = tag
        self.came: deque[TaskFuture] = deque()
        """Those that ended, in that order, until the owner takes them."""
        self.trouble: TaskFault | None = None
        """Why nothing more will come to this watch."""

    @property
    def ended(self) -> bool:
        """True if there is something to be seen."""
        return bool(self.came) or self.trouble is not None


class TaskQuery:
    """One call about tasks that are there already."""

    __slots__ = (
        *("answer", "at", "bucket", "deadline", "ended", "kind", "number", "part", "sent", "tag", "tickets", "tries"),
        "trouble",
    )

    def __init__(
        self, kind: str, number: int, part: bytes, deadline: float, tag: Any, tickets: Sequence[TaskFuture] = ()
    ) -> None:
        self.kind = kind
        self.number = number
        """The id of its call."""
        self.at = ""
        """The broker that it is for; empty: any."""
        self.part = part
        self.deadline = deadline
        self.tag = tag
        self.tickets = tickets
        self.ended = False
        self.bucket = 0
        self.tries = 0
        self.sent = 0
        self.answer = b""
        self.trouble: TaskFault | None = None
