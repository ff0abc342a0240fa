"""Completion waits: `client_task_wait`, `notify`, and result notifications. Invariants: a wait is answered exactly
once, at the latest at its deadline; an end is reported only after it was stored; a REQ socket receives nothing but
replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_rows import FINISHED, STATUS_NAMES, EndedTask
from scale0.tasks.core.publisher import TaskPublisher
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import QUEUE_FULL, RpcError, notification

TASK_COMPLETE: Final = b"zerotask.client.task_complete"
MAX_CONNECTION_WAITS: Final = 1_000
"""Unanswered client_task_wait calls of one connection."""
WAIT_ID_BYTES: Final = 400
"""What an id in a wait needs beside its characters: measured, with tasks for which nobody else waits."""
WAIT_BYTES: Final = 1_280
"""What the call of a wait needs beside its JSON-RPC id: measured."""
MAX_AWAY: Final = 100_000
"""Tasks that other brokers may end and whose ends are pushed to a connection here; clients must poll for any more."""
MAX_ARRAY_BYTES: Final = 4 * 1024 * 1024
"""Size limit of notifications that are sent as one array."""

NUMBER_BITS: Final = 62
"""Connections are numbered from a random start of this many bits, because a clock that is set back would repeat
numbers."""

Resolve = Callable[[list[bytes], bool, Now, Effects], None]
"""Gets the ends, and whether some were left out."""


class CompletionWait:
    __slots__ = ("bucket", "bytes", "complete", "connection", "ended", "ids", "more", "ready", "resolve")

    def __init__(self, connection: Connection, ids: tuple[str, ...], resolve: Resolve, id_bytes: int) -> None:
        self.connection = connection
        self.ids = ids
        self.bytes = sum(map(len, ids)) + WAIT_ID_BYTES * len(ids) + WAIT_BYTES + id_bytes
        self.resolve = resolve
        self.complete: dict[str, bytes] = {}
        self.more = False
        """Results of other tasks were not read: the next wait returns them."""
        self.ready = False
        """True once the store has been asked about all tasks that are not in memory."""
        self.ended = False
        self.bucket = 0


class CompletionWaits:
    def __init__(self, state: BrokerState, publisher: TaskPublisher) -> None:
        self._state = state
        self._publisher = publisher
        self._connections: dict[int, Any] = {}
        self._next_number: int = state.rng.getrandbits(NUMBER_BITS)
        self._notes: dict[Any, list[bytes]] = {}
        self._waits: dict[str, dict[CompletionWait, None]] = {}
        self._per_connection: dict[Any, int] = {}
        self._answered: dict[Any, int] = {}
        """Bytes of the ends with which the waits of a connection were answered in this turn."""
        self._away: dict[str, int] = {}
        """Tasks that are not in memory, by id: the number of the connection to notify of their end."""
        self.waiting = 0
        self.bytes = 0
        """What all waits need in memory."""
        self._of_owner: dict[Any, int] = {}
        """The part of it that each key needs; without keys, each connection."""

    def number(self, connection: Connection) -> int:
        """Returns the number of a connection that wants notifications; assigns one if needed."""
        if not connection.number:
            self._next_number += 1
            connection.number = self._next_number
            self._connections[connection.number] = connection
        number: int = connection.number
        return number

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        self._notes.pop(connection, None)
        connection.number = 0

    def ended(self, task: QueuedTask, status: int, body: bytes, now: Now, effects: Effects) -> None:
        """Notifies the waiting connections that a task has ended, after the end is stored."""
        if self._away:
            self._away.pop(task.id, None)
        self._notify(task, task.kept.notify, status, body, now, effects)

    def leaves(self, task: QueuedTask) -> None:
        """Records that a task of a shared store leaves memory and that another broker may end it."""
        number = task.kept.notify
        if number in self._connections and len(self._away) < MAX_AWAY:
            self._away[task.id] = number

    def wanted(self) -> tuple[str, ...]:
        """Returns the tasks whose end a live connection waits for, in memory or not."""
        for id_ in [id_ for id_, number in self._away.items() if number not in self._connections]:
            del self._away[id_]
        return (*self._waits, *self._away)

    def ended_elsewhere(self, row: EndedTask, status: int, body: bytes, now: Now, effects: Effects) -> None:
        """Handles a task that another broker of the shared store has ended."""
        self._notify(row, self._away.pop(row.id, 0), status, body, now, effects)

    def _notify(
        self, task: QueuedTask | EndedTask, number: int, status: int, body: bytes, now: Now, effects: Effects
    ) -> None:
        if number:
            connection = self._connections.get(number)
            if connection is not None:
                if connection.waits > 0:
                    connection.waits -= 1
                if connection.takes_pushes:
                    note = notification(TASK_COMPLETE, entry(task.id, status, body))
                    notes = self._notes.get(connection)
                    if notes is None:
                        self._notes[connection] = [note]
                    else:
                        notes.append(note)
        if self._publisher.topics:
            self._publisher.ended(task, STATUS_NAMES[status], effects)
        if task.id in self._waits:
            result = entry(task.id, status, body)
            for wait in self._waits.pop(task.id):
                wait.complete[task.id] = result
                if wait.ready:
                    self._resolve(wait, now, effects)

    def settle(self, effects: Effects) -> None:
        """Sends the notifications of this turn, as one array for each connection where allowed."""
        self._answered.clear()
        if not self._notes:
            return
        notes, self._notes = self._notes, {}
        for connection, pending in notes.items():
            if not connection.arrays or len(pending) == 1:
                for note in pending:
                    effects.promise(connection, [note])
                continue
            part: list[bytes] = []
            size = 0
            for note in pending:
                part.append(note)
                size += len(note)
                if size > MAX_ARRAY_BYTES:
                    effects.promise(connection, [b"[%b]" % b",".join(part)])
                    part, size = [], 0
            if part:
                effects.promise(connection, [b"[%b]" % b",".join(part)])

    def wait(self, connection: Connection, ids: tuple[str, ...], resolve: Resolve, id_bytes: int) -> CompletionWait:
        """Registers a wait; `ready` becomes true when all its tasks are known to be open. `id_bytes`: length of the
        JSON-RPC id of the call."""
        if self._per_connection.get(connection, 0) >= MAX_CONNECTION_WAITS:
            raise RpcError(QUEUE_FULL, f"a connection waits at most {MAX_CONNECTION_WAITS} times at once")
        wait = CompletionWait(connection, tuple(dict.fromkeys(ids)), resolve, id_bytes)
        owner, limits = connection.sender or connection, self._state.limits
        own = self._of_owner.get(owner, 0) + wait.bytes
        key_most = limits.max_key_wait_bytes or (limits.max_wait_bytes + 1) // 2
        for used, most, limit, whose in (
            (own, key_most, "max_key_wait_bytes", "your waits"),
            (self.bytes + wait.bytes, limits.max_wait_bytes, "max_wait_bytes", "all waits together"),
        ):
            if used > most:
                reason = f"{whose} may need {most} bytes ({limit}): wait for fewer tasks at once, or raise {limit}"
                raise RpcError(QUEUE_FULL, reason)
        self._of_owner[owner] = own
        self.bytes += wait.bytes
        for id_ in wait.ids:
            self._waits.setdefault(id_, {})[wait] = None
        self._per_connection[connection] = self._per_connection.get(connection, 0) + 1
        connection.waits += 1
        self.waiting += 1
        return wait

    def begin(self, wait: CompletionWait, timeout: float, now: Now, effects: Effects) -> None:
        """Answers the wait if one of its tasks is complete; otherwise answers it at its timeout."""
        wait.ready = True
        if wait.complete or timeout <= 0.0:
            self._resolve(wait, now, effects)
        else:
            wait.bucket = self._state.timers.add((self._over, wait), now.mono + timeout)

    def drop(self, wait: CompletionWait) -> None:
        if wait.ended:
            return
        wait.ended = True
        wait.connection.waits -= 1
        self.waiting -= 1
        self.bytes -= wait.bytes
        owner = wait.connection.sender or wait.connection
        self._of_owner[owner] -= wait.bytes
        if not self._of_owner[owner]:
            del self._of_owner[owner]
        self._per_connection[wait.connection] -= 1
        if not self._per_connection[wait.connection]:
            del self._per_connection[wait.connection]
        if wait.bucket:
            self._state.timers.remove((self._over, wait), wait.bucket)
        for id_ in wait.ids:
            waits = self._waits.get(id_)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._waits[id_]

    def _over(self, wait: CompletionWait, now: Now, effects: Effects) -> None:
        wait.bucket = 0
        self._resolve(wait, now, effects)

    def _resolve(self, wait: CompletionWait, now: Now, effects: Effects) -> None:
        if wait.ended:
            return
        self.drop(wait)
        if not self._state.serving:
            return
        results = [wait.complete[id_] for id_ in wait.ids if id_ in wait.complete]
        answered = self._answered.get(wait.connection, 0)
        if results and answered > self._state.limits.max_client_bytes:
            # The connection has many waits for the same tasks: it must read these answers before it gets more.
            wait.resolve([], True, now, effects)
            return
        self._answered[wait.connection] = answered + sum(map(len, results))
        wait.resolve(results, wait.more, now, effects)


def entry(id_: str, status: int, body: bytes) -> bytes:
    key = b"result" if status == FINISHED else b"error"
    return b'{"task_id":"%b","status":"%b","%b":%b}' % (id_.encode(), STATUS_NAMES[status].encode(), key, body)
