"""Simulated backends and frontends: the real sessions, with random callers and handlers. Invariant: a crash loses
everything but the name; work that a dead process started never sends anything."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from scale0.kernel.clock import Now
from scale0.tasks.client.futures import FutureChanged
from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.core.calls import CallAnswered, CallFailed, ManagementAnswered, PartialReply
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import Connected, SessionEffects, SessionEnded
from simulator.network.broker import LOCAL_TOKEN
from simulator.network.calls import HANDLER_ERROR, Call, Calls
from simulator.network.client_connection import Connect, SimLink
from simulator.network.connections import Route
from simulator.network.task_clients import TaskCaller
from simulator.network.task_workers import TaskExecutor
from simulator.plan import Offer
from simulator.virtual_time import Agenda


class ClientObserver(Protocol):
    """The observer interface: see `simulator.invariants`."""

    def changed(self, link: SimLink) -> None: ...
    def lost(self, name: str) -> None: ...
    def begun(self, node: BackendNode, call: Call, work: RequestReceived) -> None: ...
    def part_arrived(self, call: Call, bodies: Sequence[bytes]) -> None: ...
    def answer_arrived(self, call: Call, bodies: Sequence[bytes]) -> None: ...
    def failed(self, call: Call, code: int, message: str) -> None: ...
    def managed(self, node: FrontendNode, tag: str, code: int, body: bytes) -> None: ...


class Surroundings:
    """What every client needs from its world."""

    def __init__(self, agenda: Agenda, calls: Calls, connect: Connect, observer: ClientObserver) -> None:
        self.agenda = agenda
        self.calls = calls
        self.connect = connect
        self.observer = observer


class BackendNode:
    """A backend, across all its processes."""

    def __init__(
        self,
        surroundings: Surroundings,
        route: Route,
        rng: random.Random,
        endpoints: Sequence[str],
        offer: Offer,
        asked_interval: float | None,
    ) -> None:
        self._surroundings = surroundings
        self._rng = rng
        self.name = route.name
        self.route = route
        self.endpoints = endpoints
        self.offer = offer
        """The intended offer; a fault may change the current one for a while."""
        self.offered = self.offer
        self.asked_interval = asked_interval
        self.wall_offset = 0.0
        self.handed: dict[str, str] = {}
        """Requests in flight since the broker accepted the backend: the service of each, by id."""
        self.most_offers = [offer]
        """The offers since the broker accepted the backend."""
        self.link: SimLink | None = None
        self.twin: BackendNode | None = None
        self.new_executor: Callable[[], TaskExecutor] | None = None
        """Set if it takes tasks: makes the task executor of a new process."""
        self.executor: TaskExecutor | None = None
        self.prefetch = 0

    @property
    def up(self) -> bool:
        return self.link is not None and not self.link.ended

    def start(self) -> None:
        surroundings = self._surroundings
        self.offered = self.offer
        self.handed = {}
        self.executor = executor = self.new_executor() if self.new_executor is not None else None
        self.session = BackendSession(
            self.endpoints,
            self.name,
            self.offered.services,
            self.offered.slots,
            self._rng,
            self.asked_interval,
            tasks=executor.tasks if executor is not None else None,
            prefetch=self.prefetch,
            service_slots=self.offered.service_slots,
        )
        self.link = SimLink(
            surroundings.agenda,
            self.route,
            self.session,
            surroundings.connect,
            partial(self._receive, self.session),
            surroundings.observer,
            self.wall_offset,
        )
        if executor is not None:
            executor.session, executor.link = self.session, self.link
        self.link.act(self.session.start)

    def change(self, offer: Offer) -> None:
        """Changes the offer; an empty one drains."""
        if self.link is not None and self.up:
            self.offered = offer
            self.most_offers.append(offer)
            session = self.session
            self.link.act(lambda now, out: session.offer(offer.services, offer.slots, now, out, offer.service_slots))

    def most(self, service: str | None = None) -> int:
        """Returns the most slots that it has offered since the broker accepted it, in all or of this service."""
        return max(offer.slots if service is None else offer.slots_of(service) for offer in self.most_offers)

    def running(self, service: str) -> int:
        """Returns the number of requests of this service in flight."""
        return sum(name == service for name in self.handed.values())

    def double(self) -> BackendNode:
        """Starts a second process with the same name; returns a node for the old process, which continues."""
        twin = BackendNode(self._surroundings, self.route, self._rng, self.endpoints, self.offer, self.asked_interval)
        twin.link, twin.session, twin.handed = self.link, self.session, self.handed
        self.twin = twin
        self.start()
        return twin

    def leave(self) -> None:
        """Leaves in order."""
        if self.link is not None and self.up:
            self.link.act(self.session.end)
            self.link.kill(silent=False)

    def _receive(self, session: BackendSession, notifications: list[Any]) -> None:
        if self.executor is not None:
            self.executor.receive(notifications)
        ends: dict[float, list[tuple[Call, int, RequestReceived]]] = {}
        for item in notifications:
            match item:
                case RequestReceived():
                    self.handed[item.id] = item.service
                    self._begin(item, session, ends)
                case Connected():
                    # The broker that accepts it now may not know what it held before.
                    self.handed = {}
                    self.most_offers = [self.offered]
                    if self.executor is not None:
                        self.executor.pump()
                case SessionEnded():
                    node = self if session is self.session or self.twin is None else self.twin
                    if node.link is not None:
                        node.link.kill(silent=False)
                case _:
                    pass
        for seconds, works in ends.items():
            if self.link is not None:
                self.link.later(seconds, partial(self._end_all, works, session))

    def _begin(
        self, work: RequestReceived, session: BackendSession, ends: dict[float, list[tuple[Call, int, RequestReceived]]]
    ) -> None:
        call = self._surroundings.calls.by_nonce[int(work.bodies[0])]
        self._surroundings.observer.begun(self, call, work)
        number = len(call.executions)
        link = self.link
        if link is None:
            return
        for part in range(call.parts):
            body = b"%d %d %d" % (call.nonce, number, part)
            link.later(call.seconds * (part + 1) / (call.parts + 1), partial(session.partial, work.id, [body]))
        ends.setdefault(call.seconds, []).append((call, number, work))

    def _end_all(
        self, works: list[tuple[Call, int, RequestReceived]], session: BackendSession, now: Now, out: SessionEffects
    ) -> None:
        """Answers requests that end at the same time: their replies leave together."""
        for call, number, work in works:
            self.handed.pop(work.id, None)
            if call.error:
                session.error(work.id, HANDLER_ERROR, f"{call.nonce} was not to be", now, out)
            else:
                session.reply(work.id, [b"%d %d %d" % (call.nonce, number, call.parts)], now, out)
        if self.executor is not None:
            self._surroundings.agenda.after(0.0, self.executor.pump)


class FrontendNode:
    """A frontend, across all its processes."""

    def __init__(
        self,
        surroundings: Surroundings,
        route: Route,
        rng: random.Random,
        endpoints: Sequence[str],
        identity: str | None,
    ) -> None:
        self._surroundings = surroundings
        self._rng = rng
        self.name = route.name
        self.route = route
        self.endpoints = endpoints
        self.identity = identity
        self.open_calls: dict[int, Call] = {}
        self.link: SimLink | None = None
        self.tasks: TaskCaller | None = None
        """Set if it submits tasks."""

    @property
    def up(self) -> bool:
        return self.link is not None and not self.link.ended

    def start(self) -> None:
        surroundings = self._surroundings
        task_session = self.tasks.begin() if self.tasks is not None else None
        self.session = FrontendSession(self.endpoints, self.identity, self._rng, sub_protocol=task_session)
        self.link = SimLink(
            surroundings.agenda,
            self.route,
            self.session,
            surroundings.connect,
            self._receive,
            surroundings.observer,
            0.0,
        )
        self.link.act(self.session.start)
        if self.tasks is not None:
            self.tasks.adopt()

    def vanish(self, silent: bool) -> None:
        """Ends the process and all its waiting calls."""
        if self.link is not None and self.up:
            for call in self.open_calls.values():
                call.vanished = True
            self.open_calls = {}
            if self.tasks is not None:
                self.tasks.vanish()
            self.link.kill(silent)

    def ask(self, service: str, short: bool, twice: bool = False, count: int = 1) -> None:
        """Calls a service, several times at once, if the process is alive."""
        if self._awake:
            calls = self._surroundings.calls
            self.send(calls.make_several(self.name, service, self._surroundings.agenda.now, short, count), twice)

    def ask_long(self, service: str) -> None:
        """Calls a service for a reply in many parts."""
        if self._awake:
            self.send([self._surroundings.calls.make_long(self.name, service, self._surroundings.agenda.now)])

    @property
    def _awake(self) -> bool:
        return self.link is not None and self.up and not self.link.stalled

    def send(self, calls: Sequence[Call], twice: bool = False) -> None:
        """Sends these calls together; `twice`: the same requests are sent twice in succession."""
        if self.link is None:
            return
        session = self.session

        def request_all(now: Now, out: SessionEffects) -> None:
            for call in calls:
                self.open_calls[call.nonce] = call
                session.request(call.service, [call.body], call.timeout, call.retry, call, now, out)

        self.link.twice = twice
        self.link.act(request_all)
        self.link.twice = False

    def manage(self, tag: str, **options: Any) -> None:
        """Sends an administrative command as the local administrator."""
        if self.link is not None and self.up and not self.link.stalled:
            session = self.session
            what = {"auth_token": LOCAL_TOKEN, **options}
            self.link.act(lambda now, out: session.manage(what, b"", 10.0, tag, now, out))

    def _receive(self, notifications: list[Any]) -> None:
        observer = self._surroundings.observer
        for item in notifications:
            match item:
                case PartialReply():
                    observer.part_arrived(item.tag, item.bodies)
                case CallAnswered():
                    self._end(item.tag, 200)
                    observer.answer_arrived(item.tag, item.bodies)
                case CallFailed():
                    if isinstance(item.tag, Call):
                        self._end(item.tag, item.code)
                        observer.failed(item.tag, item.code, item.message)
                    else:
                        observer.managed(self, item.tag, item.code, b"")
                case ManagementAnswered():
                    observer.managed(self, item.tag, item.code, item.body)
                case FutureChanged() if self.tasks is not None:
                    self.tasks.receive(item.tag)
                case _:
                    pass

    def _end(self, call: Call, code: int) -> None:
        self.open_calls.pop(call.nonce, None)
        self._surroundings.calls.end(call, code)
