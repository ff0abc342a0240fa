"""Faults of the simulation: one method for each fault of `plan.FAULTS`, with its recovery. Invariants: faults are
injected and healed one by one, in random order; after `heal_at` there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.network.clients import BackendNode
from simulator.network.connections import NOTICED_SECONDS, Route
from simulator.network.hostile_client import HostileNode
from simulator.network.world import World

JUMPS: Final = (-86_400.0, -3_600.0, -45.0, 45.0, 3_600.0, 86_400.0)
"""Seconds by which a wall clock jumps; each exceeds the allowed clock skew."""
FIRST_SECONDS: Final = 6.0


class Faults:
    __slots__ = ("_dice", "_stranger", "_table", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice("faults")
        self._stranger = HostileNode(world)
        self._table: dict[str, Callable[[], None]] = {name: getattr(self, f"_{name}") for name in world.plan.faults}

    def begin(self) -> None:
        """Schedules the first fault and the end of all faults."""
        if self._table:
            self._world.agenda.at(FIRST_SECONDS, self._next)
            self._world.agenda.at(self._world.plan.heal_at, self._world.heal)

    def _next(self) -> None:
        world = self._world
        if world.agenda.now < world.plan.heal_at:
            name = self._dice.choice(world.plan.faults)
            world.fault_counts[name] = world.fault_counts.get(name, 0) + 1
            world.diary.note(f"fault: {name}")
            self._table[name]()
            world.agenda.after(self._dice.expovariate(1 / world.plan.fault_every), self._next)

    def _later(self, low: float, high: float, act: Callable[[], None]) -> None:
        """Heals a fault after a random delay, unless everything is healed before."""
        self._world.agenda.after(self._dice.uniform(low, high), lambda: None if self._world.healed else act())

    def _route(self) -> Route:
        return self._dice.choice(list(self._world.routes.values()))

    def _backend(self) -> BackendNode:
        return self._dice.choice(self._world.backends)

    def _slow_route(self) -> None:
        route = self._route()
        route.low, route.high = self._dice.choice(((0.01, 0.1), (0.0, 0.5), (0.2, 2.0)))
        self._later(1.0, 30.0, lambda: self._quick(route))

    def _quick(self, route: Route) -> None:
        route.low, route.high = 0.0002, 0.002

    def _clog(self, route: Route, ways: tuple[str, ...]) -> None:
        longest = self._dice.choice((1.0, 6.0, 40.0))
        for way in ways:
            self._world.diary.note(f"clogged: {route.name} {way}")
            route.clog(way)
            self._later(0.2, longest, lambda way=way: route.unclog(way))  # type: ignore[misc]
        if self._dice.random() < 0.3:
            self._later(0.0, longest, lambda: self._snap(route, 0.0, 0.0))

    def _clog_one_way(self) -> None:
        self._clog(self._route(), (self._dice.choice(("up", "down")),))

    def _clog_both_ways(self) -> None:
        self._clog(self._route(), ("up", "down"))

    def _split(self) -> None:
        for route in self._world.routes.values():
            if self._dice.random() < 0.5:
                self._clog(route, ("up", "down"))

    def _snap(self, route: Route, client_after: float, broker_after: float) -> None:
        for wire in list(route.wires):
            self._world.diary.note(f"broken: the wire of {route.name}")
            self._world.check.lost(route.name)
            wire.snap(client_after, broker_after)

    def _snap_seen(self) -> None:
        self._snap(self._route(), self._dice.random() * 0.01, self._dice.random() * 0.01)

    def _snap_half_open(self) -> None:
        late = self._dice.uniform(1.0, NOTICED_SECONDS)
        self._snap(self._route(), *self._dice.choice(((0.001, late), (late, 0.001))))

    def _snap_unseen(self) -> None:
        self._snap(self._route(), NOTICED_SECONDS, NOTICED_SECONDS)

    def _restart(self) -> None:
        broker = self._world.broker
        if broker.up and broker.disk.doom:
            self._later(0.5, 6.0, self._restart)
        elif not broker.up:
            lost = self._world.plan.disk_may_be_lost and self._dice.random() < 0.5
            broker.start(with_disk=not lost)

    def _broker_killed(self) -> None:
        self._world.broker.crash(silent=False)
        self._later(0.05, 6.0, self._restart)

    def _broker_loses_power(self) -> None:
        self._world.broker.crash(silent=True)
        self._later(1.0, 12.0, self._restart)

    def _broker_killed_before_commit(self) -> None:
        self._doom("before")

    def _broker_killed_after_commit(self) -> None:
        self._doom("after")

    def _doom(self, when: str) -> None:
        """Crashes the broker at the commit of a configuration change."""
        if self._world.broker.up:
            self._world.broker.disk.doom = when
            self._world.change()
        self._later(0.5, 6.0, self._restart)

    def _broker_stopped(self) -> None:
        if self._world.broker.up and not self._world.broker.asleep:
            self._world.broker.stop()
        self._later(0.5, 5.0, self._restart)

    def _broker_asleep(self) -> None:
        self._world.broker.sleep()
        self._later(0.1, self._dice.choice((1.0, 10.0, 30.0)), self._world.broker.wake)

    def _disk_slow(self) -> None:
        disk = self._world.broker.disk
        disk.low, disk.high = 0.05, self._dice.choice((0.5, 3.0))
        self._later(2.0, 20.0, self._quick_disk)

    def _quick_disk(self) -> None:
        self._world.broker.disk.low, self._world.broker.disk.high = 0.0005, 0.004

    def _broker_clock(self) -> None:
        self._world.set_broker_clock(self._dice.choice(JUMPS))
        self._later(2.0, 40.0, lambda: self._world.set_broker_clock(0.0))

    def _backend_clock(self) -> None:
        node = self._backend()
        self._world.set_clock(node, self._dice.choice((*JUMPS, 10.0, -10.0)))
        self._later(2.0, 40.0, lambda: self._world.set_clock(node, 0.0))

    def _backend_killed(self) -> None:
        node = self._backend()
        if node.link is not None and node.up:
            self._world.diary.note(f"killed: {node.name}")
            node.link.kill(silent=self._dice.random() < 0.3)
        self._later(0.05, 20.0, lambda: self._world.restore(node))

    def _backend_stopped(self) -> None:
        node = self._backend()
        if node.link is not None:
            self._world.diary.note(f"stopped: {node.name}")
            node.link.stall()
        self._later(0.2, self._dice.choice((2.0, 25.0)), lambda: self._world.restore(node))

    def _backend_leaves(self) -> None:
        node = self._backend()
        node.leave()
        self._later(0.1, 10.0, lambda: self._world.restore(node))

    def _offer_changed(self) -> None:
        node = self._backend()
        services = [name for name in self._world.plan.services if self._dice.random() < 0.6]
        node.change(services, self._dice.randint(1, 4))
        self._later(1.0, 20.0, lambda: self._world.restore(node))

    def _backend_drained(self) -> None:
        node = self._backend()
        node.change((), node.offered[1])
        self._later(1.0, 15.0, lambda: self._world.restore(node))

    def _frontend_vanishes(self) -> None:
        node = self._dice.choice(self._world.frontends)
        node.vanish(silent=self._dice.random() < 0.5)
        self._later(0.1, 10.0, lambda: None if node.up else node.start())

    def _frontend_stopped(self) -> None:
        node = self._dice.choice(self._world.frontends)
        if node.link is not None:
            node.link.stall()
        self._later(0.2, 20.0, lambda: node.link.resume() if node.link is not None else None)

    def _burst(self) -> None:
        for _ in range(self._dice.choice((10, 40, 150))):
            self._world.agenda.after(self._dice.random() * 0.05, self._world.call)

    def _node_killed(self) -> None:
        if self._world.tasks is not None:
            self._world.tasks.kill_node(self._dice.random() < 0.3, self._dice.uniform(0.05, 15.0))

    def _task_clients_vanish(self) -> None:
        if self._world.tasks is not None:
            self._world.tasks.vanish_client(self._dice.random() < 0.3, self._dice.uniform(0.05, 10.0))

    def _task_burst(self) -> None:
        if self._world.tasks is not None:
            for _ in range(self._dice.choice((5, 20, 60))):
                self._world.agenda.after(self._dice.random() * 0.05, self._world.tasks.submit)

    def _hostile(self) -> None:
        self._stranger.visit()

    def _drained(self) -> None:
        self._world.admin.manage("drain", command="drain")
        self._later(1.0, 6.0, self._world.enable)

    def _disabled(self) -> None:
        self._world.admin.manage("disable", command="disable")
        self._later(1.0, 8.0, self._world.enable)
