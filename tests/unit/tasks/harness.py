"""A broker and what tests of tasks do with it: a client, workers and nodes, each on a connection.

What is received stays until a test takes it; whoever has joined sends heartbeats while `run` lets time pass.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from tests.fakes.broker import METHODS, FakeBroker
from tests.fakes.messages import RPC

CLIENT = "c"
FRONT = "frontend-c"
"""The connection of the client."""
ADMIN = "frontend-admin"
BEAT = 0.5
"""Seconds between two heartbeats."""
TICK = 0.05
"""Seconds that pass at once for a group: its brokers take turns."""
MANY_COMMITS = 10_000


class Refused(NamedTuple):
    """A call that was answered with an error."""

    code: int
    message: str


class TaskBroker(FakeBroker):
    """One broker, a client that is known to it, and whoever joins."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**{"config_service": True, **config})
        self.workers: dict[str, str] = {}
        """By connection: backends that speak TASKS."""
        self.nodes: dict[str, str] = {}
        """By connection: nodes that ask."""
        assert self.call("client_connect", CLIENT) == CLIENT

    def beat(self) -> None:
        """Everybody who joined gives a sign of life."""
        for connection in self.workers:
            self.send(connection, "HEARTBEAT", {"config_version": self.version})
        for connection, name in self.nodes.items():
            self.ask(connection, "node_heartbeat", name)

    def restart(self) -> None:
        """The broker ends with all that it has stored, and starts again; nobody has come back yet."""
        self.let_go()
        self.workers.clear()
        self.nodes.clear()
        self.crash()

    # JSON-RPC.

    def call(self, method: str, *params: Any, connection: str = FRONT) -> Any:
        """One call, and its result or its `Refused`."""
        return self.answer(self.ask(connection, method, *params))

    def answer(self, number: int | str) -> Any:
        """What a call was answered; it is received once."""
        for sent in self.sent:
            if sent[1].command == RPC and "method" not in sent[1].body and sent[1].body["id"] == number:
                self.sent.remove(sent)
                error = sent[1].body.get("error")
                return sent[1].body["result"] if error is None else Refused(error["code"], error["message"])
        raise AssertionError(f"{number} was not answered: {list(self.sent)}")

    def together(self, connection: str, *calls: tuple[Any, ...]) -> list[Any]:
        """Several calls in one turn, and their answers."""
        batch = [
            {"jsonrpc": "2.0", "method": METHODS + method, "params": params, "id": f"t{place}"}
            for place, (method, *params) in enumerate(calls)
        ]
        self.send_frames(connection, [json.dumps(batch).encode()])
        return [self.answer(call["id"]) for call in batch]

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

    def node(self, name: str, *methods: str, connection: str = "") -> str:
        """A node joins; its connection."""
        connection = connection or f"backend-{name}"
        assert self.call("node_connect", name, list(methods), connection=connection) == name
        self.nodes[connection] = name
        return connection

    def pull(self, connection: str, limit: int = 10) -> list[str]:
        """The ids of what a node gets when it asks."""
        return [
            task["id"] for task in self.call("node_tasks_request", self.nodes[connection], limit, connection=connection)
        ]

    def fetch(self, connection: str, id_: str) -> Any:
        """A node asks for one task."""
        return self.call("node_task_request", self.nodes[connection], id_, connection=connection)

    # Scale0's own.

    def worker(self, name: str, *services: str, connection: str = "", **options: Any) -> str:
        """A backend joins with CHECKCONFIG and READY; its connection."""
        connection = connection or f"backend-{name}"
        self.send(connection, "CHECKCONFIG", {"identity": name})
        self.ready(connection, *services, **options)
        self.workers[connection] = name
        return connection

    def ready(self, connection: str, *services: str, **options: Any) -> None:
        """READY, perhaps again."""
        self.send(connection, "READY", {"services": services, "config_version": self.version, **options})
        assert self.received(connection, "READYOK"), list(self.sent)

    def running(self, connection: str, *ids: str, attempt: int = 1) -> None:
        self.send(connection, "TASKSTATUS", {}, [{"id": id_, "attempt": attempt, "status": "running"} for id_ in ids])

    def done(self, connection: str, *ids: str, attempt: int = 1, result: Any = None) -> None:
        self.send(connection, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, "result": result} for id_ in ids])

    def fail(self, connection: str, id_: str, attempt: int = 1, **error: Any) -> None:
        said = {"code": 1, "message": "no", **error}
        self.send(connection, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, "error": said}])

    def request(self, service: str, id_: str = "r1", connection: str = "frontend-f", **options: Any) -> None:
        self.send(connection, "REQUEST", {"service": service, "id": id_, **options}, "hello")

    # What is received.

    def notified(self) -> list[dict[str, Any]]:
        """The ends that the client was notified of."""
        return [one.body["params"] for one in self.received(FRONT, RPC) if "method" in one.body]

    def handed(self, connection: str) -> list[str]:
        """The ids of the tasks that were pushed to a worker since it last looked."""
        return [task["id"] for one in self.received(connection, "TASKS") for task in one.body]

    def acknowledged(self, connection: str) -> list[list[Any]]:
        """What a worker was answered to its results."""
        return [each for one in self.received(connection, "TASKSOK") for each in one.body]

    def recalled(self, connection: str) -> list[str]:
        """The ids of what a worker has to drop."""
        return [id_ for one in self.received(connection, "TASKSCANCEL") for id_, _ in one.body]

    # Time, and the host.

    @property
    def version(self) -> int:
        number: int = self.machine.documents.version
        return number

    def run(self, seconds: float) -> None:
        """Time passes; everybody who joined lives on."""
        end = self.mono + seconds
        while self.mono < end - 1e-9:
            self.beat()
            self.pass_time(min(BEAT, end - self.mono))

    def hold_at(self, kind: type) -> None:
        """Commits return until one is in flight that answers such a question."""
        host = self.host
        for _ in range(MANY_COMMITS):
            assert host.in_flight is not None, f"nobody asks {kind.__name__}"
            if any(type(question.ask) is kind for question in host.in_flight.asks):
                return
            host.end_one()
        raise AssertionError(f"nobody asks {kind.__name__}")

    @property
    def open(self) -> set[str]:
        """The stored tasks that have not ended."""
        return {task.id for task in self.store.snapshot().tasks.open.values()}

    def finish_all(self, connection: str, seconds: float = 60.0) -> list[str]:
        """A worker does whatever it gets, until nothing comes any more; what it did, in order."""
        did: list[str] = []
        end = self.mono + seconds
        while self.mono < end and self.open:
            for one in self.received(connection, "TASKS"):
                self.send(
                    connection, "TASKSDONE", {}, [{"id": task["id"], "attempt": task["attempt"]} for task in one.body]
                )
                did += [task["id"] for task in one.body]
            self.run(0.1)
        return did


