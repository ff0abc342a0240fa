"""Requests: from a frontend to a backend and back, each with a deadline.

Invariants: every request in `outstanding` of its origin ends with exactly one REPLY or ERROR (or one call of its
`then`), or with its origin; every request has a timer until its slot is free; a slot is given back exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

from scale0.broker.core.connections import Connection
from scale0.broker.core.permissions import HELEN_PREFIX
from scale0.broker.core.request import OriginId, RoutedRequest, Then
from scale0.broker.core.request_batches import RequestBatch, RequestBatches
from scale0.broker.core.request_memory import RequestMemory, cost_of
from scale0.broker.core.request_queues import RequestQueues, ServiceQueue, owner_of
from scale0.broker.core.request_stats import RequestStats
from scale0.broker.core.scheduler import Backend, Scheduler, Service
from scale0.broker.core.slot_shares import REVIEW_SECONDS, UNLIMITED, SlotShares
from scale0.broker.core.state import BrokerState
from scale0.broker.core.workload import Workload
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.timers import LazyTimerWheel

ABANDONED_SLOT_SECONDS: Final = 600.0
"""How long abandoned work keeps its slot, unless the backend answers or leaves."""


class Requests:
    def __init__(self, state: BrokerState, scheduler: Scheduler, stats: RequestStats) -> None:
        self._state = state
        self._scheduler = scheduler
        self.stats = stats
        self.memory = RequestMemory()
        self._waiting = RequestQueues(self.memory)
        self.under_way: dict[str, RoutedRequest] = {}
        """By our id; without those in batches."""
        self.batches = RequestBatches(state, scheduler, self)
        self.timers: LazyTimerWheel[RoutedRequest | RequestBatch] = LazyTimerWheel()
        self.prefix = f"{state.boot:x}."
        """Ids must not repeat over restarts: a late REPLY to the old broker's request must match nothing."""
        self._next = 0
        self.elsewhere: Callable[[RoutedRequest], Backend | None] = lambda _: None
        """Returns another broker for a service that has no backend here; the composition root sets it."""
        self.not_there: Callable[[Backend, str], None] = lambda *_: None
        """Called when the other broker has no backend for the service either."""
        self.on_helen: Callable[[str, Connection, str, Sequence[bytes], Now, Effects], None] = lambda *_: None
        """Called for each request of a client, by its user or name, to a service of Helen; `CheckCommands` sets it."""
        self.tasks: Workload
        """The other work of backends, which they get when no request waits. The composition root sets it."""

    def submit(
        self,
        origin: Connection,
        origin_id: OriginId,
        service: str,
        bodies: Sequence[bytes],
        timeout: float,
        retry: bool,
        now: Now,
        effects: Effects,
        hops: int = 0,
        then: Then | None = None,
        after_commit: bool = False,
        sender: str = "",
    ) -> None:
        """Accept a request: send it to a backend, queue it, or refuse it.

        `after_commit`: it is not sent before what this turn records is on disk."""
        if origin.awaits_id(origin_id):
            self._state.count("requests_repeated")
            return
        if service.startswith(HELEN_PREFIX) and then is None and not hops:
            self.on_helen(sender or origin.user_id or origin.name, origin, service, bodies, now, effects)
        number, mono = self.take_numbers(1), now.mono
        id_ = self.id_of(number)
        request = RoutedRequest(
            id_, number, origin, origin_id, service, bodies, mono, mono + timeout, retry, hops, then, sender
        )
        self.memory.add(request.payer, request.charge)
        origin.outstanding[origin_id] = request
        self.timers.add(request, mono)
        if after_commit:
            effects.after_commit(lambda at, out: self._begin(request, at, out))
        else:
            self._begin(request, now, effects)

    def _begin(self, request: RoutedRequest, now: Now, effects: Effects) -> None:
        service = request.service
        if request.ended:
            return  # it ended before its record was on disk
        if not self._state.serving:
            self._fail(request, codes.NOT_SERVING, f"this broker is {self._state.state}", now, effects, unrun=True)
            return
        reason = self.memory.why_not(request.payer, 0, self._state.limits)
        if reason:
            self._fail(request, codes.TOO_MANY, reason, now, effects)
            return
        backend = self._take(request)
        if backend is not None:
            self._hand(request, backend, now, effects)
        elif request.origin.waiting_count > self._state.limits.max_outstanding:
            self._fail(request, codes.TOO_MANY, "too many requests of this client are outstanding", now, effects)
        elif request.hops and not self._scheduler.offered(service):
            self._fail(
                request, codes.NO_SUCH_SERVICE, f"no worker at this broker offers {service}", now, effects, unrun=True
            )
        else:
            self._wait(request, now, effects)

    def _take(self, request: RoutedRequest) -> Backend | None:
        """Take a free slot of a local backend; if no local backend has the service, choose another broker."""
        service = self._scheduler.services.get(request.service)
        if service is None or not service.offerings:
            return self.elsewhere(request)
        shares = service.shares
        if shares.in_flight >= shares.most and not shares.has_room(owner_of(request)):
            return None
        return self._scheduler.take(request.service)

    def serve_elsewhere(self, services: Iterable[str], now: Now, effects: Effects) -> None:
        """Backends of another broker have these services: forward waiting requests that have no local backend."""
        for service in services:
            if self._scheduler.offered(service):
                continue  # a local backend exists
            for request in self._waiting.of(service):
                backend = self.elsewhere(request)
                if backend is not None:
                    self._unwait(request)
                    self._hand(request, backend, now, effects)

    def give_back(self, services: Iterable[str], now: Now, effects: Effects) -> None:
        """Return requests of other brokers that have no backend here any more: those brokers may know another one."""
        for service in services:
            if not self._scheduler.offered(service):
                for request in [one for one in self._waiting.of(service) if one.hops]:
                    self._fail(
                        request,
                        codes.NO_SUCH_SERVICE,
                        f"no worker at this broker offers {service}",
                        now,
                        effects,
                        unrun=True,
                    )

    def is_known(self, service: str) -> bool:
        """True if a backend had this service recently, so that the name is valid."""
        return service in self._scheduler.services

    def partial(
        self, connection: Connection, id_: str | int, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """Forward a part of a reply, or keep it for a client that takes only one message."""
        request = self._of(connection, id_, now)
        if request is None or request.ended:
            return
        request.spoke = True
        origin = request.origin
        if origin.takes_parts and request.then is None:
            effects.send(origin, ("PARTIAL", {"id": request.origin_id}, *bodies))
            return
        code, reason = self._keep_part(request, bodies)
        if reason:
            self._fail(request, code, reason, now, effects)
            self.timers.keep(request, now.mono + ABANDONED_SLOT_SECONDS)

    def _keep_part(self, request: RoutedRequest, bodies: Sequence[bytes]) -> tuple[int, str]:
        """Keep a part of a reply; otherwise return the code and why not."""
        limits = self._state.limits
        parts = request.parts = request.parts or []
        parts.extend(bodies)
        cost = cost_of(bodies)
        request.charge += cost
        self.memory.add(request.payer, cost)
        # Check the number first: the sum over very many small parts, repeated for each part, would be quadratic.
        if len(parts) > limits.max_parts or sum(map(len, parts)) > limits.max_message_bytes:
            return codes.TOO_BIG, "the parts of the answer are too big for one message"
        return codes.TOO_MANY, self.memory.why_not(request.payer, 0, limits)

    def reply(
        self, connection: Connection, id_: str | int, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        request = self._of(connection, id_, now)
        if request is None:
            return
        backend = self._release(request, now)
        if not request.ended:
            origin = request.origin
            if request.parts:
                bodies = [*request.parts, *bodies]
            if request.then is None:
                effects.send(origin, ("REPLY", {"id": request.origin_id, "service": request.service}, *bodies))
            if not backend.remote:  # a reply is counted at the broker of its backend
                size = request.size + (len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies)))
                self.stats.answered(request.service, backend.identity, now.mono - request.accepted, size)
            self._end(request)
            if request.then is not None:
                request.then(origin, codes.OK, "done", bodies, now, effects)
        self.feed(backend, request.service, now, effects)

    def error(
        self,
        connection: Connection,
        id_: str | int,
        code: int,
        message: str,
        now: Now,
        effects: Effects,
        unrun: bool = False,
    ) -> None:
        """An error from a backend; `unrun`: another broker returns the request without having run it."""
        request = self._of(connection, id_, now)
        if request is None:
            return
        backend = self._release(request, now)
        if unrun and backend.remote and not request.ended and not request.spoke:
            self.not_there(backend, request.service)
            self.again((request,), now, effects)
        elif not request.ended:
            self._fail(request, code, message, now, effects, backend)
        self.feed(backend, request.service, now, effects)

    def feed(self, backend: Backend, service: str | None, now: Now, effects: Effects) -> None:
        """A backend has a free slot of this service, or of any: waiting requests come first, then tasks."""
        if backend.remote:
            return
        if self._waiting:
            self.serve(backend, backend.services if service is None else (service,), now, effects)
        self.tasks.feed(backend, service, now, effects)

    def serve(self, backend: Backend, services: Collection[str], now: Now, effects: Effects) -> None:
        """Send the backend the next requests of the services that have slots: clients in turn, each in order.

        `services`: those that may have slots again; if services share slots, any of them may."""
        waiting, offerings = self._waiting.queues, backend.offerings
        if backend.is_shared:
            services = backend.services
        able = {name for name in services if name in waiting and name in offerings and offerings[name].has_room}
        while able:
            request = self._next_waiting(able)
            if request is None:
                return
            if not self._scheduler.take_from(backend, request.service):
                able.discard(request.service)
                continue
            self._hand_waiting(request, backend, now, effects)

    def _next_waiting(self, services: Set[str]) -> RoutedRequest | None:
        """The next waiting request of these services whose account may have one more in flight."""
        while (request := self._waiting.next(services)) is not None:
            shares = self._scheduler.services[request.service].shares
            if shares.in_flight < shares.most or shares.has_room(request.owner):
                return request
            self._waiting.queues[request.service].park(request.owner)
        return None

    def _hand_waiting(self, request: RoutedRequest, backend: Backend, now: Now, effects: Effects) -> None:
        self._waiting.served(request)
        request.origin.waiting_bytes -= request.size
        self._hand(request, backend, now, effects)

    def _review(self, service: Service, now: Now, effects: Effects) -> None:
        """The limit may have ended, because accounts are not active any more; or a backend was lost with all requests
        of an account that waits for free slots of others."""
        service.shares.is_watched = False
        service.shares.review(len(service.offerings), service.slots, now.mono)
        self._watch(service, now)
        queue = self._waiting.queues.get(service.name)
        if queue is not None:
            queue.unpark_all()
            self._serve_free(service.name, now, effects)

    def _watch(self, service: Service, now: Now) -> None:
        shares = service.shares
        if shares.most != UNLIMITED and not shares.is_watched:
            shares.is_watched = True
            self._state.timers.add((self._review, service), now.mono + REVIEW_SECONDS)

    def _serve_free(self, service: str, now: Now, effects: Effects) -> None:
        """Use the free slots of all backends for requests that waited because of their accounts."""
        while self._scheduler.offered(service) and (request := self._next_waiting({service})) is not None:
            backend = self._scheduler.take(service)
            if backend is None:
                return
            self._hand_waiting(request, backend, now, effects)

    def lose(self, backend: Backend, keep: Container[str], now: Now, effects: Effects) -> None:
        """A backend lost its work, except `keep`: retry it elsewhere, or answer with an error."""
        self.batches.separate_all(backend.batches, now)
        again: list[RoutedRequest] = []
        for held in [work for work in backend.held.values() if isinstance(work, RoutedRequest) and work.id not in keep]:
            self._release(held, now)
            if held.ended:
                continue
            if held.retry and not held.spoke and held.deadline > now.mono:
                again.append(held)
            else:
                self._fail(held, codes.BACKEND_DIED, f"the backend {backend.identity} died", now, effects, backend)
        self.again(again, now, effects)

    def refuse_all(self, code: int, message: str, now: Now, effects: Effects) -> None:
        """Answer all waiting clients with an error; backends keep their work."""
        for backend in self._scheduler.backends:
            self.batches.separate_all(backend.batches, now)
        waiting = [request for queue in self._waiting.queues.values() for request in queue]
        for request in [*waiting, *self.under_way.values()]:
            if not request.ended:
                self._fail(request, code, message, now, effects)

    def redirect(self, ids: Iterable[str], now: Now, effects: Effects) -> None:
        """The requests were never sent to their backend: give them to others, even if retries are not allowed."""
        self.again(self.take_back(ids, now), now, effects)

    def redirect_batch(self, connection: Connection, first: int, now: Now, effects: Effects) -> None:
        """As `redirect`, for the batch with this first number of ours."""
        member = connection.member
        for batch in list(member.backend.batches) if member is not None and member.backend is not None else ():
            if batch.number == first:
                self.redirect([request.id for request in self.batches.separate(batch, now)], now, effects)

    def take_back(self, ids: Iterable[str], now: Now) -> list[RoutedRequest]:
        """Release requests that were never sent to their backends; return those that a client still waits for."""
        requests = [self.under_way[id_] for id_ in ids if id_ in self.under_way]
        for request in requests:
            self._release(request, now)
        return [request for request in requests if not request.ended]

    def origin_gone(self, connection: Connection, now: Now) -> None:
        """No client waits for these replies any more."""
        connection.is_gone = True
        self.batches.separate_all(connection.batches, now)
        for request in list(connection.outstanding.values()):
            self._abandon(request, now)

    def move(self, old: Connection, new: Connection, now: Now, effects: Effects) -> None:
        """A client reconnected: its replies go to the new connection; an id that it reuses belongs to the new request.

        A reply that has begun is failed: some of its parts may have been lost with the old connection.
        """
        self.batches.separate_all([*old.batches, *new.batches], now)
        for request in [request for id_, request in old.outstanding.items() if id_ in new.outstanding]:
            self._abandon(request, now)
        for request in old.outstanding.values():
            request.origin = new
        new.outstanding.update(old.outstanding)
        old.outstanding = {}
        new.waiting_bytes += old.waiting_bytes
        old.waiting_bytes = 0
        if old.takes_parts:
            for request in [request for request in new.outstanding.values() if request.spoke]:
                message = "the connection to the worker was lost during its answer"
                self._fail(request, codes.BACKEND_DIED, message, now, effects, request.backend)
                self.timers.keep(request, now.mono + ABANDONED_SLOT_SECONDS)

    def tick(self, now: Now, effects: Effects) -> None:
        for request in self._expired(now):
            if request.ended:
                if request.backend is not None:
                    self._state.count("slots_abandoned")
                    backend = self._release(request, now)
                    self.feed(backend, request.service, now, effects)
            elif request.backend is not None:
                message = f"{request.backend.identity} did not answer in time"
                self._fail(request, codes.NO_ANSWER, message, now, effects, request.backend)
                self.timers.keep(request, now.mono + ABANDONED_SLOT_SECONDS)
            elif self._scheduler.offered_since(request.service, request.accepted):
                self._fail(request, codes.NO_ANSWER, f"every backend of {request.service} was busy", now, effects)
            else:
                self._fail(request, codes.NO_SUCH_SERVICE, f"no worker offers {request.service}", now, effects)

    def _expired(self, now: Now) -> Iterator[RoutedRequest]:
        for one in self.timers.expire(now.mono):
            if type(one) is RoutedRequest:
                yield one
            elif isinstance(one, RequestBatch) and not one.ended:
                yield from self.batches.separate(one, now)

    def deadline(self) -> float | None:
        return self.timers.deadline()

    @property
    def in_flight(self) -> int:
        """How many requests backends have."""
        batches = (batch for backend in self._scheduler.backends for batch in backend.batches)
        return len(self.under_way) + sum(batch.left for batch in batches)

    @property
    def queues(self) -> Mapping[str, ServiceQueue]:
        return self._waiting.queues

    def take_numbers(self, count: int) -> int:
        """The first of so many new numbers."""
        first = self._next + 1
        self._next += count
        return first

    def id_of(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def _of(self, connection: Connection, id_: str | int, now: Now) -> RoutedRequest | None:
        if id_ not in self.under_way:
            self.batches.separate_by_id(connection, id_, now)
        request = self.under_way.get(id_)  # type: ignore[arg-type]  # an int is simply not there
        if request is None or request.backend is None or request.backend.peer is not connection:
            self._state.count("replies_unknown")
            return None
        return request

    def adopt(self, request: RoutedRequest, backend: Backend, now: Now) -> None:
        """The request has left a batch; it has its slot already."""
        request.backend = backend
        backend.held[request.id] = request
        self.under_way[request.id] = request
        request.origin.outstanding[request.origin_id] = request
        self.memory.add(request.payer, request.charge)
        self.timers.add(request, now.mono)

    def _hand(self, request: RoutedRequest, backend: Backend, now: Now, effects: Effects) -> None:
        request.backend = backend
        backend.held[request.id] = request
        self.under_way[request.id] = request
        self.send(request, backend, now, effects)
        if not backend.remote:
            service = self._scheduler.services[request.service]
            request.shares = shares = service.shares
            request.account = account = owner_of(request)
            if account == shares.alone:
                shares.in_flight += 1
            else:
                shares.take(account, len(service.offerings), service.slots, now.mono)
                self._watch(service, now)

    def send(self, request: RoutedRequest, backend: Backend, now: Now, effects: Effects) -> None:
        options: dict[str, Any] = {
            "service": request.service,
            "id": request.id,
            "timeout": request.deadline - now.mono,
        }
        if backend.remote:
            options["hops"] = request.hops + 1
            origin = request.origin
            options["sender"] = (
                request.sender or origin.user_id or f"{self._state.identity}/{origin.socket}/{origin.routing_id.hex()}"
            )
            effects.send(backend.peer, ("FORWARD", options, *request.bodies))
        else:
            effects.send(backend.peer, ("REQUEST", options, *request.bodies))

    def _release(self, request: RoutedRequest, now: Now) -> Backend:
        """Give the slot back; the request has no backend afterwards."""
        backend = request.backend
        if backend is None:
            raise AssertionError("a request without a backend has no slot to give back")
        del self.under_way[request.id]
        del backend.held[request.id]
        request.backend = None
        if request.ended:
            self.timers.remove(request)
        if not backend.remote:
            self._scheduler.give_back(backend, request.service)
            shares = request.shares
            if shares.in_flight > 1 and shares.alone is not None:
                shares.in_flight -= 1
            else:
                self.give_share(request.account, request.service, shares, now)
        return backend

    def give_share(self, account: Any, service: str, shares: SlotShares, now: Now) -> None:
        """Whoever may have one more in flight now has a turn again."""
        is_changed = shares.give(account, now.mono)
        queue = self._waiting.queues.get(service)
        if queue is None or shares.alone is not None:
            return
        if is_changed:
            queue.unpark_all()
        elif shares.in_flight < shares.most:
            queue.unpark_first()
        else:
            queue.unpark(account)

    def again(self, requests: Sequence[RoutedRequest], now: Now, effects: Effects) -> None:
        """These requests have no backend: give them to others, in their order, ahead of all waiting requests."""
        waiting: list[RoutedRequest] = []
        for request in requests:
            self._state.count("requests_retried")
            # A new id: a late message of the old backend about the old id must match nothing.
            request.id = self.id_of(self.take_numbers(1))
            backend = self._take(request)
            if backend is not None:
                self._hand(request, backend, now, effects)
            else:
                waiting.append(request)
        for request in reversed(waiting):
            self._waiting.add(request, first=True)
            request.origin.waiting_bytes += request.size

    def _wait(self, request: RoutedRequest, now: Now, effects: Effects) -> None:
        """Queue the request; if the queue is full, the client with the most requests in it is refused."""
        origin = request.origin
        if origin.waiting_bytes + request.size > self._state.limits.max_client_bytes:
            self._fail(request, codes.TOO_MANY, "too many bytes of this client are waiting", now, effects)
            return
        reason = self.memory.why_not(owner_of(request), self._waiting.cost(request), self._state.limits)
        if reason:
            self._fail(request, codes.TOO_MANY, reason, now, effects)
            return
        policy = self._state.policies.get(request.service)
        limit = self._state.limits.request_queue_limit
        if policy is not None and policy.request_queue_limit is not None:
            limit = policy.request_queue_limit
        loser = self._waiting.room(request, limit)
        if loser is not None:
            self._fail(loser, codes.TOO_MANY, f"the queue of {request.service} is full", now, effects)
        if loser is not request:
            self._waiting.add(request)
            origin.waiting_bytes += request.size

    def _unwait(self, request: RoutedRequest) -> None:
        if self._waiting.remove(request):
            request.origin.waiting_bytes -= request.size

    def _fail(
        self,
        request: RoutedRequest,
        code: int,
        message: str,
        now: Now,
        effects: Effects,
        backend: Backend | None = None,
        unrun: bool = False,
    ) -> None:
        if request.then is None:
            error: dict[str, Any] = {"id": request.origin_id, "code": code, "message": message}
            effects.send(request.origin, ("ERROR", {**error, "unrun": True} if unrun else error))
        if request.origin.peer is None:  # a failure is counted at the broker of its frontend
            name = backend.identity if backend else ""
            self.stats.failed(request, name, self.is_known(request.service), code, now, effects)
        self._end(request)
        if request.then is not None:
            request.then(request.origin, code, message, (), now, effects)

    def _abandon(self, request: RoutedRequest, now: Now) -> None:
        self._end(request)
        if request.backend is not None:
            self.timers.keep(request, now.mono + ABANDONED_SLOT_SECONDS)

    def _end(self, request: RoutedRequest) -> None:
        """No client waits for it any more; it may still occupy a slot."""
        request.ended = True
        request.bodies = ()
        request.parts = None
        request.origin.outstanding.pop(request.origin_id, None)
        self.memory.remove(request.payer, request.charge)
        self.timers.remove(request)
        if request.backend is None:
            self._unwait(request)
