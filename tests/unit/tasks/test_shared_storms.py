"""Brokers on one store under any weather: they die, sleep, lose the database and come back; workers move between them.

Promise: TASK-15, TASK-16.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scale0.storage.interface import StoreFailed, StoreFenced, check_writes
from scale0.storage.task_queries import FindTasks
from scale0.storage.task_rows import EndedTask
from scale0.tasks.core.shared_store import SharedStore
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from simulator.fake_postgres.tasks import Epoch, SharedTasks, _Commit
from tests.unit.tasks.group import FarWorld
from tests.unit.tasks.world import Heard, World

pytestmark = pytest.mark.slow

BROKERS = ("ann", "bob", "cat")
WORKERS = ("w0", "w1", "w2")
NODE = "n0"
METHODS = ("a", "b")
CLIENT = "c"
SEEDS = int(os.environ.get("NETWORK_SEEDS", "30"))
PLANTED_SEEDS = 60
"""In so many a planted bug must show."""
STEPS = 150
TICK = 0.25
CALM_SECONDS = 120.0


class Storm:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 100.0
        self.database = FakeDatabase(lambda: int(self.time * 1_000_000))
        self.lines = 0
        self.worlds = {
            name: FarWorld(
                seed=seed * 10 + number, store=FakePostgresStore(self.database, name), identity=name, group="g"
            )
            for number, name in enumerate(BROKERS)
        }
        self.up = set(BROKERS)
        self.asleep: dict[str, float] = {}
        self.asked: dict[tuple[str, int], tuple[str, Any]] = {}
        self.fronts = {name: self.meet(name) for name in BROKERS}
        self.back: dict[str, tuple[str, str]] = {}
        """Workers and the node: their broker, and the connection there."""
        self.hand: dict[str, dict[str, int]] = {name: {} for name in (*WORKERS, NODE)}
        self.made = 0
        self.taken: set[str] = set()
        self.by_key: dict[str, str] = {}
        self.handed: dict[tuple[str, int], str] = {}
        self.results: dict[tuple[str, int], str] = {}
        self.stored: dict[str, int] = {}

    # Who is there.

    def meet(self, name: str) -> str:
        self.lines += 1
        front = f"frontend-{self.lines}"
        self.ask(name, front, "connect", None, "client_connect", f"{CLIENT}-{name}")
        return front

    def act(self, name: str, do: Callable[[World], Any]) -> Any:
        """Let a broker do something; one that is fenced begins anew."""
        if name not in self.up or name in self.asleep:
            return None
        try:
            return do(self.worlds[name])
        except StoreFenced:
            self.start(name)
            return None

    def start(self, name: str) -> None:
        world = self.worlds[name]
        world.heard.clear()
        world.disk.held = False
        world.far.unreachable = False  # a broker that cannot reach the database does not start
        self.up.add(name)
        self.asleep.pop(name, None)
        world.crash()
        self.back = {who: place for who, place in self.back.items() if place[0] != name}
        self.fronts[name] = self.meet(name)

    def ask(self, name: str, line: str, what: str, about: Any, method: str, *params: Any) -> None:
        number = self.act(name, lambda world: world.ask(line, method, *params))
        if number is not None:
            self.asked[name, number] = (what, about)

    def say(self, name: str, line: str, command: str, body: list[dict[str, Any]]) -> None:
        self.act(name, lambda world: world.say(line, command, {}, body))

    # What is done.

    def submit(self) -> None:
        name = self.rng.choice(BROKERS)
        self.made += 1
        key = self.rng.choice([None, None, f"k{self.rng.randrange(6)}"])
        own = sorted(self.taken)
        after = self.rng.sample(own, min(len(own), self.rng.choice([0, 0, 0, 1, 2])))
        number = self.made if self.rng.random() < 0.8 else max(1, self.made - 1)
        id_ = self.rng.choice([None, f"t{number}"])
        options = {"max_attempts": 3, "after": after, "notify": self.rng.random() < 0.5}
        options |= {} if key is None else {"key": key}
        options |= {"delay": 1.0} if self.rng.random() < 0.2 else {}
        # All brokers serve one client: its id is valid at each.
        said = (f"{CLIENT}-ann", self.rng.choice(METHODS), [self.made], id_, options)
        twice = self.rng.random() < 0.3
        if twice:
            self.act(name, World.hold)
        self.ask(name, self.fronts[name], "submit", key, "client_new_task", *said)
        if twice:
            # It heard nothing, and asks another while the first is at it.
            self.act(name, lambda world: world.disk.end_one())
            other = self.rng.choice(BROKERS)
            self.ask(other, self.fronts[other], "submit", key, "client_new_task", *said)

    def about(self) -> None:
        if self.taken:
            name, id_ = self.rng.choice(BROKERS), self.rng.choice(sorted(self.taken))
            what = self.rng.choice(["cancel", "status", "result"])
            self.ask(name, self.fronts[name], what, id_, f"client_task_{what}", f"{CLIENT}-ann", id_)

    def ready(self) -> None:
        who, name = self.rng.choice(WORKERS), self.rng.choice(BROKERS)
        if name not in self.up or name in self.asleep:
            return
        self.lines += 1
        line = f"backend-{self.lines}"
        self.back[who] = (name, line)
        holds = list(self.hand[who].items())
        self.act(name, lambda world: world.say(line, "CHECKCONFIG", {"identity": who}))
        said = {"services": METHODS, "slots": 2, "config_version": 1, "time": self.worlds[name].wall, "holds": holds}
        self.act(name, lambda world: world.say(line, "READY", said))

    def connect(self) -> None:
        name = self.rng.choice(BROKERS)
        if name in self.up and name not in self.asleep and NODE not in self.back:
            self.lines += 1
            self.back[NODE] = (name, f"backend-{self.lines}")
            self.ask(name, self.back[NODE][1], "node", None, "node_connect", NODE, list(METHODS))

    def pull(self) -> None:
        if NODE in self.back:
            name, line = self.back[NODE]
            self.ask(name, line, "pull", None, "node_tasks_request", NODE, 2)

    def report(self) -> None:
        for who, (name, line) in list(self.back.items()):
            for id_, attempt in list(self.hand[who].items()):
                if self.rng.random() < 0.5:
                    continue
                value = self.results.setdefault((id_, attempt), f"{id_} {attempt}")
                if who == NODE:
                    self.ask(name, line, "finish", (id_, attempt), "node_task_finished", NODE, id_, value, attempt)
                elif self.rng.random() < 0.2:
                    said = [{"id": id_, "attempt": attempt, "status": "running"}]
                    self.say(name, line, "TASKSTATUS", said)
                else:
                    said = [{"id": id_, "attempt": attempt, "result": value}]
                    self.say(name, line, "TASKSDONE", said)

    def die(self) -> None:
        who = self.rng.choice(WORKERS)
        self.back.pop(who, None)
        self.hand[who].clear()

    def kill(self) -> None:
        name = self.rng.choice(BROKERS)
        self.listen()
        self.up.discard(name)
        self.asleep.pop(name, None)
        self.worlds[name].heard.clear()
        self.back = {who: place for who, place in self.back.items() if place[0] != name}

    def revive(self) -> None:
        for name in BROKERS:
            if name not in self.up:
                self.start(name)
                return

    def sleep(self) -> None:
        self.asleep[self.rng.choice(BROKERS)] = self.time + self.rng.choice([1.0, 4.0, 12.0])

    def cut(self) -> None:
        self.worlds[self.rng.choice(BROKERS)].far.unreachable = True

    def mend(self) -> None:
        for world in self.worlds.values():
            world.far.unreachable = False

    def lose_answer(self) -> None:
        self.worlds[self.rng.choice(BROKERS)].far.lose_answer(away=False)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.time += TICK
            for name in BROKERS:
                if self.asleep.get(name, 0.0) and self.asleep[name] <= self.time:
                    del self.asleep[name]
                for who, (where, line) in list(self.back.items()):
                    if where == name:
                        self.beat(who, name, line)
                self.act(name, lambda world: [None for _ in world.pass_time(TICK)])
                self.act(name, lambda world: world.disk.go_on())
            self.listen()

    def beat(self, who: str, name: str, line: str) -> None:
        if who == NODE:
            self.ask(name, line, "beat", None, "node_heartbeat", NODE)
        else:
            wall = self.worlds[name].wall
            self.act(name, lambda world: world.say(line, "HEARTBEAT", {"time": wall, "config_version": 1}))

    def effects(self) -> None:
        acts = [self.submit] * 6 + [self.about] * 3 + [self.report] * 6 + [self.ready] * 3 + [self.connect, self.pull]
        acts += [self.die, self.kill, self.revive, self.revive, self.sleep, self.cut, self.mend, self.mend]
        acts += [
            self.lose_answer,
            lambda: self.pass_time(0.5),
            lambda: self.pass_time(0.5),
            lambda: self.pass_time(4.0),
        ]
        name = self.rng.choice(BROKERS)
        acts += [lambda: self.act(name, World.hold)] + [lambda: self.act(name, World.let_go)] * 3
        self.rng.choice(acts)()
        self.listen()

    # What is heard.

    def listen(self) -> None:
        for name in BROKERS:
            heard = self.worlds[name].heard
            while heard:
                self.hear(name, heard.popleft())

    def hear(self, name: str, heard: Heard) -> None:
        who = next((who for who, place in self.back.items() if place == (name, heard.who)), "")
        if heard.command == "rpc":
            self.hear_rpc(name, heard.body)
        elif heard.command == "TASKS":
            for row in heard.body:
                self.take(who, row["id"], row["attempt"])
        elif heard.command == "TASKSOK" and who:
            for id_, attempt, code in heard.body:
                self.forget(who, id_, attempt)
                if code == 200:
                    self.keep(id_, attempt)
        elif heard.command == "TASKSCANCEL" and who:
            for id_, attempt in heard.body:
                self.forget(who, id_, attempt)

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

    def hear_rpc(self, name: str, said: dict[str, Any]) -> None:
        if "method" in said:
            assert isinstance(self.row(said["params"]["task_id"]), EndedTask), "it was told of too early"
            return
        what, about = self.asked.pop((name, said["id"]), ("gone", None))
        if what == "submit" and "result" in said:
            id_ = said["result"]
            assert self.row(id_) is not None, f"{id_} was acknowledged, and is not stored"
            assert about is None or self.by_key.setdefault(about, id_) == id_, f"{about} has two tasks"
            assert id_ not in self.taken or about is not None, f"{id_} was given twice"
            self.taken.add(id_)
        elif what == "node" and "error" in said:
            self.back.pop(NODE, None)
        elif what == "pull" and "result" in said:
            for row in said["result"]:
                self.take(NODE, row["id"], row["attempt"])
        elif what == "finish":
            self.forget(NODE, *about)
            if "result" in said:
                self.keep(*about)

    # What must be true.

    def row(self, id_: str) -> Any:
        rows: Any = self.database.tasks.answer(Epoch("", 0), FindTasks((id_,)), lambda _: True)
        return rows[0]

    def check(self) -> None:
        for id_ in self.taken:
            assert self.row(id_) is not None, f"{id_} is gone"
        for id_, attempt in self.stored.items():
            assert self.row(id_).result == b'"%b"' % self.results[id_, attempt].encode()

    def finish(self) -> None:
        """All is well again: everything ends."""
        self.mend()
        self.asleep.clear()
        for name in BROKERS:
            if name not in self.up:
                self.start(name)
            self.act(name, World.let_go)
        self.back.pop(NODE, None)
        self.hand[NODE].clear()
        end = self.time + CALM_SECONDS
        while self.time < end:
            for who in WORKERS:
                if who not in self.back:
                    self.ready()
            self.report()
            self.pass_time(1.0)
            self.check()
            if not self.database.tasks.snapshot().open:
                return
        raise AssertionError(f"stuck: {self.database.tasks.snapshot().open}")


def blow(seed: int) -> None:
    """One storm, and the calm after it."""
    storm = Storm(seed)
    for _ in range(STEPS):
        storm.effects()
        storm.check()
    storm.finish()


@pytest.mark.own_store  # it brings its own
@pytest.mark.parametrize("part", range(3))
def test_whatever_happens_nothing_is_lost_and_nothing_ends_twice(part):
    for seed in range(part, SEEDS, 3):
        try:
            blow(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# Bugs that are planted, and what they break.


def two_hold_one_task(patch: pytest.MonkeyPatch) -> str:
    """Whoever takes a task leaves it where it is; and nobody asks whose it is."""
    patch.setattr(SharedTasks, "take", lambda _self, _identity, rows: tuple(rows))
    patch.setattr(_Commit, "_check_holder", lambda _self, _seq: None)
    return "handed out twice|two results|cannot be changed"


def nobody_is_fenced(patch: pytest.MonkeyPatch) -> str:
    """A broker that others took for dead goes on, and writes what is theirs."""
    patch.setattr(FakePostgresStore, "_fence", lambda _self: None)
    patch.setattr(_Commit, "_check_holder", lambda _self, _seq: None)
    return "handed out twice|two results|cannot be changed|not reserved"


def nothing_is_reserved(patch: pytest.MonkeyPatch) -> str:
    """Two brokers may use one id or key."""
    patch.setattr(_Commit, "_use", lambda _self, _write: None)
    found = SharedTasks._look_up

    def never_busy(self: Any, epoch: Any, query: Any, is_alive: Any) -> Any:
        return found(self, epoch, msgspec.structs.replace(query, reserve=None), is_alive)

    patch.setattr(SharedTasks, "_look_up", never_busy)
    return "has two tasks|given twice|exists already|is taken"


def orphans_are_forgotten(patch: pytest.MonkeyPatch) -> str:
    """What a dead broker's dead worker had stays theirs for ever."""
    patch.setattr(SharedStore, "_orphans", lambda _self, _rows, _mark, _now, _step: None)
    return "stuck"


