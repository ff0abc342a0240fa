"""JSON-RPC 2.0 of clients and nodes, and raw TASKS frames of native backends, without a client library.

Whatever is waited for has a deadline, and what comes unasked is kept in `pushed`, never taken for an answer.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import zmq

from tests.fakes.messages import Message
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.scale0.raw import Raw, Raws, unique

BROKER = "zerotask.broker."
MOMENT_SECONDS = 0.1
"""How long silence is listened to."""
PAUSE_MS = 10
"""Between two looks at the same thing."""

_ids = itertools.count(1)


def pause() -> None:
    """What it takes another process to do something."""
    zmq.Poller().poll(PAUSE_MS)


class Refused(Exception):
    """The answer was an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code, self.data = error["code"], error.get("data")


def asked(method: str, /, *by_position: Any, **by_name: Any) -> dict[str, Any]:
    """One request of JSON-RPC."""
    params: Any = list(by_position) if by_position else by_name
    return {"jsonrpc": "2.0", "method": BROKER + method, "params": params, "id": next(_ids)}


def told(method: str, /, *by_position: Any, **by_name: Any) -> dict[str, Any]:
    """One notification."""
    request = asked(method, *by_position, **by_name)
    del request["id"]
    return request


class Rpc:
    """One connection that speaks JSON-RPC."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.pushed: deque[dict[str, Any]] = deque()
        self._answers: dict[Any, dict[str, Any]] = {}

    def send(self, document: Any) -> None:
        """A document, or the bytes of one."""
        self.raw.frames(document if isinstance(document, bytes) else json.dumps(document).encode())

    def hear_bytes(self, seconds: float = PATIENCE_SECONDS) -> bytes | None:
        """The next frame, without its delimiter; None if none comes."""
        frames = self.raw.receive(seconds)
        if frames is None:
            return None
        if self.raw.delimiter:
            assert frames[0] == b"", "whoever sends a delimiter gets one"
            frames = frames[1:]
        assert len(frames) == 1, frames
        return frames[0]

    def hear(self, seconds: float = PATIENCE_SECONDS) -> Any:
        """The next document; the test fails if none comes."""
        heard = self.hear_bytes(seconds)
        assert heard is not None, f"nothing was heard for {seconds} s"
        return json.loads(heard)

    def reply(self, document: Any, seconds: float = PATIENCE_SECONDS) -> Any:
        """Send something, and the next document that is no push."""
        self.send(document)
        while isinstance(heard := self.hear(seconds), dict) and "method" in heard:
            self.pushed.append(heard)
        return heard

    def answer(self, id_: Any, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The response with this id, whatever else comes before it."""
        end = time.monotonic() + seconds
        while id_ not in self._answers:
            heard = self.hear(max(0.0, end - time.monotonic()))
            if "method" in heard:
                self.pushed.append(heard)
            else:
                self._answers[heard["id"]] = heard
        answer = self._answers.pop(id_)
        assert answer["jsonrpc"] == "2.0", answer
        assert ("result" in answer) != ("error" in answer), answer
        return answer

    def ask(self, method: str, /, *by_position: Any, **by_name: Any) -> Any:
        """Send a request; its id."""
        request = asked(method, *by_position, **by_name)
        self.send(request)
        return request["id"]

    def call(self, method: str, /, *by_position: Any, **by_name: Any) -> Any:
        """A request and its result."""
        answer = self.answer(self.ask(method, *by_position, **by_name))
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def refused(self, method: str, /, *by_position: Any, **by_name: Any) -> dict[str, Any]:
        """A request and its error."""
        answer = self.answer(self.ask(method, *by_position, **by_name))
        assert "error" in answer, answer
        assert isinstance(answer["error"]["code"], int), answer
        assert isinstance(answer["error"]["message"], str), answer
        error: dict[str, Any] = answer["error"]
        return error

    def code(self, method: str, /, *by_position: Any, **by_name: Any) -> int:
        """The code of a request's error."""
        code: int = self.refused(method, *by_position, **by_name)["code"]
        return code

    def push(self, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next thing that came unasked."""
        heard: dict[str, Any] = self.pushed.popleft() if self.pushed else self.hear(seconds)
        assert "method" in heard, heard
        assert "id" not in heard, heard
        return heard

    def silent(self, seconds: float = MOMENT_SECONDS) -> bool:
        return not self.pushed and self.hear_bytes(seconds) is None


class Client:
    """A client of section 6 on a connection of its own."""

    def __init__(self, rpc: Rpc, client_id: str | None = None, *, connect: bool = True) -> None:
        self.rpc = rpc
        self.id = client_id or unique("client")
        if connect:
            assert rpc.call("client_connect", self.id) == self.id

    def submit(self, method: str, params: Any = None, task_id: str | None = None, **options: Any) -> str:
        """A new task; its id."""
        answer = self.rpc.answer(self.rpc.ask("client_new_task", **self.new(method, params, task_id, **options)))
        if "error" in answer:
            raise Refused(answer["error"])
        return str(answer["result"])

    def new(self, method: str, params: Any = None, task_id: str | None = None, **options: Any) -> dict[str, Any]:
        """The parameters of a new task, by name."""
        said = {"client_id": self.id, "method": method, "params": [] if params is None else params}
        own = {} if task_id is None else {"task_id": task_id}
        return {**said, **own, **({"options": options} if options else {})}

    def submit_many(self, tasks: Iterable[dict[str, Any]]) -> list[str]:
        """Many new tasks in one batch; their ids."""
        answers = self.rpc.reply([asked("client_new_task", **task) for task in tasks])
        return [answer["result"] for answer in answers]

    def status(self, task_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.rpc.call("client_task_status", self.id, task_id)
        return status

    def code(self, task_id: str) -> int:
        code: int = self.status(task_id)["code"]
        return code

    def until_code(self, task_id: str, code: int, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Its status, once it has this code."""
        until(lambda: self.code(task_id) == code, seconds=seconds)
        return self.status(task_id)

    def result(self, task_id: str) -> Any:
        return self.rpc.call("client_task_result", self.id, task_id)

    def error(self, task_id: str) -> dict[str, Any]:
        """The error that comes in place of a result."""
        return self.rpc.refused("client_task_result", self.id, task_id)

    def wait(self, *task_ids: str, timeout: float = PATIENCE_SECONDS) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.rpc.call("client_task_wait", self.id, list(task_ids), timeout)
        return rows

    def cancel(self, task_id: str) -> Any:
        return self.rpc.call("client_task_cancel", self.id, task_id)


class Node:
    """A node of section 6 on a connection of its own."""

    def __init__(self, rpc: Rpc, *methods: str, node_id: str | None = None) -> None:
        self.rpc = rpc
        self.id: str = rpc.call("node_connect", node_id or unique("node"), list(methods))

    def pull(self, limit: int = 100) -> list[dict[str, Any]]:
        """What there is for it now."""
        tasks: list[dict[str, Any]] = self.rpc.call("node_tasks_request", self.id, limit)
        return tasks

    def next(self, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next task for it, as soon as there is one."""
        task: dict[str, Any] = until(lambda: self.pull(1), seconds=seconds)[0]
        return task

    def take(self, task_id: str) -> Any:
        return self.rpc.call("node_task_request", self.id, task_id)

    def finish(self, task: dict[str, Any], result: Any = None) -> Any:
        return self.rpc.call("node_task_finished", self.id, task["id"], result, task["attempt"])

    def fail(self, task: dict[str, Any], code: int = 1, message: str = "no", **more: Any) -> Any:
        error = {"code": code, "message": message, **more}
        return self.rpc.call("node_task_failed", self.id, task["id"], error, task["attempt"])


class Backend:
    """A native backend: SCALE0/1 frames that carry tasks."""

    def __init__(self, net: Raws, *methods: str, identity: str | None = None, batch: bool = False, **ready: Any):
        self.net, self.methods, self.batch = net, methods, batch
        self.identity = identity or unique("backend")
        self.connect(**ready)

    def connect(self, **ready: Any) -> None:
        """A new connection: CHECKCONFIG, READY, READYOK."""
        self.raw = self.net("backend")
        self.unread: deque[dict[str, Any]] = deque()
        version = self.raw.check(self.identity, batch=self.batch).options["config_version"]
        self.ready(config_version=version, **ready)

    def ready(self, **options: Any) -> None:
        """READY, and whatever comes until READYOK."""
        self.version = options.get("config_version", getattr(self, "version", None))
        said = {"services": list(self.methods), "time": time.time(), "config_version": self.version, **options}
        self.raw.say("READY", said)
        self.hear("READYOK")

    def hear(self, *commands: str, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next message that is one of these; tasks that come before it are kept."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            heard = self.raw.hear_or_none(left)
            if heard is not None and heard.command == "TASKS":
                self.unread.extend(heard.body)
            if heard is not None and heard.command in commands:
                return heard
        raise AssertionError(f"none of {commands} was heard for {seconds} s")

    def tasks(self, number: int = 1, seconds: float = PATIENCE_SECONDS) -> list[dict[str, Any]]:
        """The next tasks, this many."""
        end = time.monotonic() + seconds
        while len(self.unread) < number:
            self.hear("TASKS", seconds=end - time.monotonic())
        return [self.unread.popleft() for _ in range(number)]

    def idle(self, seconds: float = MOMENT_SECONDS) -> bool:
        """True if no task comes for a moment."""
        end = time.monotonic() + seconds
        while not self.unread and (left := end - time.monotonic()) > 0:
            heard = self.raw.hear_or_none(left)
            if heard is not None and heard.command == "TASKS":
                self.unread.extend(heard.body)
        return not self.unread

    def say(self, command: str, rows: list[Any]) -> None:
        if self.batch:
            self.raw.batch([command, {}, json.dumps(rows).encode()])
        else:
            self.raw.say(command, {}, json.dumps(rows).encode())

    def running(self, *tasks: dict[str, Any]) -> None:
        self.say("TASKSTATUS", [{"id": t["id"], "attempt": t["attempt"], "status": "running"} for t in tasks])

    def done(self, *tasks: dict[str, Any], **outcome: Any) -> list[list[Any]]:
        """TASKSDONE, and what TASKSOK says of each; the result is the params unless told otherwise."""
        rows = [{"id": t["id"], "attempt": t["attempt"], **(outcome or {"result": t.get("params")})} for t in tasks]
        self.say("TASKSDONE", rows)
        heard: list[list[Any]] = []
        while len(heard) < len(rows):
            heard += self.hear("TASKSOK").body
        return heard

    def codes(self, *tasks: dict[str, Any], **outcome: Any) -> list[int]:
        """TASKSDONE, and the codes of TASKSOK, which must name each task and attempt."""
        heard = {(id_, attempt): code for id_, attempt, code in self.done(*tasks, **outcome)}
        return [heard[task["id"], task["attempt"]] for task in tasks]

    def leave(self) -> None:
        self.raw.say("DISCONNECT")


def client(net: Raws, client_id: str | None = None) -> Client:
    return Client(Rpc(net.frontend()), client_id)


def node(net: Raws, *methods: str, node_id: str | None = None) -> Node:
    return Node(Rpc(net("backend")), *methods, node_id=node_id)