class Group:
    """Brokers by name."""

    def __init__(self, *names: str) -> None:
        self.time = 100.0
        self.database = FakeDatabase(lambda: int(self.time * 1_000_000))
        self.brokers: dict[str, TaskBroker] = {}
        self.away: set[str] = set()
        """Those whose time stands still: they are dead, or sleep."""
        for number, name in enumerate(names):
            store = FakePostgresStore(self.database, name)
            self.brokers[name] = TaskBroker(rng=random.Random(number), store=store, identity=name, group="g")
        self._beat = 0.0
        self.run(1.0)

    def __getitem__(self, name: str) -> TaskBroker:
        return self.brokers[name]

    def run(self, seconds: float) -> None:
        """Time passes for whoever is there; those who joined them live on."""
        for _ in range(round(seconds / TICK)):
            self.time += TICK
            self._beat += TICK
            for name, broker in self.brokers.items():
                if name not in self.away:
                    if self._beat >= BEAT:
                        broker.beat()
                    broker.pass_time(TICK)
                    broker.host.go_on()
            self._beat = 0.0 if self._beat >= BEAT else self._beat

    def cut(self, name: str, on: bool = True) -> None:
        """The database cannot be reached from there; or it can again."""
        self.brokers[name].store.unreachable = on

    def kill(self, name: str) -> None:
        """kill -9: it says nothing any more, and its clients hear nothing."""
        self.away.add(name)

    def start(self, name: str) -> None:
        """It starts again."""
        self.away.discard(name)
        broker = self.brokers[name]
        broker.workers.clear()
        broker.nodes.clear()
        broker.crash()
