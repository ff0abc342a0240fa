"""The scheduler (LRU): which backend offers which services, their free slots, and the time of its last work.

A backend has a total of slots, and each of its services (an `Offering`) has slots of its own: no more than either is
busy at once. Invariants: an offering is in its service's heap at most once (`is_listed`); an offering with a free slot
is in the heap, or in `absent` of a backend whose total is taken; `busy` never becomes negative, and each slot taken is
given back once.

A backend has one stamp for all its services: an outdated heap entry is corrected when it reaches the top. An offering
without a free slot is removed from the heap when it is found there, and added again when a slot becomes free. Each
removal is paid for by one `take`, so the cost does not grow with 10,000 backends or 1,000 services each.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.core.slot_shares import SlotShares

if TYPE_CHECKING:
    from scale0.broker.core.connections import Connection
    from scale0.broker.core.request_batches import RequestBatch

MAX_IDLE_SERVICES: Final = 10_000
"""Services without backends that are remembered."""
HEAP_SLACK: Final = 64
"""Heap entries of removed backends, beyond the live ones, before a heap is rebuilt."""


class Offering:
    """One service of one backend: its slots, and its work in flight."""

    __slots__ = ("backend", "busy", "held", "is_listed", "name", "pace", "paced", "slots", "slotted", "withdrawn")

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.slots = 0
        """The most requests and tasks at once; 0 once the backend has withdrawn the service."""
        self.withdrawn = 0
        """The slots that the service had when it was withdrawn; 0: not known."""
        self.busy = 0
        self.is_listed = False
        self.held = 0
        """Its tasks in flight; `tasks` writes this and the fields below."""
        self.slotted = 0
        """How many of these have a slot: the others were prefetched."""
        self.pace = 0.0
        self.paced = 0.0

    @property
    def has_room(self) -> bool:
        backend = self.backend
        return self.busy + backend.reserved < self.slots and backend.busy + backend.reserved < backend.slots


class Backend:
    remote = False
    """It is another broker: it has no slots, and gets FORWARD."""

    __slots__ = (
        "absent",
        "alive",
        "batches",
        "busy",
        "held",
        "identity",
        "is_shared",
        "offerings",
        "peer",
        "prefetch",
        "pushes",
        "reserved",
        "returns",
        "serial",
        "services",
        "slots",
        "slotted",
        "stamp",
        "tasks",
        "untaken",
    )

    def __init__(self, identity: str, peer: Connection, serial: int) -> None:
        self.identity = identity
        self.peer = peer
        self.serial = serial
        self.services: frozenset[str] = frozenset()
        self.offerings: dict[str, Offering] = {}
        """By service: those that it offers, and withdrawn ones that still have work."""
        self.slots = 0
        """The most requests and tasks at once, of all services together."""
        self.is_shared = False
        """Its services share slots: a slot that one of them frees may be used by another."""
        self.busy = 0
        self.reserved = 0
        """Slots that are kept free, of each service and of the total."""
        self.stamp = serial
        self.alive = True
        self.absent: list[Offering] = []
        self.held: dict[str, object] = {}
        """Its requests in flight, by the broker's own id, except those in `batches`."""
        self.batches: list[RequestBatch] = []
        self.tasks: dict[str, Any] = {}
        """Its tasks in flight, in the order of hand-out; `tasks` writes this and the fields below."""
        self.slotted = 0
        self.prefetch = 0
        """The most tasks that it prefetches beyond its slots."""
        self.pushes = False
        """It speaks TASKS: tasks may be pushed to it."""
        self.returns = False
        """It answers a reclaim."""
        self.untaken: frozenset[str] = frozenset()
        """Services whose tasks its key may not take: it gets only their requests."""

    def offering(self, name: str) -> Offering:
        """The offering of this name; one without slots if the service is not offered."""
        found = self.offerings.get(name)
        if found is None:
            self.offerings[name] = found = Offering(self, name)
        return found

    def forget_unused(self, offering: Offering) -> None:
        """Forget an offering that is withdrawn and has no work."""
        unused = not (offering.slots or offering.busy or offering.held or offering.is_listed)
        if unused and offering.name not in self.services:
            self.offerings.pop(offering.name, None)


