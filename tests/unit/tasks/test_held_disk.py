"""Turns that go on while commits are under way, and crashes in between: no promise is broken by what was in flight."""

# Promise: TASK-13
from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.storage.task_queries import FindTasks
from scale0.storage.task_rows import EndedTask
from tests.unit.tasks.world import Heard, World

pytestmark = pytest.mark.slow

SEEDS = 150
STEPS = 120
CLIENT = "ann"
METHODS = ("a", "b")
WORKERS = ("w0", "w1")
NODE = "n0"
BEAT = 0.5


class Storm:
    """Honest ends that do not wait for each other, and what they may rely on."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed, default_heartbeat_interval=1.0, heartbeat_liveness=3, error_client_limit=0)
        self.lines = self.made = 0
        self.asked: dict[int, tuple[str, Any]] = {}
        self.taken: dict[str, str | None] = {}
        """Acknowledged tasks, and their keys."""
        self.by_key: dict[str, str] = {}
        self.handed: dict[tuple[str, int], str] = {}
        self.hand: dict[str, dict[str, int]] = {name: {} for name in (*WORKERS, NODE)}
        self.results: dict[tuple[str, int], str] = {}
        """What was reported."""
        self.stored: dict[str, int] = {}
        """Tasks whose result was acknowledged, and the attempt."""
        self.ended: dict[str, Any] = {}
        """What a client was told of an end."""
        self.meet()

    def line(self, door: str) -> str:
        self.lines += 1
        return f"{door}-{self.lines}"

    def meet(self) -> None:
        self.front = self.line("frontend")
        self.back: dict[str, str] = {}
        self.asked.clear()
        self.asked[self.world.ask(self.front, "client_connect", CLIENT)] = ("connect", None)

    # What is done.

    def submit(self) -> None:
        self.made += 1
        key = self.rng.choice([None, None, f"k{self.rng.randrange(6)}"])
        own = list(self.taken)
        after = self.rng.sample(own, min(len(own), self.rng.choice([0, 0, 0, 1, 2])))
        id_ = self.rng.choice([None, f"s.{self.made:012x}"])
        options = {"max_attempts": 2, "after": after, "notify": self.rng.random() < 0.5}
        options |= {} if key is None else {"key": key}
        options |= {"delay": 1.0} if self.rng.random() < 0.2 else {}
        said = (CLIENT, self.rng.choice(METHODS), [self.made], id_, options)
        self.asked[self.world.ask(self.front, "client_new_task", *said)] = ("submit", key)

    def about(self) -> None:
        if self.taken:
            id_ = self.rng.choice(list(self.taken))
            what = self.rng.choice(["cancel", "status", "result"])
            self.asked[self.world.ask(self.front, f"client_task_{what}", CLIENT, id_)] = (what, id_)

    def ready(self) -> None:
        name = self.rng.choice(WORKERS)
        self.back[name] = line = self.line("backend")
        holds = [lease for lease in self.hand[name].items() if self.rng.random() < 0.7]
        self.hand[name] = dict(holds)
        self.world.say(line, "CHECKCONFIG", {"identity": name})
        said = {"services": list(METHODS), "slots": 2, "config_version": 1, "time": self.world.wall}
        self.world.say(line, "READY", {**said, "holds": holds})

    def connect(self) -> None:
        if NODE not in self.back:
            self.back[NODE] = line = self.line("backend")
            self.asked[self.world.ask(line, "node_connect", NODE, list(METHODS))] = ("node", line)

    def pull(self) -> None:
        if NODE in self.back:
            self.asked[self.world.ask(self.back[NODE], "node_tasks_request", NODE, 2)] = ("pull", None)

    def report(self) -> None:
        for name, line in self.back.items():
            for id_, attempt in list(self.hand[name].items()):
                if self.rng.random() < 0.5:
                    continue
                value = self.results.setdefault((id_, attempt), f"{id_} {attempt}")
                if name == NODE:
                    number = self.world.ask(line, "node_task_finished", NODE, id_, value, attempt)
                    self.asked[number] = ("finish", (id_, attempt))
                elif self.rng.random() < 0.2:
                    self.world.say(line, "TASKSTATUS", {}, [{"id": id_, "attempt": attempt, "status": "running"}])
                else:
                    self.world.say(line, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, "result": value}])

    def leave(self) -> None:
        name = self.rng.choice(WORKERS)
        if name in self.back:
            self.world.say(self.back.pop(name), "DISCONNECT")
            self.hand[name].clear()

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT)):
            for name, line in self.back.items():
                if name == NODE:
                    self.asked[self.world.ask(line, "node_heartbeat", NODE)] = ("beat", None)
                else:
                    self.world.say(line, "HEARTBEAT", {"time": self.world.wall, "config_version": 1})
            for _ in self.world.pass_time(BEAT):
                self.listen()

    def crash(self) -> None:
        self.listen()
        self.world.crash(stored=self.rng.random() < 0.5)
        self.meet()
        self.check_acknowledged()

    def effects(self) -> None:
        acts = [self.submit] * 6 + [self.about] * 3 + [self.report] * 5 + [self.ready, self.connect, self.pull]
        acts += [self.world.hold] * 2 + [self.world.disk.end_one] * 3 + [self.world.let_go, self.leave]
        acts += [lambda: self.pass_time(0.5), lambda: self.pass_time(5.0)]
        acts += [self.crash] if self.rng.random() < 0.3 else []
        self.rng.choice(acts)()
        self.listen()

    # What is heard.

    def listen(self) -> None:
        while self.world.heard:
            self.hear(self.world.heard.popleft())

    def hear(self, heard: Heard) -> None:
        name = next((name for name, line in self.back.items() if line == heard.who), "")
        if heard.command == "rpc":
            self.hear_rpc(heard.body)
        elif heard.command == "TASKS" and name:
            for row in heard.body:
                self.take(name, row["id"], row["attempt"])
        elif heard.command == "TASKSOK" and name:
            for id_, attempt, code in heard.body:
                self.forget(name, id_, attempt)
                if code == 200:
                    self.keep(id_, attempt)
        elif heard.command == "TASKSCANCEL" and name:
            for id_, attempt in heard.body:
                self.forget(name, id_, attempt)

    def forget(self, name: str, id_: str, attempt: int) -> None:
        if self.hand[name].get(id_) == attempt:
            del self.hand[name][id_]

    def take(self, name: str, id_: str, attempt: int) -> None:
        assert (id_, attempt) not in self.handed, f"attempt {attempt} of {id_} was handed out twice"
        self.handed[id_, attempt] = name
        self.hand[name][id_] = attempt
        row = self.row(id_)
        assert row is not None, f"{id_} was handed out, and is not stored"
        assert row.attempt >= attempt, f"attempt {attempt} of {id_} was handed out, and is not stored"

    def keep(self, id_: str, attempt: int) -> None:
        assert self.stored.setdefault(id_, attempt) == attempt, f"{id_} has two results"
        assert self.row(id_).result == b'"%b"' % self.results[id_, attempt].encode()

    def hear_rpc(self, said: dict[str, Any]) -> None:
        if "method" in said:
            self.tell(said["params"])
            return
        what, about = self.asked.pop(said["id"], ("gone", None))
        if what == "submit" and "result" in said:
            id_ = said["result"]
            assert self.row(id_) is not None, f"{id_} was acknowledged, and is not stored"
            assert about is None or self.by_key.setdefault(about, id_) == id_, f"{about} has two tasks"
            assert id_ not in self.taken or about is not None, f"{id_} was given twice"
            self.taken[id_] = about
        elif what == "node" and "error" in said and self.back.get(NODE) == about:
            del self.back[NODE]
        elif what == "pull":
            assert "result" in said, said
            for row in said["result"]:
                self.take(NODE, row["id"], row["attempt"])
        elif what == "finish":
            self.forget(NODE, *about)
            if "result" in said:
                self.keep(*about)
        elif what == "result" and "result" in said:
            assert self.ended.setdefault(about, said["result"]) == said["result"], f"the result of {about} changed"

    def tell(self, told: dict[str, Any]) -> None:
        assert isinstance(self.row(told["task_id"]), EndedTask), f"{told['task_id']} was told of too early"
        if told["status"] == "finished":
            assert self.ended.setdefault(told["task_id"], told["result"]) == told["result"]

    # What must be true.

    def row(self, id_: str) -> Any:
        rows: Any = self.world.store.read(FindTasks((id_,)))
        return rows[0]

    def check_acknowledged(self) -> None:
        for id_ in self.taken:
            assert self.row(id_) is not None, f"{id_} is gone"
        for id_, attempt in self.stored.items():
            assert self.row(id_).result == b'"%b"' % self.results[id_, attempt].encode()

    def finish(self) -> None:
        """All is well again: everything ends."""
        self.world.let_go()
        self.listen()
        self.check_acknowledged()
        if NODE in self.back:
            self.world.ask(self.back.pop(NODE), "node_disconnect", NODE)
        self.pass_time(8.0)
        for _ in range(60):
            open_ = self.world.store.snapshot().tasks.open
            assert self.world.broker.tasks.queue.open == len(open_)
            if not open_:
                return
            if len(self.back) < len(WORKERS):
                self.ready()
            self.report()
            self.pass_time(1.0)
            self.listen()
        raise AssertionError(f"stuck: {open_}")


@pytest.mark.parametrize("part", range(3))
def test_no_promise_is_broken_by_what_is_in_flight(part):
    for seed in range(part, SEEDS, 3):
        storm = Storm(seed)
        try:
            for _ in range(STEPS):
                storm.effects()
            storm.finish()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
