"""Reads and plays `stories/*.txt`.

A line is `AT VERB …` or `expect …`; README.md beside the stories lists the words. Every checker of the simulated world
runs too, so a story fails if any promise is broken on the way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from scale0.transport.core.sockets import BACKEND
from simulator.network.calls import Call
from simulator.network.clients import BackendNode
from simulator.network.connections import NOTICED_SECONDS
from simulator.network.world import SWEEP_SECONDS, World
from simulator.plan import Offer, Plan

STORIES: Final = Path(__file__).parent / "stories"
FIRST_SECONDS: Final = 1.0
"""By then everybody is up."""


def plan_of(words: dict[str, str]) -> Plan:
    """A calm plan of exactly this size."""
    slots = tuple(int(number) for number in words.get("slots", "1,1").split(","))
    services = tuple(words.get("services", "s0").split(","))
    return Plan(
        seed=int(words.get("seed", "1")),
        seconds=600.0,
        calm=False,
        faults=(),
        fault_every=1.0,
        disk_may_be_lost=False,
        backends=len(slots),
        slots=slots,
        service_slots=((),) * len(slots),
        services=services,
        offers=(services,) * len(slots),
        asked_intervals=(None,) * len(slots),
        frontends=int(words.get("frontends", "1")),
        named_frontends=True,
        call_every=1.0,
        interval=float(words.get("interval", "1")),
        liveness=int(words.get("liveness", "3")),
        change_every=60.0,
        capacity=1_000,
        strain=False,
    )


class Story:
    """One file, being played."""

    def __init__(self, text: str) -> None:
        self.lines = [line.split("#")[0].split() for line in text.splitlines()]
        self.lines = [words for words in self.lines if words]
        network = self.lines.pop(0) if self.lines[0][0] == "network" else ["network"]
        self.world = World(plan_of(dict(word.split("=") for word in network[1:])), keep_all=True)
        self.calls: dict[str, Call] = {}
        self.ends: dict[str, float] = {}
        self.twins: list[BackendNode] = []

    def play(self) -> None:
        """Do every line at its time, and look at what was expected."""
        world = self.world
        world.agenda.at(0.0, world.broker.start)
        for number, node in enumerate(world.backends):
            world.agenda.at(0.1 + number / 100, node.start)
        for frontend in (*world.frontends, world.admin):
            world.agenda.at(0.5, frontend.start)
        world.agenda.at(SWEEP_SECONDS, self._sweep)
        for words in self.lines:
            if words[0] == "expect":
                self._expect(words[1:])
            else:
                world.agenda.run(float(words[0]))
                self._do(words[1], words[2:])

    def _sweep(self) -> None:
        self.world.check.sweep(self.world.broker)
        self.world.agenda.after(SWEEP_SECONDS, self._sweep)

    def _backend(self, name: str) -> BackendNode:
        return next(node for node in self.world.backends if node.name == name)

    def _do(self, verb: str, words: list[str]) -> None:
        match verb, words:
            case "ask", [name, service, *rest]:
                self._ask(name, service, rest)
            case "change", []:
                self.world.change()
            case "clog" | "unclog", [name, way]:
                getattr(self.world.routes[name], verb)(way)
            case "break", [name, *how]:
                self._break(name, how)
            case "clock", ["broker", seconds]:
                self.world.set_broker_clock(float(seconds))
            case "clock", [name, seconds]:
                self.world.set_clock(self._backend(name), float(seconds))
            case "disk", ["takes", seconds]:
                self.world.broker.disk.low = self.world.broker.disk.high = float(seconds)
            case "offer", [name, slots, *services]:
                self._backend(name).change(Offer(tuple(services), int(slots)))
            case "wait", []:
                pass
            case _, ["broker", *how]:
                self._broker(verb, how)
            case _, [name, *how]:
                self._client(verb, name, how)
            case _:
                raise AssertionError(f"nobody knows how to {verb} {words}")

    def _ask(self, name: str, service: str, rest: list[str]) -> None:
        options = dict(word.split("=") for word in rest if "=" in word)
        frontend = self.world.frontends[int(options.get("by", "0"))]
        nonce = len(self.world.calls.by_nonce) + 1
        timeout = float(options.get("timeout", "30"))
        call = Call(nonce, frontend.name, service, timeout, "retry" in rest, self.world.agenda.now)
        call.seconds, call.parts = float(options.get("takes", "0.01")), int(options.get("parts", "0"))
        self.world.calls.by_nonce[nonce] = self.calls[name] = call
        frontend.send([call], twice="twice" in rest)

    def _break(self, name: str, how: list[str]) -> None:
        seen = {"client": 0.001, "broker": 0.001}
        if how:
            seen = {who: 0.001 if f"{who}-sees" in how else NOTICED_SECONDS for who in seen}
        for wire in list(self.world.routes[name].wires):
            self.world.check.lost(name)
            wire.snap(seen["client"], seen["broker"])

    def _broker(self, verb: str, how: list[str]) -> None:
        broker = self.world.broker
        match verb:
            case "kill":
                broker.crash(silent="silently" in how)
            case "start":
                broker.start(with_disk="anew" not in how)
            case "doom":
                broker.disk.crash_point = how[0]
            case "sleep" | "wake" | "stop":
                getattr(broker, verb)()
            case "disable" | "enable" | "drain":
                self.world.admin.manage(verb, command=verb)
            case _:
                raise AssertionError(f"a broker cannot {verb}")

    def _client(self, verb: str, name: str, how: list[str]) -> None:
        nodes: list[Any] = [*self.world.backends, *self.world.frontends]
        node = next(node for node in nodes if node.name == name)
        match verb:
            case "kill" if isinstance(node, BackendNode):
                assert node.link is not None
                node.link.kill(silent="silently" in how)
            case "kill":
                node.vanish(silent="silently" in how)
            case "start":
                node.start()
            case "stop":
                node.link.stall()
            case "resume":
                node.link.resume()
            case "double":
                # Another process with the same name; the first one lives on, and is looked at as the twin.
                self.twins.append(node.double())
            case "wake-twin":
                self.twins[-1].link.resume()  # type: ignore[union-attr]  # it had a link when it was doubled
            case _:
                raise AssertionError(f"a client cannot {verb}")

    def _expect(self, words: list[str]) -> None:
        match words:
            case [name, "answered"]:
                self._ended(name, 200)
            case [name, "fails", code]:
                self._ended(name, int(code))
            case [name, "open"]:
                assert not self.calls[name].ended, f"{name} has ended with {self.calls[name].code}"
            case [name, "ran", times]:
                assert len(self.calls[name].executions) == int(times), self.calls[name].executions
            case [name, "in", "queue"]:
                assert self._queued(name), f"{name} is not in the queues"
            case [name, "not", "in", "queue"]:
                assert not self._queued(name), f"{name} is in the queues"
            case ["version", version]:
                assert self.world.broker.broker.documents.version == int(version)
            case ["managed", *what]:
                assert self.world.check.acknowledged.get(" ".join(what)), self.world.check.acknowledged
            case ["note", *what]:
                assert any(" ".join(what) in line for line in self.world.diary.lines()), f"nobody noted {what}"
            case ["no", "note", *what]:
                found = [line for line in self.world.diary.lines() if " ".join(what) in line]
                assert not found, found
            case ["twin", "refused", code]:
                assert self.twins[-1].session.connection.refusal.startswith(code), self.twins[
                    -1
                ].session.connection.refusal
                assert not self.twins[-1].up
            case _:
                raise AssertionError(f"nobody knows what to expect of {words}")

    def _ended(self, name: str, code: int) -> None:
        call = self.calls[name]
        assert call.ended == 1, f"{name} has not ended"
        assert call.code == code, f"{name} ended with {call.code}"

    def _queued(self, name: str) -> bool:
        member = self.world.broker.broker.members.by_name.get((BACKEND, name))
        return member is not None and member.backend is not None and bool(member.backend.services)
