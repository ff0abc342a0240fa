"""The simulated network of Helens and agents, built from a plan, with the timetable of a run.

Everything that happens comes from the agenda, and each random number from the plan's seed.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from scale0.config import HelenConfig
from scale0.monitoring.agent.core.check_schedule import FIRST_RUN_SECONDS
from scale0.monitoring.helen.core.socket_events import ConnectionOpened
from simulator.invariants.agents import BACK_SECONDS, AgentChecks
from simulator.monitoring.agent import AgentNode, Node, Place
from simulator.monitoring.check_findings import Health
from simulator.monitoring.helen import HelenNode
from simulator.monitoring.network import HEAL_METHOD, QUEUE, AgentNetwork
from simulator.monitoring.plan import AgentPlan, CheckPlan
from simulator.monitoring.version1_agent import OldAgentNode
from simulator.network.connections import Route, Wire
from simulator.virtual_time import Agenda, Diary

SWEEP_SECONDS: Final = 1.0
STATES_EVERY: Final = 10
"""Sweeps between two checks of all stored states."""
SIBLINGS_SECONDS: Final = 10.0
LAST_ASK_SECONDS: Final = FIRST_RUN_SECONDS + 15.0
"""How long before the end the last check is requested, and the schedules stop: each check of a new schedule runs once
within `FIRST_RUN_SECONDS`, and its result must arrive."""
OPEN_SECONDS: Final = 15.0
FIRST_PORT: Final = 5_710
ASK_TIMEOUTS: Final = (0.2, 2.0, 10.0)
TIERS: Final = ("web", "work", "db")


class AgentWorld:
    def __init__(self, plan: AgentPlan, keep_all: bool = False) -> None:
        self.plan = plan
        self.agenda = Agenda()
        self.diary = Diary(self.agenda, keep_all)
        self.rng = self.rng_of("world")
        self.health = Health(plan.seed)
        self.check = self.observer = AgentChecks(self.agenda, self.diary, not plan.calm)
        self.network = AgentNetwork(self.agenda, self.diary, self.rng_of("network"), self.health, self.check)
        self.check.network = self.network
        self._serial = self.rng_of("routing ids").getrandbits(24)
        self.healed = plan.calm
        self.fault_counts: dict[str, int] = {}
        self.last_fault = 0.0
        self.routes: dict[str, Route] = {}
        self.helens = [self._make_helen(number) for number in range(plan.helens)]
        self.network.helens = self.helens
        self.agents = [self.make_agent(f"agent-{number}", f"agent-{number}") for number in range(plan.agents)]
        self.old_agents = [
            OldAgentNode(
                self, f"old-{number}", self.route(f"old-{number}"), self.rng_of(f"old {number}"), self.places()
            )
            for number in range(plan.old_agents)
        ]
        self.clones: list[AgentNode] = []
        self.checks: dict[str, dict[str, Any]] = {one.name: definition(one) for one in plan.checks}
        self.silences: dict[str, dict[str, Any]] = {}
        self.downtimes: dict[str, dict[str, Any]] = {}
        self._sweeps = 0

    def rng_of(self, name: str) -> random.Random:
        """Independent random numbers for each part."""
        return random.Random(f"scale0 agents {self.plan.seed} {name}")

    def route(self, name: str) -> Route:
        """The route of a machine to its Helens."""
        self.routes[name] = route = Route(name, self.rng_of(f"route {name}"))
        return route

    def places(self) -> list[Place]:
        """The endpoints of the Helens."""
        places: list[Place] = [node.place for node in self.helens]
        self.rng.shuffle(places)
        return places

    def _make_helen(self, number: int) -> HelenNode:
        config = HelenConfig(
            identity=f"helen-{number}",
            certificate="none",
            private_key="none",
            client_ca="none",
            advertise=f"helen-{number}",
            helen_port=FIRST_PORT + number,
            max_agents=self.plan.max_agents[number],
            heartbeat_seconds=self.plan.heartbeat,
        )
        return HelenNode(self.agenda, self.diary, config, self.rng_of(f"helen {number}"), self.check, self.network)

    def make_agent(self, name: str, machine: str) -> AgentNode:
        """A machine with a certificate of this name."""
        rng = self.rng_of(f"agent {machine}")
        plan = self.plan
        node = AgentNode(self, name, machine, self.route(machine), rng, self.places(), plan.spool_records, plan.offers)
        node.labels = {"tier": rng.choice(TIERS)}
        return node

    def connect(self, node: Node, place: Place, attempt: int) -> None:
        """A machine opens a connection to a Helen."""
        helen = next(one for one in self.helens if one.place == place)
        route = node.route
        if not route.free:
            return
        if helen.up:
            self.agenda.after(3 * route.delay(), self._complete_handshake, node, helen, attempt)
        else:
            self.agenda.after(2 * route.delay(), node.refused, attempt)

    def _complete_handshake(self, node: Node, helen: HelenNode, attempt: int) -> None:
        if node.attempt != attempt:
            return
        if not helen.up:
            node.refused(attempt)
            return
        if not node.route.free:
            return
        self._serial += 1
        wire = Wire(self.agenda, self.diary, node.route, node, helen, "agents", self._serial)
        helen.accept(wire, ConnectionOpened(node.name, node.serial, 1, node.address))
        node.connected(wire)

    def configure(self) -> None:
        """Deliver the current configuration to each Helen."""
        handlers = [
            {"name": "mail", "type": "webhook", "url": "http://mail.example/", "limit": 100_000},
            {"name": "heal", "type": "task", "method": HEAL_METHOD, "limit": 100_000},
        ]
        part = {
            "checks": list(self.checks.values()),
            "handlers": handlers,
            "silences": list(self.silences.values()),
            "downtimes": list(self.downtimes.values()),
        }
        self.network.configure(msgspec.json.encode(part))

    def begin(self) -> None:
        """Start everything, in random order."""
        self.configure()
        for helen in self.helens:
            self.agenda.at(self.rng.random() * 2, helen.start)
        everybody: list[AgentNode | OldAgentNode] = [*self.agents, *self.old_agents]
        for node in everybody:
            self.agenda.at(self.rng.random() * 3, node.start)
        self.agenda.at(5.0, self._ask)
        self.agenda.at(SWEEP_SECONDS, self._sweep)
        if len(self.helens) > 1:
            self.agenda.at(3.0, self._siblings)
        self.agenda.at(self.plan.seconds - LAST_ASK_SECONDS, self._wind_down)

    def run(self) -> None:
        """Run from the first start to the final checks; the caller schedules the faults."""
        plan = self.plan
        settled = plan.heal_at + BACK_SECONDS + OPEN_SECONDS + 3 * plan.heartbeat + 5.0
        self.agenda.run(settled)
        self.check.everybody_back([*self.agents, *self.old_agents], "everything was healed")
        self.agenda.run(plan.seconds)
        self.check.at_the_end(self.helens, self.agents)

    def heal(self) -> None:
        """Repair everything for good; silences remain, because they must stop no check."""
        self.healed = True
        self.diary.note("everything is healed")
        for route in self.routes.values():
            route.heal()
        self.network.queue_away = self.network.queue_mute = False
        self.network.queue = QUEUE
        self.network.separated.clear()
        for helen in self.helens:
            helen.disk.heal()
            helen.wall_offset = 0.0
            if not helen.up:
                helen.start()
            helen.wake()
        for clone in self.clones:
            clone.kill(silent=False)
            clone.spool.lose_all()
        for agent in self.agents:
            agent.wall_offset = 0.0
            self.enrol(agent)
            agent.start()
            agent.wake()
        for old in self.old_agents:
            old.start()

    def enrol(self, agent: AgentNode) -> None:
        """A machine whose certificate was revoked gets a new one."""
        if agent.serial in self.network.revoked_serials:
            agent.serial += "+"

    def watch_return(self, helen: HelenNode) -> None:
        """A Helen has started: without other faults, all agents must reconnect in time."""
        self.agenda.after(BACK_SECONDS, self._returned, helen, helen.life)

    def _returned(self, helen: HelenNode, life: int) -> None:
        # While one Helen is away, the others may not have room for all agents.
        all_up = all(one.up and one.started + BACK_SECONDS <= self.agenda.now for one in self.helens)
        if helen.life == life and all_up and self.last_fault < helen.started and self.plan.storm:
            self.check.everybody_back([*self.agents, *self.old_agents], f"{helen.name} started")

    def ask(self) -> None:
        """Request a check on a random agent."""
        helen = self.rng.choice(self.helens)
        agents = [*(node.name for node in self.agents), *(node.name for node in self.old_agents)]
        if not self.plan.calm:
            agents.append("nobody")
        self.network.ask(helen, self.rng.choice(agents), "c0", self.rng.choice(ASK_TIMEOUTS))

    def _ask(self) -> None:
        if self.agenda.now < self.plan.seconds - LAST_ASK_SECONDS:
            if not self.plan.calm or self.agenda.now > BACK_SECONDS:
                self.ask()
            self.agenda.after(self.rng.expovariate(1 / self.plan.ask_every), self._ask)

    def _siblings(self) -> None:
        self.network.introduce_helens()
        self.agenda.after(SIBLINGS_SECONDS, self._siblings)

    def _wind_down(self) -> None:
        """Stop the schedules by long intervals, so that all results can arrive before the final checks."""
        self.network.closing = True
        for one in self.checks.values():
            one["interval"] = 100_000.0
        self.configure()

    def _sweep(self) -> None:
        self._sweeps += 1
        self.check.sweep(self.helens)
        if self._sweeps % STATES_EVERY == 0:
            for helen in self.helens:
                if helen.lives:
                    self.check.states(helen)
        if self.healed:
            for helen in self.helens:
                if not helen.up and helen.lives:
                    # She was stopping when everything was repaired.
                    helen.start()
        self.agenda.after(SWEEP_SECONDS, self._sweep)


def definition(plan: CheckPlan) -> dict[str, Any]:
    """A check as in the network document."""
    flapping = {"formula": plan.formula, "suppress": plan.suppress_flapping}
    limits = {} if plan.limits is None else {"value": {"warn": plan.limits[0], "crit": plan.limits[1]}}
    return {
        "name": plan.name,
        "interval": plan.interval,
        "timeout": 3.0,
        "max_attempts": plan.max_attempts,
        "flapping": flapping,
        "thresholds": limits,
        "depends_on": list(plan.depends_on),
        "handlers": ["mail", "heal"] if plan.heals else ["mail"],
        "labels": {"tier": plan.label} if plan.label else {},
    }
