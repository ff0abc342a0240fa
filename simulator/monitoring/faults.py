"""Faults between simulated Helens and agents, one method for each name in `plan.FAULTS`, each with its repair.

Faults are injected and repaired one by one, in random order. After `heal_at` there are none.
"""

from __future__ import annotations

from typing import Final

from simulator.monitoring.agent import AgentNode
from simulator.monitoring.helen import HelenNode
from simulator.monitoring.network import OTHER_QUEUE, QUEUE
from simulator.monitoring.world import TIERS, AgentWorld
from simulator.network.connections import Route
from simulator.network.faults import JUMPS, FaultSchedule
from simulator.network.process import EPOCH_WALL

FIRST_SECONDS: Final = 8.0
UNSEEN: Final = 1e9
"""Later than the end of each run."""
OLD_NOTICES_SECONDS: Final = 60.0
"""An agent without heartbeats notices a lost connection by TCP keepalive."""
LATE_SECONDS: Final = 20.0
"""How long answers may be late after a Helen was slow: the timeout of a request begins when she receives it."""
MANY_STARTS: Final = 24
"""Restarts of an agent in a row: more spools of one agent than Helen remembers."""


class AgentFaults(FaultSchedule):
    def __init__(self, world: AgentWorld) -> None:
        super().__init__(world, world.rng_of("faults"))
        self._world = world
        self._number = 0

    def begin(self, first_seconds: float = FIRST_SECONDS) -> None:
        super().begin(70.0 if self._world.plan.storm else first_seconds)

    def _helen(self) -> HelenNode:
        return self._rng.choice(self._world.helens)

    def _agent(self) -> AgentNode:
        return self._rng.choice(self._world.agents)

    def _note(self, text: str) -> None:
        self._world.diary.note(text)

    def _route_slow(self) -> None:
        self._slow_route()

    def _route_clogged(self) -> None:
        route = self._route()
        longest = self._rng.choice((1.0, 10.0, 40.0))
        self._clog_ways(route, self._rng.choice((("up",), ("down",), ("up", "down"))), longest)

    def _snap(self, route: Route, client_after: float, helen_after: float) -> None:
        for wire in list(route.wires):
            self._note(f"lost: the connection of {route.name}")
            if getattr(wire.client, "version", 2) == 1:
                client_after, helen_after = (
                    min(client_after, OLD_NOTICES_SECONDS),
                    min(helen_after, OLD_NOTICES_SECONDS),
                )
            wire.snap(client_after, helen_after)

    def _connection_lost(self) -> None:
        routes = list(self._world.routes.values())
        for route in self._rng.sample(routes, self._rng.randint(1, len(routes))):
            self._snap(route, self._rng.random() * 0.01, self._rng.random() * 0.01)

    def _connection_half_open(self) -> None:
        self._snap(self._route(), *self._rng.choice(((0.001, UNSEEN), (UNSEEN, 0.001), (UNSEEN, UNSEEN))))

    def _start(self, helen: HelenNode) -> None:
        if helen.up and helen.disk.crash_point:
            self._later(0.5, 6.0, lambda: self._start(helen))
        elif not helen.up:
            helen.start()
            self._world.watch_return(helen)

    def _killed(self, helen: HelenNode, silent: bool, low: float, high: float) -> None:
        helen.crash(silent)
        self._later(low, high, lambda: self._start(helen))

    def _helen_killed(self) -> None:
        self._killed(self._helen(), False, 0.05, 6.0)

    def _helen_loses_power(self) -> None:
        self._killed(self._helen(), True, 1.0, 12.0)

    def _helen_away(self) -> None:
        self._killed(self._helen(), self._rng.random() < 0.3, 30.0, 120.0)

    def _helen_killed_before_commit(self) -> None:
        self._crash_at_commit("before")

    def _helen_killed_after_commit(self) -> None:
        self._crash_at_commit("after")

    def _crash_at_commit(self, when: str) -> None:
        helen = self._helen()
        if helen.up:
            helen.disk.crash_point = when
        self._later(0.5, 6.0, lambda: self._start(helen))

    def _helen_stopped(self) -> None:
        helen = self._helen()
        if helen.up and not helen.asleep:
            helen.stop()
        self._later(0.5, 8.0, lambda: self._start(helen))

    def _helen_asleep(self) -> None:
        helen = self._helen()
        longest = self._rng.choice((1.0, 10.0, 40.0))
        helen.sleep()
        self._world.check.slow_until[helen.name] = self._world.agenda.now + longest + LATE_SECONDS
        self._later(0.1, longest, helen.wake)

    def _disk_slow(self) -> None:
        helen = self._helen()
        self._slow_disk(helen.disk)
        self._world.check.slow_until[helen.name] = self._world.agenda.now + 20.0 + LATE_SECONDS

    def _helen_clock(self) -> None:
        helen = self._helen()
        helen.wall_offset = self._rng.choice(JUMPS)
        self._later(2.0, 40.0, lambda: setattr(helen, "wall_offset", 0.0))

    def _everybody_killed(self) -> None:
        for helen in self._world.helens:
            self._killed(helen, self._rng.random() < 0.3, 0.5, 20.0)
        for agent in self._world.agents:
            self._kill_agent(agent, 0.1, 20.0)

    def _kill_agent(self, agent: AgentNode, low: float, high: float) -> None:
        agent.kill(silent=self._rng.random() < 0.3)
        self._later(low, high, agent.start)

    def _agent_killed(self) -> None:
        self._kill_agent(self._agent(), 0.05, 20.0)

    def _agent_loses_power(self) -> None:
        agent = self._agent()
        agent.lose_power()
        self._later(1.0, 30.0, agent.start)

    def _agent_restarts_often(self) -> None:
        """An agent that dies soon after each start, for a while without a Helen."""
        agent = self._agent()
        agent.route.clog("up")
        agent.route.clog("down")

        def again(left: int) -> None:
            if not left:
                agent.start()
                agent.route.unclog("up")
                agent.route.unclog("down")
                return
            agent.kill(silent=False)
            agent.start()
            self._later(1.0, 3.0, lambda: again(left - 1))

        again(MANY_STARTS)

    def _agent_reloaded(self) -> None:
        self._world.network.reload(self._helen(), self._agent().name)

    def _agent_asleep(self) -> None:
        agent = self._agent()
        agent.sleep()
        self._later(0.2, self._rng.choice((2.0, 40.0)), agent.wake)

    def _agent_clock(self) -> None:
        agent = self._agent()
        agent.wall_offset = self._rng.choice(JUMPS)
        self._later(2.0, 60.0, lambda: setattr(agent, "wall_offset", 0.0))

    def _certificate_cloned(self) -> None:
        """A second machine with the same certificate; later it is switched off and its disk is lost."""
        agent = self._agent()
        self._number += 1
        clone = self._world.make_agent(agent.name, f"clone-{self._number}")
        clone.labels, clone.serial = agent.labels, agent.serial
        self._world.clones.append(clone)
        clone.start()

        def away() -> None:
            clone.kill(silent=False)
            clone.spool.lose_all()

        self._later(5.0, 60.0, away)

    def _certificate_revoked(self) -> None:
        agent = self._agent()
        self._note(f"revoked: {agent.serial}")
        self._world.network.revoke(agent.serial)
        self._later(2.0, 30.0, lambda: self._world.enrol(agent))

    def _labels_changed(self) -> None:
        """The labels in its configuration change, and it restarts."""
        agent = self._agent()
        agent.labels = {"tier": self._rng.choice(TIERS)}
        agent.kill(silent=False)
        self._later(0.1, 3.0, agent.start)

    def _checks_changed(self) -> None:
        world = self._world
        name = self._rng.choice(list(world.checks))
        one = dict(world.checks[name])
        match self._rng.randrange(4):
            case 0:
                one["max_attempts"] = self._rng.randint(1, 4)
            case 1:
                one["interval"] = self._rng.choice((2.0, 3.0, 7.0))
            case 2:
                one["enabled"] = not one.get("enabled", True)
            case _:
                one["thresholds"] = {"value": {"warn": 40.0, "crit": self._rng.choice((70.0, 90.0))}}
        world.checks[name] = one
        world.configure()

    def _silenced(self) -> None:
        world = self._world
        self._number += 1
        name = f"q{self._number}"
        ends = 0.0 if self._rng.random() < 0.5 else EPOCH_WALL + world.agenda.now + self._rng.uniform(5.0, 60.0)
        silence = {"name": name, "ends": ends, **self._reach()}
        world.silences[name] = silence
        world.configure()
        if self._rng.random() < 0.7:
            self._later(5.0, 60.0, lambda: self._take_away(world.silences, name))

    def _downtime(self) -> None:
        world = self._world
        self._number += 1
        name = f"d{self._number}"
        starts = EPOCH_WALL + world.agenda.now + self._rng.uniform(-5.0, 20.0)
        downtime = {"name": name, "starts": starts, "ends": starts + self._rng.uniform(6.0, 60.0), **self._reach()}
        world.downtimes[name] = downtime
        world.configure()
        if self._rng.random() < 0.3:
            self._later(5.0, 60.0, lambda: self._take_away(world.downtimes, name))

    def _reach(self) -> dict[str, object]:
        match self._rng.randrange(4):
            case 0:
                return {"agents": [self._agent().name]}
            case 1:
                return {"checks": [self._rng.choice(list(self._world.checks))]}
            case 2:
                return {"labels": {"tier": "w*"}}
            case _:
                return {}

    def _take_away(self, entries: dict[str, dict[str, object]], name: str) -> None:
        del entries[name]
        self._world.configure()

    def _queue_away(self) -> None:
        network = self._world.network
        network.queue_away = True
        self._later(2.0, 40.0, lambda: setattr(network, "queue_away", False))

    def _helens_separated(self) -> None:
        """A Helen loses the network for a while, and agents move between the Helens."""
        helen, separated = self._helen(), self._world.network.separated
        self._note(f"separated: {helen.name}")
        separated.add(helen.name)
        self._later(20.0, 150.0, lambda: separated.discard(helen.name))
        for _ in range(4):
            self._later(1.0, 60.0, self._connection_lost)

    def _queue_mute(self) -> None:
        network = self._world.network
        network.queue_mute = True
        self._later(2.0, 40.0, lambda: setattr(network, "queue_mute", False))

    def _queue_moves(self) -> None:
        """A broker stores tasks whose acknowledgements are lost, and is away; the Helens are connected to another."""
        network = self._world.network
        network.queue_mute = True
        self._later(0.5, 20.0, self._queue_lost)

    def _queue_lost(self) -> None:
        network = self._world.network
        network.queue_mute = False
        network.queue = OTHER_QUEUE
        self._later(20.0, 90.0, lambda: setattr(network, "queue", QUEUE))

    def _asked_often(self) -> None:
        for _ in range(self._rng.choice((5, 30))):
            self._world.agenda.after(self._rng.random() * 0.05, self._world.ask)
