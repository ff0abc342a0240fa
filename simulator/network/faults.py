"""Faults of the simulation: one method for each fault of `plan.FAULTS`, with its recovery. Invariants: faults are
injected and healed one by one, in random order; after `heal_at` there are none."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from simulator.network.clients import BackendNode
from simulator.network.connections import NOTICED_SECONDS, Route
from simulator.network.disk import Disk
from simulator.network.hostile_client import HostileNode
from simulator.network.world import World
from simulator.plan import Offer
from simulator.virtual_time import Agenda, Diary

JUMPS: Final = (-86_400.0, -3_600.0, -45.0, 45.0, 3_600.0, 86_400.0)
"""Seconds by which a wall clock jumps; each exceeds the allowed clock skew."""
FIRST_SECONDS: Final = 6.0


class FaultPlan(Protocol):
    @property
    def faults(self) -> tuple[str, ...]: ...
    @property
    def fault_every(self) -> float: ...
    @property
    def heal_at(self) -> float: ...


class FaultyWorld(Protocol):
    """A world with faults: a broker's network, or Helens and agents."""

    agenda: Agenda
    diary: Diary
    routes: dict[str, Route]
    fault_counts: dict[str, int]
    last_fault: float
    healed: bool

    @property
    def plan(self) -> FaultPlan: ...
    def heal(self) -> None: ...


class FaultSchedule:
    """Injects the faults of a plan one by one; a subclass has a method for each name."""

    def __init__(self, world: FaultyWorld, rng: random.Random) -> None:
        self._faulty = world
        self._rng = rng
        self._table: dict[str, Callable[[], None]] = {name: getattr(self, f"_{name}") for name in world.plan.faults}

    def begin(self, first_seconds: float = FIRST_SECONDS) -> None:
        """Schedules the first fault and the end of all faults."""
        if self._table:
            self._faulty.agenda.at(first_seconds, self._next)
            self._faulty.agenda.at(self._faulty.plan.heal_at, self._faulty.heal)

    def _next(self) -> None:
        world = self._faulty
        if world.agenda.now < world.plan.heal_at:
            name = self._rng.choice(world.plan.faults)
            world.fault_counts[name] = world.fault_counts.get(name, 0) + 1
            world.last_fault = world.agenda.now
            world.diary.note(f"fault: {name}")
            self._table[name]()
            world.agenda.after(self._rng.expovariate(1 / world.plan.fault_every), self._next)

    def _later(self, low: float, high: float, act: Callable[[], None]) -> None:
        """Repairs a fault after a random delay, unless everything is repaired before."""
        self._faulty.agenda.after(self._rng.uniform(low, high), lambda: None if self._faulty.healed else act())

    def _route(self) -> Route:
        return self._rng.choice(list(self._faulty.routes.values()))

    def _slow_route(self) -> None:
        route = self._route()
        route.low, route.high = self._rng.choice(((0.01, 0.1), (0.0, 0.5), (0.2, 2.0)))
        self._later(1.0, 30.0, route.restore_speed)

    def _clog_ways(self, route: Route, ways: tuple[str, ...], longest: float) -> None:
        for way in ways:
            self._faulty.diary.note(f"clogged: {route.name} {way}")
            route.clog(way)
            self._later(0.2, longest, partial(route.unclog, way))

    def _slow_disk(self, disk: Disk) -> None:
        disk.low, disk.high = 0.05, self._rng.choice((0.5, 3.0))
        self._later(2.0, 20.0, disk.restore_speed)