def leases_stay_behind(patch: pytest.MonkeyPatch) -> str:
    """Work that its node brings along is cancelled, and nobody does it."""
    patch.setattr(SharedStore, "_take_up", lambda _self, _row, _holder, _now, _step: None)
    return "stuck"


def lost_answers_count_as_no(patch: pytest.MonkeyPatch) -> str:
    """A commit whose answer got lost is done again."""
    patch.setattr(FakePostgresStore, "lose_answer", do_twice)
    return "journal row|exists already|not held|cannot be changed"


def do_twice(self: Any, away: bool = True) -> None:
    commit = self._apply

    def twice(writes: Any) -> None:
        self._apply = commit
        commit(writes)
        check_writes(writes, self._member.own.next_seq)
        commit(writes)

    self._apply = twice


@pytest.mark.own_store
@pytest.mark.parametrize(
    "plant",
    [
        two_hold_one_task,
        nobody_is_fenced,
        nothing_is_reserved,
        orphans_are_forgotten,
        leases_stay_behind,
        lost_answers_count_as_no,
    ],
)
def test_a_planted_bug_is_seen(plant: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            blow(seed)
        except (AssertionError, StoreFailed, ValueError) as error:
            seen = str(error)
            break
    else:
        seen = f"nothing in {PLANTED_SEEDS} seeds"
    assert re.search(wanted, seen), seen
