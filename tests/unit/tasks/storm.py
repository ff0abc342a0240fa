"""Honest clients, workers and a node that act at random and wait for nobody, and what they may rely on.

Whatever is acknowledged is stored, an attempt is handed out once, a task has one result, and a key one task.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from scale0.storage.task_rows import EndedTask
from tests.fakes.broker import FakeBroker
from tests.fakes.messages import RPC, Message

METHODS = ("a", "b")
NODE = "n0"


class TaskStorm:
    """One seed, on brokers of one client."""

    workers: tuple[str, ...] = ("w0", "w1")
    max_attempts = 2
    pulls_may_fail = False

    def __init__(self, seed: int, brokers: dict[str, FakeBroker]) -> None:
        self.rng = random.Random(seed)
        self.brokers = brokers
        self.names = tuple(brokers)
        self.client = f"c-{self.names[0]}"
        """All brokers serve one client: its id is valid at each."""
        self.connections = self.made = 0
        self.asked: dict[tuple[str, int], tuple[str, Any]] = {}
        self.taken: set[str] = set()
        """Acknowledged tasks."""
        self.by_key: dict[str, str] = {}
        self.keyed: dict[str, tuple[str, list[int]]] = {}
        """Method and params of each key."""
        self.handed: dict[tuple[str, int], str] = {}
        self.back: dict[str, tuple[str, str]] = {}
        """Workers and the node: their broker, and the connection there."""
        self.hand: dict[str, dict[str, int]] = {name: {} for name in (*self.workers, NODE)}
        """What each believes to have."""
        self.results: dict[tuple[str, int], str] = {}
        """What was reported."""
        self.stored: dict[str, int] = {}
        """Tasks whose result was acknowledged, and the attempt."""
        self.ended: dict[str, Any] = {}
        """Results that the client received."""
        self.fronts: dict[str, str] = {}
        for name in self.names:
            self.meet(name)

    def row(self, id_: str) -> Any:
        """The stored task."""
        raise NotImplementedError

    def act(self, name: str, do: Callable[[FakeBroker], Any]) -> Any:
        return do(self.brokers[name])

    def connection(self, socket: str) -> str:
        self.connections += 1
        return f"{socket}-{self.connections}"

    def meet(self, name: str) -> None:
        """The client connects to a broker that has just started."""
        self.back = {who: place for who, place in self.back.items() if place[0] != name}
        self.fronts[name] = self.connection("frontend")
        self.ask(name, self.fronts[name], "connect", None, "client_connect", f"c-{name}")

    def ask(self, name: str, connection: str, what: str, about: Any, method: str, *params: Any) -> None:
        number = self.act(name, lambda broker: broker.ask(connection, method, *params))
        if number is not None:
            self.asked[name, number] = (what, about)

    def send(self, name: str, connection: str, command: str, *bodies: Any, **options: Any) -> None:
        self.act(name, lambda broker: broker.send(connection, command, options, *bodies))

    # What is done.

    def new_id(self) -> str:
        return f"s.{self.made:012x}"

    def submit(self) -> None:
        name = self.rng.choice(self.names)
        self.made += 1
        key = self.rng.choice([None, None, f"k{self.rng.randrange(6)}"])
        own = sorted(self.taken)
        after = self.rng.sample(own, min(len(own), self.rng.choice([0, 0, 0, 1, 2])))
        id_ = self.rng.choice([None, self.new_id()])
        options = {"max_attempts": self.max_attempts, "after": after, "notify": self.rng.random() < 0.5}
        options |= {} if key is None else {"key": key}
        options |= {"delay": 1.0} if self.rng.random() < 0.2 else {}
        # A key is one submission: the same method and params.
        method, params = (
            self.keyed.setdefault(key, (self.rng.choice(METHODS), [self.made]))
            if key
            else (
                self.rng.choice(METHODS),
                [self.made],
            )
        )
        self.submit_to(name, key, self.client, method, params, id_, options)

    def submit_to(self, name: str, key: str | None, *params: Any) -> None:
        self.ask(name, self.fronts[name], "submit", key, "client_new_task", *params)

    def about(self) -> None:
        if self.taken:
            name, id_ = self.rng.choice(self.names), self.rng.choice(sorted(self.taken))
            what = self.rng.choice(["cancel", "status", "result"])
            self.ask(name, self.fronts[name], what, id_, f"client_task_{what}", self.client, id_)

    def is_there(self, name: str) -> bool:
        """Whether this broker can be connected to."""
        return name in self.brokers

    def holds(self, who: str) -> list[tuple[str, int]]:
        """What a worker that connects again says that it has."""
        return list(self.hand[who].items())

    def ready(self) -> None:
        who, name = self.rng.choice(self.workers), self.rng.choice(self.names)
        if not self.is_there(name):
            return
        connection = self.connection("backend")
        self.back[who] = (name, connection)
        self.send(name, connection, "CHECKCONFIG", identity=who)
        wall, holds = self.brokers[name].wall, self.holds(who)
        self.send(name, connection, "READY", services=METHODS, slots=2, config_version=1, time=wall, holds=holds)

    def connect(self) -> None:
        name = self.rng.choice(self.names)
        if self.is_there(name) and NODE not in self.back:
            self.back[NODE] = (name, self.connection("backend"))
            self.ask(*self.back[NODE], "node", self.back[NODE], "node_connect", NODE, list(METHODS))

    def pull(self) -> None:
        if NODE in self.back:
            self.ask(*self.back[NODE], "pull", None, "node_tasks_request", NODE, 2)

    def report(self) -> None:
        for who, place in list(self.back.items()):
            for id_, attempt in list(self.hand[who].items()):
                if self.rng.random() < 0.5:
                    continue
                value = self.results.setdefault((id_, attempt), f"{id_} {attempt}")
                if who == NODE:
                    self.ask(*place, "finish", (id_, attempt), "node_task_finished", NODE, id_, value, attempt)
                elif self.rng.random() < 0.2:
                    self.send(*place, "TASKSTATUS", [{"id": id_, "attempt": attempt, "status": "running"}])
                else:
                    self.send(*place, "TASKSDONE", [{"id": id_, "attempt": attempt, "result": value}])

    def beat(self, name: str) -> None:
        """All who are connected to this broker send a heartbeat."""
        for who, place in list(self.back.items()):
            if place[0] == name and who == NODE:
                self.ask(*place, "beat", None, "node_heartbeat", NODE)
            elif place[0] == name:
                self.send(*place, "HEARTBEAT", time=self.brokers[name].wall, config_version=1)

    # What is received.

    def receive_all(self) -> None:
        for name, broker in self.brokers.items():
            while broker.sent:
                self.receive(name, *broker.sent.popleft())

    def receive(self, name: str, connection: str, message: Message) -> None:
        who = next((who for who, place in self.back.items() if place == (name, connection)), "")
        if message.command == RPC:
            self.receive_rpc(name, message.body)
        elif message.command == "TASKS":
            for row in message.body:
                self.take(who, row["id"], row["attempt"])
        elif message.command == "TASKSOK" and who:
            for id_, attempt, code in message.body:
                self.forget(who, id_, attempt)
                if code == 200:
                    self.keep(id_, attempt)
        elif message.command == "TASKSCANCEL" and who:
            for id_, attempt in message.body:
                self.forget(who, id_, attempt)

    def receive_rpc(self, name: str, document: dict[str, Any]) -> None:
        if "method" in document:
            self.be_notified(document["params"])
            return
        what, about = self.asked.pop((name, document["id"]), ("gone", None))
        if what == "submit" and "result" in document:
            id_ = document["result"]
            assert self.row(id_) is not None, f"{id_} was acknowledged, and is not stored"
            assert about is None or self.by_key.setdefault(about, id_) == id_, f"{about} has two tasks"
            assert id_ not in self.taken or about is not None, f"{id_} was given twice"
            self.taken.add(id_)
        elif what == "node" and "error" in document and self.back.get(NODE) == about:
            del self.back[NODE]
        elif what == "pull":
            assert "result" in document or self.pulls_may_fail, document
            for row in document.get("result", ()):
                self.take(NODE, row["id"], row["attempt"])
        elif what == "finish":
            self.forget(NODE, *about)
            if "result" in document:
                self.keep(*about)
        elif what == "result" and "result" in document:
            self.be_told(about, document["result"])

    def be_notified(self, end: dict[str, Any]) -> None:
        assert isinstance(self.row(end["task_id"]), EndedTask), f"the client was notified of {end['task_id']} too early"
        if end["status"] == "finished":
            self.be_told(end["task_id"], end["result"])

    def be_told(self, id_: str, result: Any) -> None:
        assert self.ended.setdefault(id_, result) == result, f"the result of {id_} changed"

    def forget(self, who: str, id_: str, attempt: int) -> None:
        if self.hand[who].get(id_) == attempt:
            del self.hand[who][id_]

    def take(self, who: str, id_: str, attempt: int) -> None:
        assert (id_, attempt) not in self.handed, f"attempt {attempt} of {id_} was handed out twice"
        self.handed[id_, attempt] = who
        if who:
            self.hand[who][id_] = attempt

    def keep(self, id_: str, attempt: int) -> None:
        assert self.stored.setdefault(id_, attempt) == attempt, f"{id_} has two results"
        assert self.row(id_).result == b'"%b"' % self.results[id_, attempt].encode()

    def check(self) -> None:
        """What was acknowledged is stored."""
        for id_ in self.taken:
            assert self.row(id_) is not None, f"{id_} is gone"
        for id_, attempt in self.stored.items():
            assert self.row(id_).result == b'"%b"' % self.results[id_, attempt].encode()