class Service:
    __slots__ = ("answering", "heap", "last_offered", "name", "offerings", "shares", "slots")

    def __init__(self, name: str) -> None:
        self.name = name
        self.answering = 0
        """Offerings that have slots: the others only take tasks."""
        self.heap: list[tuple[int, int, Offering]] = []
        self.offerings: set[Offering] = set()
        self.slots = 0
        """Of all offerings together."""
        self.last_offered = -math.inf
        """Monotonic time when the last backend with slots left; undefined while there is one."""

    shares: SlotShares
    """Made with the first request: most services of a backend that offers 1,000 never have one."""

    def __getattr__(self, name: str) -> SlotShares:
        if name != "shares":
            raise AttributeError(name)
        self.shares = made = SlotShares()
        return made


class Scheduler:
    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self._idle: dict[str, None] = {}
        """Services without backends, in the order in which they became so."""
        self.backends: set[Backend] = set()
        self._clock = 0
        self._serial = 0

    def enter(self, identity: str, peer: Connection) -> Backend:
        self._serial += 1
        self._clock += 1
        backend = Backend(identity, peer, self._serial)
        backend.stamp = self._clock
        self.backends.add(backend)
        return backend

    def change(self, backend: Backend, services: Mapping[str, int], slots: int, mono: float) -> bool:
        """Replace the services of a backend, the slots of each, and the total; it keeps its work. False: nothing
        changed."""
        if not changes(backend, services, slots):
            return False
        wanted = frozenset(services)
        for name in sorted(backend.services - wanted):
            self._withdraw(backend, name, mono)
        for name in sorted(wanted - backend.services):
            service = self.services.get(name)
            if service is None:
                self.services[name] = service = Service(name)
            service.offerings.add(backend.offering(name))
            self._idle.pop(name, None)
        backend.services = wanted
        backend.slots = slots
        for name, own in services.items():
            self._set_slots(self.services[name], backend.offerings[name], min(own, slots), mono)
        # Work that is in flight beyond the new slots uses those of other services.
        backend.is_shared = sum(max(one.slots, one.busy) for one in backend.offerings.values()) > slots
        self._list_all(backend)
        for offering in [one for one in backend.offerings.values() if not one.slots]:
            backend.forget_unused(offering)
        return True

    def leave(self, backend: Backend, mono: float) -> None:
        """Remove a backend from every queue."""
        self.change(backend, {}, 0, mono)
        backend.alive = False
        self.backends.discard(backend)

    def take(self, name: str) -> Backend | None:
        """Take a slot of the least recently used backend, and stamp it."""
        service = self.services.get(name)
        if service is None:
            return None
        heap = service.heap
        while heap:
            stamp, serial, offering = heap[0]
            backend = offering.backend
            if offering.busy + backend.reserved >= offering.slots:
                heapq.heappop(heap)
                offering.is_listed = False
            elif backend.busy + backend.reserved >= backend.slots:
                heapq.heappop(heap)
                offering.is_listed = False
                backend.absent.append(offering)
            elif stamp != backend.stamp:
                heapq.heapreplace(heap, (backend.stamp, serial, offering))
            else:
                self._clock += 1
                backend.stamp = self._clock
                backend.busy += 1
                offering.busy += 1
                heapq.heapreplace(heap, (backend.stamp, serial, offering))
                return backend
        return None

    def take_many(self, name: str, count: int) -> list[tuple[Backend, int]]:
        """As so many calls of `take`, as long as there are free slots: the backends, and the slots of each."""
        taken: dict[Backend, int] = {}
        while count and (backend := self.take(name)) is not None:
            taken[backend] = taken.get(backend, 0) + 1
            count -= 1
            heap = self.services[name].heap
            if count and len(heap) == 1:
                # No other backend has a turn in between.
                offering = heap[0][2]
                room = min(offering.slots - offering.busy, backend.slots - backend.busy) - backend.reserved
                more = max(0, min(count, room))
                self._clock += more
                backend.stamp = self._clock
                backend.busy += more
                offering.busy += more
                heap[0] = (backend.stamp, backend.serial, offering)
                taken[backend] += more
                count -= more
        return list(taken.items())

    def take_pushing(self, name: str) -> Backend | None:
        """As `take`, among backends that speak TASKS; the others keep their position."""
        backend = self.take(name)
        if backend is None or (backend.pushes and name not in backend.untaken):
            return backend
        others = []
        while backend is not None and (not backend.pushes or name in backend.untaken):
            others.append(backend)
            backend = self.take(name)
        for other in others:
            self.give_back(other, name)
        return backend

    def has_room(self, name: str) -> bool:
        """True if a backend that speaks TASKS has a free slot for this service."""
        service = self.services.get(name)
        return service is not None and any(
            one.backend.pushes and one.has_room and name not in one.backend.untaken for one in service.offerings
        )

    def backends_of(self, name: str) -> int:
        service = self.services.get(name)
        return len(service.offerings) if service is not None else 0

    def take_from(self, backend: Backend, name: str) -> bool:
        """Take a slot of this backend for this service; False if none is free."""
        offering = backend.offerings.get(name)
        if offering is None or not offering.has_room:
            return False
        self._clock += 1
        backend.stamp = self._clock
        backend.busy += 1
        offering.busy += 1
        return True

    def take_for_held(self, offering: Offering) -> bool:
        """As `take_from`, for work that the backend holds already: also of a service that it does not offer any more,
        within the slots that the service had, if the total has room."""
        backend = offering.backend
        if offering.name in backend.services or not backend.services:
            return self.take_from(backend, offering.name)
        if offering.withdrawn and offering.busy >= offering.withdrawn:
            return False
        return self.take_beyond(offering)

    def take_beyond(self, offering: Offering) -> bool:
        """Take a slot for work beyond the slots of its service; False if the total has none."""
        backend = offering.backend
        backend.is_shared = True  # it needs the slot that any other service frees
        if backend.busy + backend.reserved >= backend.slots:
            return False
        backend.busy += 1
        offering.busy += 1
        return True

    def give_back(self, backend: Backend, name: str, count: int = 1) -> None:
        offering = backend.offerings[name]
        offering.busy -= count
        backend.busy -= count
        if not offering.is_listed:
            self._list(offering)
        if backend.absent and backend.busy < backend.slots:
            for one in backend.absent:
                self._list(one)
            backend.absent.clear()
        if not offering.slots:
            backend.forget_unused(offering)

    def reserve(self, backend: Backend, count: int) -> None:
        """Keep slots free of each service, for work in flight whose services are not known yet."""
        backend.reserved += count

    def unreserve(self, backend: Backend, count: int) -> None:
        backend.reserved -= count
        self._list_all(backend)

    def offered(self, name: str) -> bool:
        """True if a backend accepts requests of this service; one that only takes its tasks does not."""
        service = self.services.get(name)
        return service is not None and service.answering > 0

    def offered_since(self, name: str, mono: float) -> bool:
        service = self.services.get(name)
        return service is not None and (service.answering > 0 or service.last_offered >= mono)

    def _set_slots(self, service: Service, offering: Offering, slots: int, mono: float) -> None:
        service.answering += (slots > 0) - (offering.slots > 0)
        service.slots += slots - offering.slots
        if offering.slots and not slots:
            service.last_offered = mono
        offering.slots = slots

    def _list(self, offering: Offering) -> None:
        """Add an offering with free slots to its heap, unless it is there."""
        if not offering.is_listed and offering.busy < offering.slots:
            offering.is_listed = True
            backend = offering.backend
            heapq.heappush(self.services[offering.name].heap, (backend.stamp, backend.serial, offering))

    def _list_all(self, backend: Backend) -> None:
        backend.absent.clear()
        for name in backend.services:
            self._list(backend.offerings[name])

    def _withdraw(self, backend: Backend, name: str, mono: float) -> None:
        service, offering = self.services[name], backend.offerings[name]
        offering.withdrawn = offering.slots
        self._set_slots(service, offering, 0, mono)
        service.offerings.discard(offering)
        if not service.offerings:
            self._idle[name] = None
            if len(self._idle) > MAX_IDLE_SERVICES:
                self._drop(next(iter(self._idle)))
        if not service.offerings or len(service.heap) > 2 * len(service.offerings) + HEAP_SLACK:
            self._rebuild(service)

    def _rebuild(self, service: Service) -> None:
        kept = []
        for entry in service.heap:
            if entry[2] in service.offerings:
                kept.append(entry)
            else:
                entry[2].is_listed = False
        heapq.heapify(kept)
        service.heap = kept

    def prune(self, mono: float, keep: float) -> None:
        """Forget services without backends after `keep` seconds."""
        for name in list(self._idle):
            if mono - self.services[name].last_offered <= keep:
                return
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._idle[name]
        for _, _, offering in self.services.pop(name).heap:
            offering.is_listed = False


def changes(backend: Backend | None, services: Mapping[str, int], slots: int) -> int:
    """How many services a backend adds, withdraws or gives other slots; another total alone counts as one."""
    if backend is None:
        return len(services)
    offered = backend.offerings
    same = backend.services & services.keys()
    other = sum(offered[name].slots != min(services[name], slots) for name in same)
    return len(backend.services) + len(services) - 2 * len(same) + other or int(slots != backend.slots)
