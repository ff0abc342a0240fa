"""A scene for stories about tasks: a client, workers and nodes around one broker whose disk can be held.

Lives here: who says what, and what each has heard of it. Never here: what should come of it. Invariants: what is heard
stays until somebody takes it; whoever has joined gives its signs of life while time passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from scale0.broker.admin.access import ADMIN, digest_of
from scale0.storage.rows import PutToken
from tests.unit.tasks.world import BROKER, Heard, World

CLIENT = "c"
FRONT = "frontend-c"
"""The connection of the client."""
ADMIN_LINE = "frontend-admin"
TOKEN = "s0_scene"
FOREVER_US = 2**60
BEAT = 0.5
"""Seconds between two signs of life."""
MANY_COMMITS = 10_000
TOGETHER = "t"
"""How the ids of calls in one array begin; those of single calls are numbers."""


class Refused(NamedTuple):
    """A call that was answered with an error."""

    code: int
    message: str


def is_answer(heard: Heard) -> bool:
    """True for the answer to a call, not for what is told unasked."""
    return heard.command == "rpc" and "method" not in heard.body


class Scene:
    """One broker, a client that is known to it, and whoever joins."""

    def __init__(self, world: type[World] = World, **config: Any) -> None:
        self.world = world(**{"config_service": True, **config})
        self.world.store.commit([PutToken(digest_of(TOKEN), "root", ADMIN, FOREVER_US)])
        self.workers: dict[str, str] = {}
        """By connection: backends that speak TASKS."""
        self.nodes: dict[str, str] = {}
        """By connection: nodes that ask."""
        self.world.crash()  # tokens are read at the start
        assert self.call("client_connect", CLIENT) == CLIENT

    def beat(self) -> None:
        """Everybody who joined gives a sign of life."""
        for line in self.workers:
            self.world.say(line, "HEARTBEAT", {"config_version": self.version})
        for line, name in self.nodes.items():
            self.world.ask(line, "node_heartbeat", name)

    def restart(self) -> None:
        """The broker ends with all that it has stored, and starts again; nobody has come back yet."""
        self.world.let_go()
        self.workers.clear()
        self.nodes.clear()
        self.world.crash()

    # JSON-RPC.

    def call(self, method: str, *params: Any, line: str = FRONT) -> Any:
        """One call, and its result or its `Refused`."""
        return self.answer(self.world.ask(line, method, *params))

    def answer(self, number: int) -> Any:
        """What a call was answered; it is heard once."""
        for heard in self.world.heard:
            if is_answer(heard) and heard.body["id"] == number:
                self.world.heard.remove(heard)
                error = heard.body.get("error")
                return heard.body["result"] if error is None else Refused(error["code"], error["message"])
        raise AssertionError(f"{number} was not answered: {list(self.world.heard)}")

    def together(self, line: str, *calls: tuple[Any, ...]) -> list[Any]:
        """Several calls in one turn, and their answers."""
        said = [
            {"jsonrpc": "2.0", "method": BROKER + method, "params": params, "id": f"{TOGETHER}{place}"}
            for place, (method, *params) in enumerate(calls)
        ]
        self.world.frames(line, [json.dumps(said).encode()])
        told = [one for one in self.world.heard if str(one.body["id"] if is_answer(one) else "").startswith(TOGETHER)]
        for one in told:
            self.world.heard.remove(one)
        return [one.body.get("result", one.body.get("error")) for one in told]

    def submit(self, id_: str | None, method: str = "m", **options: Any) -> Any:
        """A task of the client's."""
        return self.call("client_new_task", CLIENT, method, [], id_, options)

    def submit_many(self, ids: Iterable[str], method: str = "m", **options: Any) -> None:
        """Tasks of the client's, taken in one turn."""
        wanted = list(ids)
        told = self.together(FRONT, *(("client_new_task", CLIENT, method, [], id_, options) for id_ in wanted))
        assert told == wanted

    def cancel(self, *ids: str) -> None:
        told = self.together(FRONT, *(("client_task_cancel", CLIENT, id_) for id_ in ids))
        assert told == [True] * len(ids)

    def status(self, id_: str) -> str:
        """What the client hears of a task."""
        name: str = self.call("client_task_status", CLIENT, id_)["status"]
        return name

    def result(self, id_: str) -> Any:
        return self.call("client_task_result", CLIENT, id_)

    def node(self, name: str, *methods: str, line: str = "") -> str:
        """A node joins; its connection."""
        line = line or f"backend-{name}"
        assert self.call("node_connect", name, list(methods), line=line) == name
        self.nodes[line] = name
        return line

    def pull(self, line: str, limit: int = 10) -> list[str]:
        """The ids of what a node gets when it asks."""
        return [task["id"] for task in self.call("node_tasks_request", self.nodes[line], limit, line=line)]

    def fetch(self, line: str, id_: str) -> Any:
        """A node asks for one task."""
        return self.call("node_task_request", self.nodes[line], id_, line=line)

    # Scale0's own.

    def worker(self, name: str, *services: str, line: str = "", **options: Any) -> str:
        """A backend joins with CHECKCONFIG and READY; its connection."""
        line = line or f"backend-{name}"
        self.world.say(line, "CHECKCONFIG", {"identity": name})
        self.ready(line, *services, **options)
        self.workers[line] = name
        return line

    def ready(self, line: str, *services: str, **options: Any) -> None:
        """READY, perhaps again."""
        self.world.say(line, "READY", {"services": services, "config_version": self.version, **options})
        assert self.hear(line, "READYOK"), list(self.world.heard)

    def running(self, line: str, *ids: str, attempt: int = 1) -> None:
        self.world.say(line, "TASKSTATUS", {}, [{"id": id_, "attempt": attempt, "status": "running"} for id_ in ids])

    def done(self, line: str, *ids: str, attempt: int = 1, result: Any = None) -> None:
        self.world.say(line, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, "result": result} for id_ in ids])

    def fail(self, line: str, id_: str, attempt: int = 1, **error: Any) -> None:
        said = {"code": 1, "message": "no", **error}
        self.world.say(line, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, "error": said}])

    def request(self, service: str, id_: str = "r1", line: str = "frontend-f", **options: Any) -> None:
        self.world.say(line, "REQUEST", {"service": service, "id": id_, **options}, "hello")

    def manage(self, command: str, **arguments: Any) -> int:
        """A command of an administrator; its code."""
        said = {"command": command, "id": "m", "auth_token": TOKEN, **arguments}
        self.world.say(ADMIN_LINE, "MANAGEMENTREQ", said)
        code: int = self.hear(ADMIN_LINE, "MANAGEMENTREP")[-1].options["code"]
        return code

    # What is heard.

    def hear(self, line: str, *commands: str) -> list[Heard]:
        """What this connection has heard since it last listened: all of it, or these commands."""
        heard = self.world.heard
        own = [one for one in heard if one.who == line and (not commands or one.command in commands)]
        for one in own:
            heard.remove(one)
        return own

    def handed(self, line: str) -> list[str]:
        """The ids of the tasks that were pushed to a worker since it last looked."""
        return [task["id"] for one in self.hear(line, "TASKS") for task in one.body]

    def told(self, line: str) -> list[list[Any]]:
        """What a worker was answered to its results."""
        return [each for one in self.hear(line, "TASKSOK") for each in one.body]

    def recalled(self, line: str) -> list[str]:
        """The ids of what a worker has to drop."""
        return [id_ for one in self.hear(line, "TASKSCANCEL") for id_, _ in one.body]

    # Time, and the disk.

    @property
    def version(self) -> int:
        number: int = self.world.broker.documents.version
        return number

    def run(self, seconds: float) -> None:
        """Time passes; everybody who joined lives on."""
        end = self.world.mono + seconds
        while self.world.mono < end - 1e-9:
            self.beat()
            self.wait(min(BEAT, end - self.world.mono))

    def wait(self, seconds: float) -> None:
        """Time passes, and nobody says anything."""
        for _ in self.world.pass_time(seconds):
            pass

    def hold_at(self, kind: type) -> None:
        """Commits return until one is in flight that answers such a question."""
        disk = self.world.disk
        for _ in range(MANY_COMMITS):
            assert disk.in_flight is not None, f"nobody asks {kind.__name__}"
            if any(type(question.ask) is kind for question in disk.in_flight.questions):
                return
            disk.end_one()
        raise AssertionError(f"nobody asks {kind.__name__}")

    @property
    def open(self) -> set[str]:
        """The stored tasks that have not ended."""
        return {task.id for task in self.world.store.snapshot().tasks.open.values()}

    def finish_all(self, line: str, seconds: float = 60.0) -> list[str]:
        """A worker does whatever it gets, until nothing comes any more; what it did, in order."""
        did: list[str] = []
        end = self.world.mono + seconds
        while self.world.mono < end and self.open:
            for one in self.hear(line, "TASKS"):
                self.world.say(
                    line, "TASKSDONE", {}, [{"id": task["id"], "attempt": task["attempt"]} for task in one.body]
                )
                did += [task["id"] for task in one.body]
            self.run(0.1)
        return did
