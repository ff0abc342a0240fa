"""The simulated world: brokers, backends, frontends and the network between them, made from a plan, and the timetable
of a run. Invariant: every event comes from the agenda, and every random number from the plan's seed."""

from __future__ import annotations

import random
from typing import Any, Final

from scale0.config import BrokerConfig
from scale0.transport.core.sockets import ACTIVE, BACKEND, FRONTEND
from simulator.invariants.registry import Checkers
from simulator.network.broker import BrokerNode
from simulator.network.calls import Calls
from simulator.network.client_connection import SimLink
from simulator.network.clients import BackendNode, FrontendNode, Surroundings
from simulator.network.connections import ClientEnd, Route, Wire
from simulator.network.task_world import TaskWorld, narrow
from simulator.plan import Plan, offer_of
from simulator.virtual_time import Agenda, Diary

BACK_SECONDS: Final = 60.0
"""The longest backoff of a client."""
LAST_CALLS_SECONDS: Final = 45.0
"""How long before the end the last calls are made."""
SWEEP_SECONDS: Final = 1.0
TWICE: Final = 0.05
"""The share of requests that are sent twice."""
TOGETHER: Final = 0.2
"""With odd seeds, the share of calls that are several at once: these are so many calls that they hide what waits."""
NOBODY: Final = "nobody.offers.this"


