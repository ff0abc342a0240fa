"""Every short sequence of wrong clocks, corrections, kills, orderly stops and time that passes, against a model.

Results, idempotency keys, keys of clients and tokens end only by time that passed, and with a right clock they do end.
"""

# Promise: TASK-20, TASK-4, KEY-4, TIME-1
from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from scale0.kernel.confirmed_clock import CONFIRM_SECONDS, ConfirmedClock
from scale0.kernel.effects import Effects
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from tests.fakes.broker import WALL
from tests.unit.tasks.harness import Refused, TaskBroker

DAY = 86_400.0
CLOCKS = {"right": 0.0, "+10 d": 10 * DAY, "-10 d": -10 * DAY, "+400 d": 400 * DAY}
"""The clock shows this from now on, in a process that runs or at its next start."""
STEPS = (*CLOCKS, "end", "kill", "stop", "30 s", "2 h")
"""`end`: a task with a key ends, its result is kept for a day."""
STARTS_SECONDS = 5.0
"""By how much a kill and a start prolong what is kept, at most."""
LEFT = 5 * DAY
"""How long the key of a client and a token are still valid."""


def sequences(steps: tuple[str, ...], length: int, *first: str) -> Iterator[tuple[str, ...]]:
    """Without those in which a clock is set twice before anything can see it."""
    for rest in itertools.product(steps, repeat=length - len(first)):
        found = (*first, *rest)
        if not any(one in CLOCKS and other in CLOCKS for one, other in itertools.pairwise(found)):
            yield found


class BrokerOnOneHost(TaskBroker):
    """The clock of the database is that of the broker."""

    def _new_store(self) -> FakePostgresStore:
        return FakePostgresStore(FakeDatabase(lambda: int(self.wall * 1e6)), self.config.identity)


class World:
    """One broker, and what must still be there."""

    def __init__(self, kind: type[TaskBroker] = TaskBroker) -> None:
        self.broker = kind(frontend_idle=1e9)
        self.ends = 0
        made = self.broker.manage("issue_token", name="a", role="viewer", ttl=LEFT)
        self.token = msgspec.json.decode(made.bodies[0])["token"]
        self.expires = self.broker.wall + LEFT
        self.clock = ConfirmedClock(self.broker.now)
        """As that of the keys of clients."""
        self.offset, self.since = 0.0, self.broker.mono
        """The clock as this process saw it last, and since when it has kept its time."""
        self.is_counted = self.was_counted = False
        """A clock beyond the expiry was kept for so long that it counts, until it is seen corrected."""
        self.do("end")

    @property
    def true(self) -> float:
        """What a right clock shows."""
        return WALL + self.broker.mono - 100.0

    def do(self, step: str) -> None:
        broker = self.broker
        match step:
            case "end":
                self.ends += 1
                id_ = f"t{self.ends}"
                node = broker.node(id_, "m")
                assert broker.submit(id_, key=id_) == id_
                assert broker.fetch(node, id_)["id"] == id_
                broker.call("node_task_finished", id_, id_, 7, 1, connection=node)
            case "kill" | "stop":
                if step == "stop":
                    self._stop()
                broker.restart()
                last = int(broker.store.snapshot().settings["time:confirmed"]) / 1e6
                self.clock, self.since = ConfirmedClock(broker.now, last), broker.mono
            case "30 s":
                broker.pass_time(30.0)
            case "2 h":
                self._see()
                broker.pass_time(3.0)
                self._see()
                broker.sleep(7_200.0)
                broker.pass_time(3.0)
            case _:
                broker.wall = self.true + CLOCKS[step]
                return
        self._see()

    def _stop(self) -> None:
        effects = Effects()
        self.broker.machine.stop("stopped", self.broker.now, effects)
        self.broker.host.finish(effects)

    def _see(self) -> None:
        broker = self.broker
        offset = broker.wall - self.true
        if offset != pytest.approx(self.offset, abs=0.5):
            self.offset, self.since = offset, broker.mono
        if broker.wall < self.expires:
            self.is_counted = False
        elif broker.mono - self.since >= CONFIRM_SECONDS:
            self.is_counted = self.was_counted = True
        assert self.clock.read(broker.now) < self.expires or self.is_counted, "a key of a client is refused"

    def check(self) -> None:
        """Nothing has ended: all of this took less than a day."""
        broker = self.broker
        broker.pass_time(3.0)
        self._see()
        for number in range(1, self.ends + 1):
            id_ = f"t{number}"
            assert not isinstance(broker.result(id_), Refused), f"the result of {id_} is gone"
            assert broker.submit(None, key=id_) == id_, f"the key of {id_} is gone"
        request = {"command": "whoami", "id": 1, "auth_token": self.token}
        answer = broker.exchange("frontend-a", "MANAGEMENTREQ", request)[-1]
        assert answer.options["code"] == 200 or self.was_counted, "the token is refused"

    def stored(self) -> int:
        return len(self.broker.store.snapshot().tasks.ended)


