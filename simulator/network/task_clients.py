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


class TaskObserver(Protocol):
    """The observer interface: see `simulator.invariants.tasks`."""

    def accepted(self, record: TaskRecord, id_: str) -> None: ...
    def refused(self, record: TaskRecord, code: int, message: str) -> None: ...
    def unknown(self, record: TaskRecord) -> None: ...
    def notified(self, client: str, id_: str, status: int, body: bytes) -> None: ...
    def missing(self, client: str, id_: str) -> None: ...
    def status_notified(self, client: str, status: dict[str, Any], before: tuple[int, int]) -> None: ...
    def cancel_confirmed(self, client: str, id_: str) -> None: ...
    def pushed_at(self, client: str) -> None: ...


class ClientSurroundings:
    """What every task client needs from its world."""

    def __init__(
        self,
        agenda: Agenda,
        records: TaskRecords,
        observer: TaskObserver,
        methods: tuple[str, ...],
        short: Callable[[], bool],
    ) -> None:
        self.agenda = agenda
        self.records = records
        self.observer = observer
        self.methods = methods
        self.short = short
        """If it returns True, only tasks that end soon are made."""

    def make(self, client: str) -> TaskRecord:
        return self.records.make(client, self.methods, self.agenda.now, self.short())


class TaskCaller:
    """The task activity of one frontend; `begin` is called for each process."""

    def __init__(self, surroundings: ClientSurroundings, node: Any, rng: random.Random) -> None:
        self._surroundings = surroundings
        self._node = node
        self._rng = rng
        self.client: str = node.name
        self.task_session = TaskClientSession(self.client, rng)

    @property
    def _session(self) -> FrontendSession:
        session: FrontendSession = self._node.session
        return session

    def begin(self) -> TaskClientSession:
        """Starts a process, which knows nothing but its name."""
        self.task_session = TaskClientSession(self.client, self._rng)
        return self.task_session

    def adopt(self) -> None:
        """Asks for some tasks of the previous process."""
        own = self._surroundings.records.by_client.get(self.client, ())
        open_ = [each for each in own if each.accepted is not None and each.notified is None and not each.void]
        for record in open_[-ADOPTED:]:
            if record.id is not None:
                record.watched = True
                self._run_on_tasks(lambda now, id_=record.id: self._wait_for(self.task_session.future_of(id_), now))  # type: ignore[misc]

    def vanish(self) -> None:
        """Ends the process: its waits end."""
        for record in self._surroundings.records.by_client.get(self.client, ()):
            record.watched = False

    def submit(self) -> None:
        record = self._surroundings.make(self.client)
        template = self.task_session.template(record.method, record.options)
        watching = self._rng.random() < 0.8

        def do(now: Now) -> None:
            tag: dict[str, Any] = {"record": record}
            wait = FutureWait({"wait": True}) if watching else None
            if wait is not None:
                wait.tag["wait"] = wait
                record.watched = True
            receipt, futures = self.task_session.submit(template, [record.params], PATIENCE_SECONDS, tag, now, wait)
            tag["receipt"], tag["future"] = receipt, futures[0]
            record.id = futures[0].id

        self._run_on_tasks(do)

    def query_status(self, record: TaskRecord) -> None:
        self._ask(STATUS, record)

    def cancel(self, record: TaskRecord) -> None:
        record.cancel_asked = True
        self._ask(CANCEL, record)

    def receive(self, tag: dict[str, Any]) -> None:
        """Handles a response to the request with this tag."""
        if "wait" in tag:
            wait: FutureWait = tag["wait"]
            while wait.completed:
                self._ended(wait.completed.popleft())
        elif "question" in tag:
            self._answered(tag["question"], tag["id"], tag["before"])
        else:
            self._receipt(tag["record"], tag["future"], tag["receipt"])

    def _ask(self, kind: str, record: TaskRecord) -> None:
        def do(now: Now) -> None:
            tag: dict[str, Any] = {"id": record.id, "before": record.notified_status}
            tag["question"] = self.task_session.query(kind, record.id or "", PATIENCE_SECONDS, tag, now)

        self._run_on_tasks(do)

    def _run_on_tasks(self, do: Callable[[Now], None]) -> None:
        if self._node.link is not None:
            session = self._session
            self._node.link.act(lambda now, out: session.run_sub_protocol(do, now, out))

    def _wait_for(self, future: TaskFuture, now: Now) -> None:
        wait = FutureWait({"wait": True})
        wait.tag["wait"] = wait
        self.task_session.add_wait(wait, [future], now)

    def _receipt(self, record: TaskRecord, future: TaskFuture, _: SubmissionReceipt) -> None:
        observer = self._surroundings.observer
        if future.status == REFUSED and future.fault is not None:
            observer.refused(record, future.fault.code, future.fault.message)
        elif future.status == UNKNOWN:
            observer.unknown(record)
        elif future.status != MISSING:
            observer.accepted(record, (future.original or future).id)

    def _ended(self, future: TaskFuture) -> None:
        observer = self._surroundings.observer
        if future.status in (FINISHED, FAILED, CANCELLED):
            body = future.value
            if future.fault is not None:
                body = b"%d" % future.fault.code
            observer.notified(self.client, future.id, future.status, body)
        elif future.status == MISSING:
            observer.missing(self.client, future.id)

    def _answered(self, question: TaskQuery, id_: str, before: tuple[int, int]) -> None:
        observer = self._surroundings.observer
        if question.fault is not None:
            if question.fault.code == BAD_TASK:
                observer.missing(self.client, id_)
        elif question.kind == STATUS:
            observer.status_notified(self.client, msgspec.json.decode(question.answer), before)
        else:
            observer.cancel_confirmed(self.client, id_)