class Faults(FaultSchedule):
    def __init__(self, world: World) -> None:
        super().__init__(world, world.rng_of("faults"))
        self._world = world
        self._hostile_client = HostileNode(world)

    def _backend(self) -> BackendNode:
        return self._rng.choice(self._world.backends)

    def _clog(self, route: Route, ways: tuple[str, ...]) -> None:
        longest = self._rng.choice((1.0, 6.0, 40.0))
        self._clog_ways(route, ways, longest)
        if self._rng.random() < 0.3:
            self._later(0.0, longest, lambda: self._snap(route, 0.0, 0.0))

    def _clog_one_way(self) -> None:
        self._clog(self._route(), (self._rng.choice(("up", "down")),))

    def _clog_both_ways(self) -> None:
        self._clog(self._route(), ("up", "down"))

    def _split(self) -> None:
        for route in self._world.routes.values():
            if self._rng.random() < 0.5:
                self._clog(route, ("up", "down"))

    def _snap(self, route: Route, client_after: float, broker_after: float) -> None:
        for wire in list(route.wires):
            self._world.diary.note(f"broken: the wire of {route.name}")
            self._world.check.lost(route.name)
            wire.snap(client_after, broker_after)

    def _snap_seen(self) -> None:
        self._snap(self._route(), self._rng.random() * 0.01, self._rng.random() * 0.01)

    def _snap_half_open(self) -> None:
        late = self._rng.uniform(1.0, NOTICED_SECONDS)
        self._snap(self._route(), *self._rng.choice(((0.001, late), (late, 0.001))))

    def _snap_unseen(self) -> None:
        self._snap(self._route(), NOTICED_SECONDS, NOTICED_SECONDS)

    def _restart(self) -> None:
        broker = self._world.broker
        if broker.up and broker.disk.crash_point:
            self._later(0.5, 6.0, self._restart)
        elif not broker.up:
            lost = self._world.plan.disk_may_be_lost and self._rng.random() < 0.5
            broker.start(with_disk=not lost)

    def _broker_killed(self) -> None:
        self._world.broker.crash(silent=False)
        self._later(0.05, 6.0, self._restart)

    def _broker_loses_power(self) -> None:
        self._world.broker.crash(silent=True)
        self._later(1.0, 12.0, self._restart)

    def _broker_killed_before_commit(self) -> None:
        self._crash_at_commit("before")

    def _broker_killed_after_commit(self) -> None:
        self._crash_at_commit("after")

    def _crash_at_commit(self, when: str) -> None:
        """Crashes the broker at the commit of a configuration change."""
        if self._world.broker.up:
            self._world.broker.disk.crash_point = when
            self._world.change()
        self._later(0.5, 6.0, self._restart)

    def _broker_stopped(self) -> None:
        if self._world.broker.up and not self._world.broker.asleep:
            self._world.broker.stop()
        self._later(0.5, 5.0, self._restart)

    def _broker_asleep(self) -> None:
        self._world.broker.sleep()
        self._later(0.1, self._rng.choice((1.0, 10.0, 30.0)), self._world.broker.wake)

    def _disk_slow(self) -> None:
        self._slow_disk(self._world.broker.disk)

    def _broker_clock(self) -> None:
        self._world.set_broker_clock(self._rng.choice(JUMPS))
        self._later(2.0, 40.0, lambda: self._world.set_broker_clock(0.0))

    def _backend_clock(self) -> None:
        node = self._backend()
        self._world.set_clock(node, self._rng.choice((*JUMPS, 10.0, -10.0)))
        self._later(2.0, 40.0, lambda: self._world.set_clock(node, 0.0))

    def _backend_killed(self) -> None:
        node = self._backend()
        if node.link is not None and node.up:
            self._world.diary.note(f"killed: {node.name}")
            node.link.kill(silent=self._rng.random() < 0.3)
        self._later(0.05, 20.0, lambda: self._world.restore(node))

    def _backend_stopped(self) -> None:
        node = self._backend()
        if node.link is not None:
            self._world.diary.note(f"stopped: {node.name}")
            node.link.stall()
        self._later(0.2, self._rng.choice((2.0, 25.0)), lambda: self._world.restore(node))

    def _backend_leaves(self) -> None:
        node = self._backend()
        node.leave()
        self._later(0.1, 10.0, lambda: self._world.restore(node))

    def _offer_changed(self) -> None:
        node = self._backend()
        services = [name for name in self._world.plan.services if self._rng.random() < 0.6]
        slots = self._rng.randint(1, 4)
        # A separate generator: it leaves the other faults of a seed as they were.
        rng = random.Random(f"{node.name} {services} {slots}")
        node.change(Offer(tuple(services), slots, tuple(rng.randint(1, slots) for _ in services if node.offer.each)))
        self._later(1.0, 20.0, lambda: self._world.restore(node))

    def _backend_drained(self) -> None:
        node = self._backend()
        node.change(Offer((), node.offered.slots))
        self._later(1.0, 15.0, lambda: self._world.restore(node))

    def _frontend_vanishes(self) -> None:
        node = self._rng.choice(self._world.frontends)
        node.vanish(silent=self._rng.random() < 0.5)
        self._later(0.1, 10.0, lambda: None if node.up else node.start())

    def _frontend_stopped(self) -> None:
        node = self._rng.choice(self._world.frontends)
        if node.link is not None:
            node.link.stall()
        self._later(0.2, 20.0, lambda: node.link.resume() if node.link is not None else None)

    def _burst(self) -> None:
        for _ in range(self._rng.choice((10, 40, 150))):
            self._world.agenda.after(self._rng.random() * 0.05, self._world.call)

    def _node_killed(self) -> None:
        if self._world.tasks is not None:
            self._world.tasks.kill_node(self._rng.random() < 0.3, self._rng.uniform(0.05, 15.0))

    def _task_clients_vanish(self) -> None:
        if self._world.tasks is not None:
            self._world.tasks.vanish_client(self._rng.random() < 0.3, self._rng.uniform(0.05, 10.0))

    def _task_burst(self) -> None:
        if self._world.tasks is not None:
            for _ in range(self._rng.choice((5, 20, 60))):
                self._world.agenda.after(self._rng.random() * 0.05, self._world.tasks.submit)

    def _hostile(self) -> None:
        self._hostile_client.visit()

    def _drained(self) -> None:
        self._world.admin.manage("drain", command="drain")
        self._later(1.0, 6.0, self._world.enable)

    def _disabled(self) -> None:
        self._world.admin.manage("disable", command="disable")
        self._later(1.0, 8.0, self._world.enable)