def keeps_all(steps: tuple[str, ...], kind: type[TaskBroker] = TaskBroker) -> None:
    world = World(kind)
    try:
        for step in steps:
            world.do(step)
        for clock in ("+10 d", "+400 d"):
            world.check()
            world.do(clock)
            world.do("kill")
        world.check()
    except AssertionError as error:
        raise AssertionError(f"{', '.join(steps)}: {error}") from error


@pytest.mark.parametrize("length", [0, 1, 2, pytest.param(3, marks=pytest.mark.extended)])
def test_no_sequence_ends_anything_early(length):
    for steps in sequences(STEPS, length):
        keeps_all(steps)


@pytest.mark.own_store
@pytest.mark.parametrize("length", [0, 1, 2, pytest.param(3, marks=pytest.mark.extended)])
def test_no_sequence_of_jumps_of_the_database_ends_anything_early(length):
    for steps in sequences(STEPS, length):
        keeps_all(steps, BrokerOnOneHost)


@pytest.mark.extended
@pytest.mark.own_store
def test_no_sequence_of_four_steps_ends_anything_early():
    for steps in sequences(STEPS, 4):
        keeps_all(steps)


@pytest.mark.extended
@pytest.mark.own_store
@pytest.mark.parametrize("first", [*sequences(STEPS, 2)], ids=", ".join)
def test_no_sequence_of_five_steps_ends_anything_early(first):
    for steps in sequences(STEPS, 5, *first):
        keeps_all(steps)


@pytest.mark.parametrize("length", [0, 1, 2, pytest.param(3, marks=pytest.mark.extended)])
def test_with_a_right_clock_results_end_in_time_however_often_the_broker_starts(length):
    for steps in sequences(("end", "kill", "stop", "30 s", "2 h"), length):
        world = World()
        for step in steps:
            world.do(step)
        world.broker.sleep(DAY + STARTS_SECONDS * len(steps))
        world.broker.pass_time(60.0)
        assert world.stored() == 0, steps


@pytest.mark.parametrize("length", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_right_clock_counts_again_after_every_sequence(length):
    for steps in sequences(STEPS, length):
        world = World()
        for step in (*steps, "right", "2 h"):
            world.do(step)
        broker = world.broker
        assert broker.machine.management._access.time_us(broker.now) == pytest.approx(broker.wall * 1e6, abs=1e6)
        assert world.clock.read(broker.now) == pytest.approx(broker.wall, abs=1)
        for _ in range(15):
            broker.sleep(30 * DAY)
            broker.pass_time(30.0)
        assert world.stored() == 0, steps


HOUR = 3_600.0
AWAY = {
    "off for an hour": lambda broker: off(broker, "stop", HOUR),
    "killed, off for an hour": lambda broker: off(broker, "kill", HOUR),
    "suspended for an hour": lambda broker: jump(broker, HOUR),
    "off for ten days": lambda broker: off(broker, "stop", 10 * DAY),
}
"""The wall clock is right; the monotonic one does not count this."""
SESSION, TTL = 100.0, 300.0
LATE = 120.0
"""The interval of looks, and the grace period."""
KILLED = 60.0
"""What a kill costs: the time since the last commit."""


def off(broker: TaskBroker, how: str, seconds: float) -> None:
    if how == "stop":
        effects = Effects()
        broker.machine.stop("stopped", broker.now, effects)
        broker.host.finish(effects)
    broker.wall += seconds
    broker.restart()


def jump(broker: TaskBroker, seconds: float) -> None:
    broker.wall += seconds


def lasts(broker: TaskBroker, away: Iterator[str], first_clock: float) -> None:
    """Sessions with a task each; each result is there for its result_ttl of running, and gone after twice of it."""
    ended: dict[str, float] = {}
    running, late = 0.0, LATE
    broker.wall += first_clock
    broker.restart()
    for number, name in enumerate(itertools.chain(away, ["off for an hour"])):
        id_ = f"s{number}"
        node = broker.node(id_, "m")
        assert broker.submit(id_, key=id_, result_ttl=TTL) == id_
        assert broker.fetch(node, id_)["id"] == id_
        broker.call("node_task_finished", id_, id_, 7, 1, connection=node)
        ended[id_] = running
        for _ in range(10):
            broker.pass_time(SESSION / 10)
            running += SESSION / 10
            rows = {row.id for row in broker.store.snapshot().tasks.ended.values()}
            for each, at in ended.items():
                assert each in rows or running - at > TTL - 10.0, f"{each} is gone"
                assert each not in rows or running - at < 2 * TTL + late, f"{each} is still there"
        if first_clock:
            broker.wall, first_clock = broker.wall - first_clock, 0.0
        AWAY[name](broker)
        late += KILLED * name.startswith("killed")


@pytest.mark.own_store
@pytest.mark.parametrize("first_clock", [0.0, -50 * 365 * DAY], ids=["right", "in 1970"])
@pytest.mark.parametrize("names", [*itertools.product(AWAY, repeat=2)], ids=" and ".join)
def test_downtimes_do_not_add_up(names, first_clock):
    lasts(TaskBroker(frontend_idle=1e9), itertools.islice(itertools.cycle(names), 24), first_clock)