class RawClient:
    """A task client with its own JSON-RPC implementation, across all its processes."""

    def __init__(
        self,
        surroundings: ClientSurroundings,
        connect: Connect,
        observer: Any,
        route: Route,
        rng: random.Random,
        endpoint: str,
    ) -> None:
        self._surroundings = surroundings
        self._connect = connect
        self._observer = observer
        self._rng = rng
        self._endpoint = endpoint
        self._delimiter = rng.random() < 0.3
        self._serial = 0
        self._polls = 0
        self.name = route.name
        self.route = route
        self.link: SimLink | None = None

    @property
    def up(self) -> bool:
        return self.link is not None and not self.link.ended

    def start(self) -> None:
        self.session = session = RawSession(self._endpoint, ("client_connect", [self.name]), self._rng, self._delimiter)
        receive = partial(self._receive, session)
        self.link = SimLink(self._surroundings.agenda, self.route, session, self._connect, receive, self._observer, 0.0)
        self.link.act(session.start)
        self.link.later(1.0 + self._rng.random(), self._poll)

    def vanish(self, silent: bool) -> None:
        if self.link is not None and self.up:
            self.link.kill(silent)

    def submit(self) -> None:
        """Submits a task with its own id or, with a key, with an id that the broker generates."""
        record = self._surroundings.make(self.name)
        if record.key is None or self._rng.random() < 0.5:
            self._serial += 1
            record.id = f"{self.name}-{self._serial}"
        params = [self.name, record.method, msgspec.json.decode(record.params), record.id, record.options]
        self._call("client_new_task", params, ("submit", record))
        if self._rng.random() < 0.05 and record.id is not None:
            # The same submission again: the broker must refuse it or return the same task.
            self._call("client_new_task", params, ("again", record))

    def query_status(self, record: TaskRecord) -> None:
        self._call("client_task_status", [self.name, record.id], ("status", record.id, record.notified_status))

    def cancel(self, record: TaskRecord) -> None:
        record.cancel_asked = True
        self._call("client_task_cancel", [self.name, record.id], ("cancel", record.id))

    def _call(self, method: str, params: Any, tag: Any) -> None:
        session = self.session
        if self.link is not None:
            self.link.act(lambda now, out: session.call(method, params, tag, now, out))

    def _poll(self, now: Now, out: SessionEffects) -> None:
        """Waits for open tasks, a few at a time."""
        self._polls += 1
        own = self._surroundings.records.by_client.get(self.name, ())
        open_ = [each.id for each in own if each.accepted is not None and each.notified is None and not each.void]
        waits = any(call.tag[0] == "wait" for call in self.session.calls.values())
        if open_ and not waits:
            ids = open_[:WAIT_IDS] if self._polls % 2 else open_[-WAIT_IDS:]
            self.session.call("client_task_wait", [self.name, ids, 5.0], ("wait", ids), now, out, 12.0)
        if self.link is not None:
            self.link.later(self._rng.uniform(1.0, 5.0), self._poll)

    def _receive(self, session: RawSession, notifications: list[Any]) -> None:
        for item in notifications:
            if session is not self.session:
                continue
            if isinstance(item, Pushed):
                if self._delimiter:
                    self._surroundings.observer.pushed_at(self.name)
                self._row(item.params)
            elif isinstance(item, Answer):
                self._answered(item)

    def _answered(self, item: Answer) -> None:
        observer = self._surroundings.observer
        match item.tag[0], item.code:
            case "submit", 0:
                observer.accepted(item.tag[1], item.result)
            case "submit", code if code == BAD_TASK and item.tries > 1 and not item.tag[1].after:
                observer.accepted(item.tag[1], item.tag[1].id)
            case "submit", code if item.tries > 1 and code == BAD_TASK:
                observer.unknown(item.tag[1])
            case "submit", code:
                observer.refused(item.tag[1], code, "")
            case "wait", 0:
                for row in item.result:
                    self._row(row)
            case "status", 0:
                observer.status_notified(self.name, item.result, item.tag[2])
            case "cancel", 0:
                observer.cancel_confirmed(self.name, item.tag[1])
            case (("status" | "cancel"), code) if code == BAD_TASK:
                observer.missing(self.name, item.tag[1])
            case _:
                pass

    def _row(self, row: dict[str, Any]) -> None:
        if "error" in row:
            body = b"%d" % row["error"]["code"]
        elif "result" in row:
            body = msgspec.json.encode(row["result"])
        else:
            return
        self._surroundings.observer.notified(self.name, row["task_id"], ENDS[row["status"]], body)
