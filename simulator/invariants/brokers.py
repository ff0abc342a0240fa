"""Invariants of a broker's tables: an independent model of liveness, slots and order, derived from the messages on its
sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend, Offering
from scale0.history.events.clients import ClientJoined, ClientLeft, ClientLost, ClientReplaced
from scale0.kernel.clock import Now
from scale0.kernel.effects import Message
from scale0.kernel.limits import Limits
from scale0.transport.core.request_batches import batch_length
from scale0.transport.core.sockets import BACKEND, FRONTEND
from simulator.network.broker import BrokerNode, Mail
from simulator.network.clients import BackendNode
from simulator.network.connections import Wire
from simulator.plan import Plan
from simulator.promises import broken
from simulator.virtual_time import Agenda

SLACK_SECONDS: Final = 0.25
"""Tolerance on top of the intervals."""
JUDGED_SECONDS: Final = 20.0
"""A clock is judged by messages of the last few intervals, in which it may still have been wrong."""
HAS_TIME: Final = (b"READY", b"HEARTBEAT")
ROUNDING: Final = 1e-6
HONEST_CODES: Final = (408, 409, 425, 426, 503)
"""Codes that a correct client may receive: silence, takeover, wrong clock, old configuration, not serving."""
OWN_TIMERS: Final = 24
"""Timers of a broker without clients."""


class BrokerChecks:
    def __init__(self, agenda: Agenda, plan: Plan) -> None:
        self._agenda = agenda
        self._plan = plan
        self._limits = Limits()
        self.backends: dict[str, BackendNode] = {}
        self.hostile = 0
        """Connections that hostile clients may have left behind."""
        self.clocks: dict[str, tuple[float, float]] = {}
        """The offset of each client's clock, and since when."""
        self.clock_misled = False
        self.woke_at = 0.0
        self.began()

    def began(self) -> None:
        """Resets the model for a new process."""
        self._receive: dict[str, float] = {}
        self._seat: dict[str, bytes] = {}
        self._met: dict[bytes, float] = {}
        self._entered: dict[int, int] = {}
        self._handed: list[tuple[str, str]] = []
        self._tasked: set[int] = set()
        """Backends that had tasks since their last request: their position in the order is unknown here."""
        self._candidates: list[Offering] | None = None
        self._moved = False
        self.clock_misled = False

    def before_turn(self, node: BrokerNode, mail: Sequence[Mail], now: Now) -> None:
        for wire, frames in mail:
            name = wire.client.name
            if wire.routing_id not in self._met:
                self._met[wire.routing_id] = now.mono
            if len(frames) > 1 and frames[1] == b"CHECKCONFIG":
                self._seat[name] = wire.routing_id
            if self._seat.get(name) == wire.routing_id:
                self._receive[name] = now.mono
            if len(frames) > 1 and frames[1] in HAS_TIME:
                difference = abs(self.clocks.get(name, (0.0, 0.0))[0] - node.wall_offset)
                self.clock_misled |= node.wall_offset != 0.0 and difference <= self._limits.max_clock_skew
        self._handed = []
        self._moved = False
        self._candidates = None
        if len(mail) == 1 and mail[0][0].socket == FRONTEND:
            offerings = (one for each in node.broker.scheduler.backends for one in each.offerings.values())
            self._candidates = [offering for offering in offerings if offering.has_room]

    def happened(self, node: BrokerNode, event: Any, now: Now) -> None:
        match event:
            case ClientJoined(role=role) if role == BACKEND:
                for backend in node.broker.scheduler.backends:
                    self._entered.setdefault(backend.serial, node.turns)
            case ClientLost(identity=identity, role=role) if role == BACKEND and identity in self.backends:
                self._moved = True
                silent = now.mono - self._receive.get(identity, now.mono)
                least = self._plan.interval * self._plan.liveness
                if silent < least - ROUNDING:
                    raise broken("never-too-early", f"{identity} is dead after {silent:.3f} s, before {least:g} s")
            case ClientLeft() | ClientReplaced():
                self._moved = True
            case _:
                pass

    def sent(self, node: BrokerNode, wire: Wire | None, peer: Connection, messages: Sequence[Message]) -> None:
        """Checks what the broker sends to a client, or would send if it were reachable."""
        name = peer.member.identity if peer.member is not None else ""
        for message in messages:
            if not isinstance(message, tuple):
                continue
            if message[0] == "REQUEST":
                self._handed.append((name, message[1]["service"]))
            elif message[0] == "REQUESTS":
                self._handed.extend([(name, message[1]["service"])] * batch_length(message[2]))
            elif message[0] == "DISCONNECTERROR" and wire is not None:
                self._let_go(node, wire.client.name, message[1].code, message[1].message)

    def after_turn(self, node: BrokerNode) -> None:
        """Checks that each backend that received work had room and was next in order."""
        scheduler = node.broker.scheduler
        self._tasked.update(backend.serial for backend in scheduler.backends if backend.tasks)
        if not self._handed:
            return
        named = {backend.identity: backend for backend in scheduler.backends}
        for name, service in self._handed:
            backend = named.get(name)
            if backend is not None and backend.slots and backend.busy > max(backend.slots, self._most(name)):
                raise broken("slots", f"{name} was given {backend.busy} at once, and has {backend.slots} slots")
            own = backend.offerings.get(service) if backend is not None else None
            if own is not None and own.slots and own.busy > max(own.slots, self._most(name, service)):
                raise broken("slots", f"{name} was given {own.busy} of {service} at once, and has {own.slots} slots")
        if self._candidates and len(self._handed) == 1 and not self._moved:
            self._in_turn(named.get(self._handed[0][0]), self._handed[0][1])
        # A member that was taken over in the same turn has no name any more: then all count as having received work.
        known = all(name in named for name, _ in self._handed)
        for name in [name for name, _ in self._handed] if known else named:
            self._entered[named[name].serial] = node.turns
            if not named[name].tasks:
                self._tasked.discard(named[name].serial)
        self._handed = []
        self._candidates = None

    def sweep(self, node: BrokerNode) -> None:
        """Called once a second: checks liveness, queues, slots, and memory."""
        if not node.up or node.asleep:
            return
        self._silence(node)
        scheduler, requests = node.broker.scheduler, node.broker.requests
        for backend in scheduler.backends:
            count = len(backend.held) + sum(batch.left for batch in backend.batches)
            if backend.busy != count + backend.slotted or backend.slotted > len(backend.tasks):
                story = f"{count} requests and {backend.slotted} of {len(backend.tasks)} tasks"
                raise broken("no-leak", f"{backend.identity}: {backend.busy} slots taken for {story}")
            for name, own in backend.offerings.items():
                self._check_offering(backend, name, own)
        for service in scheduler.services.values():
            serials = [serial for _, serial, _ in service.heap]
            if len(serials) != len(set(serials)):
                raise broken("one-place", f"a backend is twice in the queue of {service.name}")
        held = sum(len(backend.held) for backend in scheduler.backends)
        if held != len(requests.under_way):
            raise broken("no-leak", f"{len(requests.under_way)} requests are under way, and {held} are held")
        given = [batch for backend in scheduler.backends for batch in backend.batches]
        asked = [batch for connection in node.broker.connections for batch in connection.batches]
        if set(given) != set(asked) or any(batch.ended or not batch.pending for batch in given):
            raise broken("no-leak", f"backends have {len(given)} batches, and clients wait for {len(asked)}")
        members, records = len(node.broker.members.by_name), len(node.broker.connections)
        timers = len(node.broker.state.timers)
        since = node.now.mono - 2 * self._limits.frontend_idle
        self._met = {each: when for each, when in self._met.items() if when >= since}
        waits = node.broker.tasks.completion_waits.waiting + rings(node)
        if timers > OWN_TIMERS + 2 * members + 2 * records + len(self._met) + waits:
            story = f"{timers} timers for {members} members, {records} records and {len(self._met)} new connections"
            raise broken("bounded-memory", story)

    def everybody_back(self, node: BrokerNode) -> None:
        """After healing: checks that all backends are in their queues."""
        if not node.up:
            raise broken("back-after-healing", "the broker itself is down")
        for backend in self.backends.values():
            member = node.broker.members.by_name.get((BACKEND, backend.name))
            place = member.backend if member is not None else None
            offer = backend.offered
            each = {} if place is None else {name: place.offerings[name].slots for name in place.services}
            wanted = {name: offer.slots_of(name) for name in offer.services}
            if place is None or place.slots != offer.slots or each != wanted:
                line = backend.session.connection
                story = f"it is {line.state}, refused with {line.refusal!r}" if backend.up else "its process is gone"
                raise broken("back-after-healing", f"{backend.name} is not in its queues: {story}")

    def at_the_end(self, node: BrokerNode, clients: int) -> None:
        """Final checks, when nothing happens any more."""
        broker = node.broker
        for backend in broker.scheduler.backends:
            if backend.busy or backend.held or backend.batches:
                raise broken(
                    "no-leak", f"{backend.identity} still has {backend.busy} slots taken: {list(backend.held)}"
                )
        for connection in broker.connections:
            if connection.awaits:
                raise broken("no-leak", f"{connection.name} still waits for {list(connection.outstanding)}")
        waiting = sorted(broker.requests.queues)
        if waiting or broker.requests.under_way:
            raise broken("no-leak", f"waiting: {waiting}, under way: {list(broker.requests.under_way)}")
        if broker.requests.memory.used or broker.requests.memory.of:
            raise broken("no-leak", f"requests that ended have {broker.requests.memory.used} bytes")
        if broker.requests.deadline() is not None:
            raise broken("no-leak", "a request that ended still has a timer")
        if len(broker.connections) > clients + self.hostile:
            raise broken(
                "bounded-memory", f"{len(broker.connections)} connections are remembered, of {clients} clients"
            )

    def _most(self, name: str, service: str | None = None) -> int:
        node = self.backends.get(name)
        return node.most(service) if node is not None else 0

    def _check_offering(self, backend: Backend, name: str, own: Offering) -> None:
        """Checks the slots and the work of one service of a backend."""
        held: list[Any] = list(backend.held.values())
        requests = sum(request.service == name for request in held)
        requests += sum(batch.left for batch in backend.batches if batch.service == name)
        tasks = sum(task.method == name for task in backend.tasks.values())
        if own.held != tasks or own.busy != requests + own.slotted or own.slotted > tasks:
            story = f"{requests} requests and {own.slotted} of {tasks} tasks"
            raise broken("no-leak", f"{backend.identity}: {own.busy} slots of {name} taken for {story}")
        if own.slots and own.busy > max(own.slots, self._most(backend.identity, name)):
            raise broken("slots", f"{backend.identity} has {own.busy} of {name}, and {own.slots} slots")
        if own.has_room and not own.is_listed:
            raise broken("one-place", f"{backend.identity} has room, and is not in the queue of {name}")

    def _let_go(self, node: BrokerNode, name: str, code: int, message: str) -> None:
        if name.startswith("hostile"):
            return
        if code not in HONEST_CODES:
            raise broken("no-false-refusal", f"{name} received {code} {message}")
        others_right = all(self._is_right(other) for other in self.backends)
        # A broker with a wrong clock cannot know better if a client confirmed that clock.
        knows = node.wall_offset == 0.0 or (others_right and not self.clock_misled)
        if code == 425 and self._is_right(name) and knows:
            raise broken("clock-kills-nobody", f"{name} received {message}, and its clock is right")

    def _is_right(self, name: str) -> bool:
        offset, since = self.clocks.get(name, (0.0, -JUDGED_SECONDS))
        return abs(offset) <= self._limits.max_clock_skew / 2 and self._agenda.now - since > JUDGED_SECONDS

    def _in_turn(self, chosen: Backend | None, service: str) -> None:
        if chosen is None or chosen.serial in self._tasked:
            return
        stamp = self._entered.get(chosen.serial, 0)
        for other in [one.backend for one in self._candidates or () if one.name == service]:
            if other.serial in self._tasked:
                continue
            if service in other.services and other.alive and self._entered.get(other.serial, 0) < stamp:
                raise broken("lru", f"{chosen.identity} was given work before {other.identity}, whose turn it was")

    def _silence(self, node: BrokerNode) -> None:
        now = node.now.mono
        for member in node.broker.members.by_name.values():
            if not member.judged:
                continue
            limit = member.interval * (self._plan.liveness + 1) + SLACK_SECONDS
            silent = now - self._receive.get(member.identity, now)
            if silent > limit and self._agenda.now - self.woke_at > limit:
                raise broken("silence-noticed", f"{member.identity} is silent for {silent:.3f} s, over {limit:g} s")


def rings(node: BrokerNode) -> int:
    """Returns the number of task timers that were set again while one was set: each ends within a second."""
    buckets = node.broker.state.timers._buckets.values()
    return sum(act.__name__ in ("_ring", "_save") for bucket in buckets for act, _ in bucket)
