"""A session of the task client without sockets, and a broker of tasks that answers when the test lets it."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple

from scale0.kernel.limits import Limits
from scale0.tasks.client.futures import FutureChanged, FutureWait, SubmissionReceipt, TaskFuture, TaskQuery
from scale0.tasks.client.task_client import TaskClientSession
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects
from tests.processes.client.bench import Bench

ENDED = {"finished": 7_000, "failed": 9_000, "cancelled": 9_500}


class AnsweringBroker:
    """Stored tasks, known clients, and what each method answers."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}
        self.clients: set[str] = set()
        self.taken = False
        """Our client's old connection still counts as alive."""
        self.refuse: dict[str, int] = {}
        """By service: the code that its submissions get."""
        self.unavailable = False
        """The database does not answer."""
        self.heard: list[str] = []
        """Every method, in order; waits with the number of their ids."""
        self.waits: list[tuple[Any, list[str]]] = []
        """Waits that are not answered yet: call id and task ids."""
        self.frames = 0

    def hear(self, frame: bytes) -> list[bytes]:
        """The answers to one frame."""
        self.frames += 1
        said = json.loads(frame)
        batch = isinstance(said, list)
        answers = [self._answer(call, batch) for call in (said if batch else [said])]
        answered = [answer for answer in answers if answer is not None]
        if not answered:
            return []
        return [json.dumps(answered if batch else answered[0]).encode()]

    def end(self, id_: str, status: str = "finished", **more: Any) -> dict[str, Any]:
        """A task ends; the row that is told of it."""
        row = {"task_id": id_, "status": status, **more}
        self.tasks[id_].update(row)
        return row

    def told(self, *rows: dict[str, Any], single: bool = False) -> bytes:
        """Notifications of ends."""
        said = [{"jsonrpc": "2.0", "method": "zerotask.client.task_complete", "params": row} for row in rows]
        return json.dumps(said[0] if single else said).encode()

    def answer_waits(self) -> list[bytes]:
        """Answer the waits of which a task has ended."""
        out = []
        for id_, ids in tuple(self.waits):
            rows = self._ended(ids)
            if rows:
                self.waits.remove((id_, ids))
                out.append(json.dumps({"jsonrpc": "2.0", "id": id_, "result": rows}).encode())
        return out

    def _ended(self, ids: list[str]) -> list[dict[str, Any]]:
        wanted = ("task_id", "status", "result", "error")
        found = [self.tasks[id_] for id_ in ids if self.tasks[id_]["status"] in ENDED]
        return [{name: row[name] for name in wanted if name in row} for row in found]

    def _answer(self, call: dict[str, Any], batch: bool) -> dict[str, Any] | None:
        method = call["method"].removeprefix("zerotask.broker.")
        params = call["params"]
        self.heard.append(method)
        answer = {"jsonrpc": "2.0", "id": call["id"]}
        if self.unavailable:
            return {**answer, "error": {"code": -32060, "message": "unavailable"}}
        if method != "client_connect" and params[0] not in self.clients:
            return {**answer, "error": {"code": -32010, "message": "who?"}}
        if method == "client_task_wait":
            if any(id_ not in self.tasks for id_ in params[1]):
                return {**answer, "error": {"code": -32020, "message": "unknown"}}
            rows = self._ended(params[1])
            if not rows and not batch and params[2] > 0:
                self.waits.append((call["id"], params[1]))
                return None
            return {**answer, "result": rows}
        result = getattr(self, method)(*params)
        return {**answer, **(result if isinstance(result, dict) and "error" in result else {"result": result})}

    def client_connect(self, client: str) -> Any:
        if self.taken:
            return {"error": {"code": -32010, "message": "taken"}}
        self.clients.add(client)
        return client

    def client_new_task(self, _client: str, method: str, params: Any, id_: str, options: dict[str, Any]) -> Any:
        if method in self.refuse:
            return {"error": {"code": self.refuse[method], "message": "no"}}
        key = options.get("key")
        if key in self.keys:
            return self.keys[key]
        if id_ in self.tasks or any(other not in self.tasks for other in options.get("after", ())):
            return {"error": {"code": -32020, "message": "taken"}}
        if key is not None:
            self.keys[key] = id_
        self.tasks[id_] = {"task_id": id_, "status": "queued", "method": method, "params": params, "options": options}
        return id_

    def client_task_status(self, _client: str, id_: str) -> Any:
        if id_ not in self.tasks:
            return {"error": {"code": -32020, "message": "unknown"}}
        status = self.tasks[id_]["status"]
        return {"task_id": id_, "status": status, "code": ENDED.get(status, 1_000)}

    def client_task_cancel(self, _client: str, id_: str) -> Any:
        if id_ not in self.tasks:
            return {"error": {"code": -32020, "message": "unknown"}}
        return self.tasks[id_]["status"] not in ENDED


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
        self.broker = AnsweringBroker()
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