class World:
    def __init__(self, plan: Plan, keep_all: bool = False) -> None:
        self.plan = plan
        self.agenda = Agenda()
        self.diary = Diary(self.agenda, keep_all)
        self.rng = self.rng_of("world")
        self.calls = Calls(self.rng_of("calls"), plan.strain)
        self.check = Checkers(self.agenda, self.diary, self.calls, plan)
        self._serial = self.rng_of("routing ids").getrandbits(24)
        self.healed = plan.calm
        self.fault_counts: dict[str, int] = {}
        self.last_fault = 0.0
        config = BrokerConfig(
            identity="broker",
            state="active",
            config_service=True,
            default_heartbeat_interval=plan.interval,
            heartbeat_liveness=plan.liveness,
        )
        self.broker = BrokerNode(self.agenda, self.diary, config, self.rng_of("broker"), self.check, plan.capacity)
        places = config.endpoints()
        self.sockets = {places.frontend: (self.broker, FRONTEND), places.backend: (self.broker, BACKEND)}
        surroundings = Surroundings(self.agenda, self.calls, self.connect, self.check)
        self.routes: dict[str, Route] = {}
        self.backends = [
            BackendNode(
                surroundings,
                self.route(f"backend-{number}"),
                self.rng_of(f"backend {number}"),
                [places.backend],
                offer_of(plan, number),
                plan.asked_intervals[number],
            )
            for number in range(plan.backends)
        ]
        self.frontends = [
            FrontendNode(
                surroundings,
                self.route(f"frontend-{number}"),
                self.rng_of(f"frontend {number}"),
                [places.frontend],
                f"frontend-{number}" if plan.named_frontends else None,
            )
            for number in range(plan.frontends)
        ]
        self.admin = FrontendNode(surroundings, self.route("admin"), self.rng_of("admin"), [places.frontend], "admin")
        self.check.of_broker.backends = {node.name: node for node in self.backends}
        self.check.frontends = self.frontends
        narrow(0)
        self.tasks = TaskWorld(self, plan, plan.tasks) if plan.tasks is not None else None

    def rng_of(self, name: str) -> random.Random:
        """Returns a separate generator for each part, so that one part's draws do not change another's."""
        return random.Random(f"scale0 {self.plan.seed} {name}")

    def connect(self, link: SimLink, endpoint: str) -> Wire | None:
        broker, socket = self.sockets[endpoint]
        if not broker.up and link.route.free:
            self.agenda.after(2 * link.route.delay(), link.refused)
            return None
        return self.wire(link.route, link, broker, socket)

    def wire(self, route: Route, client: ClientEnd, broker: BrokerNode, socket: str) -> Wire:
        """Makes a connection; if the broker's machine is down, messages are lost silently."""
        self._serial += 1
        wire = Wire(self.agenda, self.diary, route, client, broker, socket, self._serial)
        if broker.up:
            broker.accept(wire)
        return wire

    def begin(self) -> None:
        """Starts all participants in random order."""
        self.agenda.at(self.rng.random() * 2, self.broker.start)
        starts = [node.start for node in self.backends] + [node.start for node in (*self.frontends, self.admin)]
        for start in starts:
            self.agenda.at(self.rng.random() * 3, start)
        self.agenda.at(5.0, self._call)
        self.agenda.at(8.0, self._changes)
        self.agenda.at(10.0, self._long_calls)
        self.agenda.at(SWEEP_SECONDS, self._sweep)
        if self.tasks is not None:
            self.tasks.begin()

    def run(self) -> None:
        """Runs from the first start to the last check; the caller schedules faults on the agenda."""
        plan = self.plan
        interval = 2 * plan.interval
        settled = plan.heal_at + BACK_SECONDS + max(3.0, interval * plan.liveness) + 3 * interval + 1.0
        self.agenda.run(max(settled, 20.0))
        self.check.everybody_back(self.broker)
        self.agenda.run(plan.seconds)
        others = self.tasks.count if self.tasks is not None else 0
        self.check.at_the_end(self.broker, len(self.frontends) + len(self.backends) + 1 + others)

    def heal(self) -> None:
        """Ends all faults."""
        self.healed = True
        self.diary.note("everything is healed")
        for route in self.routes.values():
            route.heal()
        self.broker.disk.heal()
        self.set_broker_clock(0.0)
        if not self.broker.up:
            self.broker.start()
        self.broker.wake()
        for backend in self.backends:
            self.set_clock(backend, 0.0)
            self.restore(backend)
        for frontend in (*self.frontends, self.admin):
            if frontend.link is None or frontend.link.ended:
                frontend.start()
            elif frontend.link.stalled:
                frontend.link.resume()
        if self.tasks is not None:
            self.tasks.heal()
        # A new administrator has no pending backoff and ignores late messages to the old one.
        self.admin.vanish(silent=False)
        self.admin.start()
        self.agenda.after(1.0, self.enable)

    def restore(self, backend: BackendNode) -> None:
        """Restores a backend's process and its intended offer."""
        if backend.link is None or backend.link.ended:
            backend.start()
        elif backend.link.stalled:
            backend.link.resume()
        if backend.offered != backend.offer:
            backend.change(backend.offer)

    def set_clock(self, node: BackendNode, offset: float) -> None:
        """Makes the wall clock of a backend's machine jump."""
        node.wall_offset = offset
        if node.link is not None:
            node.link.wall_offset = offset
        self.check.client_clock(node.name, offset)

    def set_broker_clock(self, offset: float) -> None:
        """Makes the wall clock of the broker's machine jump."""
        if self.broker.wall_offset != offset:
            self.check.broker_clock(self.broker)
            self.broker.wall_offset = offset

    def call(self) -> None:
        frontend = self.rng.choice(self.frontends)
        service = NOBODY if self.plan.strain and self.rng.random() < 0.02 else self.rng.choice(self.plan.services)
        twice = self.rng.random() < TWICE
        together = self.plan.seed % 2 == 1 and self.rng.random() < TOGETHER
        frontend.ask(service, self._late, twice, self.rng.randrange(2, 7) if together else 1)

    def change(self) -> None:
        """Changes the configuration as an administrator."""
        number = self.rng.randrange(5)
        changes: dict[str, Any]
        match self.rng.randrange(4):
            case 0:
                changes = {"services.s0": {"name": "s0", "request_queue_limit": 50 + number}}
            case 1:
                changes = {"default_heartbeat_interval": self.plan.interval * (1 + number / 10)}
            case 2:
                changes = {f"services.extra{number}": {"name": f"extra{number}", "timeout": 1.0 + number}}
            case _:
                changes = {f"silences.q{number}": {"name": f"q{number}", "reason": f"{self.agenda.now:.6f}"}}
        self.admin.manage("patch_config", command="patch_config", set=changes)

    @property
    def _late(self) -> bool:
        """After healing only short calls are made, so that calls that must be answered do not wait behind others."""
        return self.healed and not self.plan.calm

    def route(self, name: str) -> Route:
        self.routes[name] = route = Route(name, self.rng_of(f"route {name}"))
        return route

    def _call(self) -> None:
        if self.agenda.now < self.plan.seconds - LAST_CALLS_SECONDS:
            self.call()
            self.agenda.after(self.rng.expovariate(1 / self.plan.call_every), self._call)

    def _long_calls(self) -> None:
        if self.agenda.now < self.plan.seconds - LAST_CALLS_SECONDS:
            if not self._late:
                self.rng.choice(self.frontends).ask_long(self.rng.choice(self.plan.services))
            self.agenda.after(self.rng.uniform(30.0, 60.0), self._long_calls)

    def _changes(self) -> None:
        if self.agenda.now < self.plan.seconds - LAST_CALLS_SECONDS:
            self.change()
            self.agenda.after(self.rng.expovariate(1 / self.plan.change_every), self._changes)

    def enable(self) -> None:
        """Enables the broker after a drain; repeats the command until it succeeds."""
        state = self.broker.broker.state
        if state.state != ACTIVE or state.draining:
            self.admin.manage("enable", command="enable")
            self.agenda.after(2.0, self.enable)

    def _sweep(self) -> None:
        if self.healed and not self.plan.calm and not self.broker.up:
            # It was stopping in order when everything was healed.
            self.broker.start()
        self.check.sweep(self.broker)
        self.agenda.after(SWEEP_SECONDS, self._sweep)
