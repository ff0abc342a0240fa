"""Simulated task clients: a frontend with the real `TaskClientSession`, and an independent JSON-RPC client. Invariant:
everything that a client receives is passed to the observer."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from scale0.kernel.clock import Now
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED
from scale0.tasks.client.futures import (
    CANCEL,
    MISSING,
    REFUSED,
    STATUS,
    UNKNOWN,
    FutureWait,
    SubmissionReceipt,
    TaskFuture,
    TaskQuery,
)
from scale0.tasks.client.subscriptions import ENDS
from scale0.tasks.client.task_client import TaskClientSession
from scale0.tasks.jsonrpc.messages import BAD_TASK
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects
from simulator.network.client_connection import Connect, SimLink
from simulator.network.connections import Route
from simulator.network.raw_jsonrpc_client import Answer, Pushed, RawSession
from simulator.network.task_records import TaskRecord, TaskRecords
from simulator.virtual_time import Agenda

PATIENCE_SECONDS: Final = 25.0
"""Timeout of a submission."""
ADOPTED: Final = 6
"""Tasks of its previous process that a restarted client asks for."""
WAIT_IDS: Final = 20


class Onlooker(Protocol):
    """The observer interface: see `simulator.invariants.tasks`."""

    def accepted(self, record: TaskRecord, id_: str) -> None: ...
    def refused(self, record: TaskRecord, code: int, message: str) -> None: ...
    def unknown(self, record: TaskRecord) -> None: ...
    def told(self, client: str, id_: str, status: int, body: bytes) -> None: ...
    def missing(self, client: str, id_: str) -> None: ...
    def status_told(self, client: str, said: dict[str, Any]) -> None: ...
    def cancel_told(self, client: str, id_: str) -> None: ...
    def pushed_at(self, client: str) -> None: ...


class ClientSurroundings:
    """What every task client needs from its world."""

    __slots__ = ("agenda", "methods", "records", "short", "watch")

    def __init__(
        self,
        agenda: Agenda,
        records: TaskRecords,
        watch: Onlooker,
        methods: tuple[str, ...],
        short: Callable[[], bool],
    ) -> None:
        self.agenda = agenda
        self.records = records
        self.watch = watch
        self.methods = methods
        self.short = short
        """If it returns True, only tasks that end soon are made."""

    def make(self, client: str) -> TaskRecord:
        return self.records.make(client, self.methods, self.agenda.now, self.short())


class TaskCaller:
    """The task activity of one frontend; `begin` is called for each process."""

    __slots__ = ("_around", "_node", "_rng", "asker", "client")

    def __init__(self, around: ClientSurroundings, node: Any, rng: random.Random) -> None:
        self._around = around
        self._node = node
        self._rng = rng
        self.client: str = node.name
        self.asker = TaskClientSession(self.client, rng)

    @property
    def _session(self) -> FrontendSession:
        session: FrontendSession = self._node.session
        return session

    def begin(self) -> TaskClientSession:
        """Starts a process, which knows nothing but its name."""
        self.asker = TaskClientSession(self.client, self._rng)
        return self.asker

    def adopt(self) -> None:
        """Asks for some tasks of the previous process."""
        own = self._around.records.by_client.get(self.client, ())
        open_ = [each for each in own if each.accepted is not None and each.told is None and not each.void]
        for record in open_[-ADOPTED:]:
            if record.id is not None:
                record.watched = True
                self._ride(lambda now, id_=record.id: self._watch(self.asker.future_of(id_), now))  # type: ignore[misc]

    def vanish(self) -> None:
        """Ends the process: its waits end."""
        for record in self._around.records.by_client.get(self.client, ()):
            record.watched = False

    def submit(self) -> None:
        record = self._around.make(self.client)
        order = self.asker.template(record.method, record.options)
        watching = self._rng.random() < 0.8

        def do(now: Now) -> None:
            tag: dict[str, Any] = {"record": record}
            watch = FutureWait({"watch": True}) if watching else None
            if watch is not None:
                watch.tag["watch"] = watch
                record.watched = True
            receipt, tickets = self.asker.submit(order, [record.params], PATIENCE_SECONDS, tag, now, watch)
            tag["receipt"], tag["ticket"] = receipt, tickets[0]
            record.id = tickets[0].id

        self._ride(do)

    def look(self, record: TaskRecord) -> None:
        self._ask(STATUS, record)

    def cancel(self, record: TaskRecord) -> None:
        record.cancel_asked = True
        self._ask(CANCEL, record)

    def heard(self, tag: dict[str, Any]) -> None:
        """Handles a response to the request with this tag."""
        if "watch" in tag:
            watch: FutureWait = tag["watch"]
            while watch.completed:
                self._came(watch.completed.popleft())
        elif "question" in tag:
            self._answered(tag["question"], tag["id"])
        else:
            self._receipt(tag["record"], tag["ticket"], tag["receipt"])

    def _ask(self, kind: str, record: TaskRecord) -> None:
        def do(now: Now) -> None:
            tag: dict[str, Any] = {"id": record.id}
            tag["question"] = self.asker.query(kind, record.id or "", PATIENCE_SECONDS, tag, now)

        self._ride(do)

    def _ride(self, do: Callable[[Now], None]) -> None:
        if self._node.link is not None:
            session = self._session
            self._node.link.act(lambda now, out: session.run_sub_protocol(do, now, out))

    def _watch(self, ticket: TaskFuture, now: Now) -> None:
        watch = FutureWait({"watch": True})
        watch.tag["watch"] = watch
        self.asker.add_wait(watch, [ticket], now)

    def _receipt(self, record: TaskRecord, ticket: TaskFuture, _: SubmissionReceipt) -> None:
        watch = self._around.watch
        if ticket.status == REFUSED and ticket.fault is not None:
            watch.refused(record, ticket.fault.code, ticket.fault.message)
        elif ticket.status == UNKNOWN:
            watch.unknown(record)
        elif ticket.status != MISSING:
            watch.accepted(record, (ticket.original or ticket).id)

    def _came(self, ticket: TaskFuture) -> None:
        watch = self._around.watch
        if ticket.status in (FINISHED, FAILED, CANCELLED):
            body = ticket.value
            if ticket.fault is not None:
                body = b"%d" % ticket.fault.code
            watch.told(self.client, ticket.id, ticket.status, body)
        elif ticket.status == MISSING:
            watch.missing(self.client, ticket.id)

    def _answered(self, question: TaskQuery, id_: str) -> None:
        watch = self._around.watch
        if question.fault is not None:
            if question.fault.code == BAD_TASK:
                watch.missing(self.client, id_)
        elif question.kind == STATUS:
            watch.status_told(self.client, msgspec.json.decode(question.answer))
        else:
            watch.cancel_told(self.client, id_)


class RawClient:
    """A task client with its own JSON-RPC implementation, across all its processes."""

    __slots__ = (
        *("_around", "_rng", "_connect", "_delimiter", "_endpoint", "_looks", "_onlooker", "_serial", "link"),
        *("name", "route", "session"),
    )

    def __init__(
        self,
        around: ClientSurroundings,
        connect: Connect,
        onlooker: Any,
        route: Route,
        rng: random.Random,
        endpoint: str,
    ) -> None:
        self._around = around
        self._connect = connect
        self._onlooker = onlooker
        self._rng = rng
        self._endpoint = endpoint
        self._delimiter = rng.random() < 0.3
        self._serial = 0
        self._looks = 0
        self.name = route.name
        self.route = route
        self.link: SimLink | None = None

    @property
    def up(self) -> bool:
        return self.link is not None and not self.link.ended

    def start(self) -> None:
        self.session = session = RawSession(self._endpoint, ("client_connect", [self.name]), self._rng, self._delimiter)
        heard = partial(self._heard, session)
        self.link = SimLink(self._around.agenda, self.route, session, self._connect, heard, self._onlooker, 0.0)
        self.link.act(session.start)
        self.link.later(1.0 + self._rng.random(), self._look)

    def vanish(self, silent: bool) -> None:
        if self.link is not None and self.up:
            self.link.kill(silent)

    def submit(self) -> None:
        """Submits a task with its own id or, with a key, with an id that the broker generates."""
        record = self._around.make(self.name)
        if record.key is None or self._rng.random() < 0.5:
            self._serial += 1
            record.id = f"{self.name}-{self._serial}"
        params = [self.name, record.method, msgspec.json.decode(record.params), record.id, record.options]
        self._call("client_new_task", params, ("submit", record))
        if self._rng.random() < 0.05 and record.id is not None:
            # The same submission again: the broker must refuse it or return the same task.
            self._call("client_new_task", params, ("again", record))

    def look(self, record: TaskRecord) -> None:
        self._call("client_task_status", [self.name, record.id], ("status", record.id))

    def cancel(self, record: TaskRecord) -> None:
        record.cancel_asked = True
        self._call("client_task_cancel", [self.name, record.id], ("cancel", record.id))

    def _call(self, method: str, params: Any, tag: Any) -> None:
        session = self.session
        if self.link is not None:
            self.link.act(lambda now, out: session.call(method, params, tag, now, out))

    def _look(self, now: Now, out: SessionEffects) -> None:
        """Waits for open tasks, a few at a time."""
        self._looks += 1
        own = self._around.records.by_client.get(self.name, ())
        open_ = [each.id for each in own if each.accepted is not None and each.told is None and not each.void]
        waits = any(call.tag[0] == "wait" for call in self.session.calls.values())
        if open_ and not waits:
            ids = open_[:WAIT_IDS] if self._looks % 2 else open_[-WAIT_IDS:]
            self.session.call("client_task_wait", [self.name, ids, 5.0], ("wait", ids), now, out, 12.0)
        if self.link is not None:
            self.link.later(self._rng.uniform(1.0, 5.0), self._look)

    def _heard(self, session: RawSession, news: list[Any]) -> None:
        for item in news:
            if session is not self.session:
                continue
            if isinstance(item, Pushed):
                if self._delimiter:
                    self._around.watch.pushed_at(self.name)
                self._row(item.params)
            elif isinstance(item, Answer):
                self._answered(item)

    def _answered(self, item: Answer) -> None:
        watch = self._around.watch
        match item.tag[0], item.code:
            case "submit", 0:
                watch.accepted(item.tag[1], item.result)
            case "submit", code if code == BAD_TASK and item.tries > 1 and not item.tag[1].after:
                watch.accepted(item.tag[1], item.tag[1].id)
            case "submit", code if item.tries > 1 and code == BAD_TASK:
                watch.unknown(item.tag[1])
            case "submit", code:
                watch.refused(item.tag[1], code, "")
            case "wait", 0:
                for row in item.result:
                    self._row(row)
            case "status", 0:
                watch.status_told(self.name, item.result)
            case "cancel", 0:
                watch.cancel_told(self.name, item.tag[1])
            case (("status" | "cancel"), code) if code == BAD_TASK:
                watch.missing(self.name, item.tag[1])
            case _:
                pass

    def _row(self, row: dict[str, Any]) -> None:
        if "error" in row:
            body = b"%d" % row["error"]["code"]
        elif "result" in row:
            body = msgspec.json.encode(row["result"])
        else:
            return
        self._around.watch.told(self.name, row["task_id"], ENDS[row["status"]], body)
