"""The scheduler (LRU): which backend has which services, free slots, and the time of its last work.

Invariants: a backend is in a service's heap at most once (`listed`); a backend with a free slot is in the heap of each
of its services, except while it is being changed; `busy` never becomes negative, and each slot taken is given back
once.

A backend has one stamp for all its services: an outdated heap entry is corrected when it reaches the top. A busy
backend is removed from a heap when it is found there, and added again when a slot becomes free. Each removal is paid
for by one `take`, so the cost does not grow with 10,000 backends or 1,000 services each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, Final

from scale0.kernel.effects import PeerAddress

MAX_IDLE_SERVICES: Final = 10_000
"""Services without backends that are remembered."""
HEAP_SLACK: Final = 64
"""Heap entries of removed backends, beyond the live ones, before a heap is rebuilt."""


class Backend:
    remote = False
    """It is another broker: it has no slots, and gets FORWARD."""

    __slots__ = (
        "absent",
        "alive",
        "busy",
        "held",
        "identity",
        "listed",
        "pace",
        "paced",
        "peer",
        "prefetch",
        "pushes",
        "returns",
        "serial",
        "services",
        "slots",
        "slotted",
        "stamp",
        "tasks",
    )

    def __init__(self, identity: str, peer: PeerAddress, serial: int) -> None:
        self.identity = identity
        self.peer = peer
        self.serial = serial
        self.services: frozenset[str] = frozenset()
        self.slots = 0
        self.busy = 0
        self.stamp = serial
        self.alive = True
        self.listed: set[str] = set()
        self.absent: list[str] = []
        self.held: dict[str, object] = {}
        """Its requests in flight, by the broker's own id."""
        self.tasks: dict[str, Any] = {}
        """Its tasks in flight, in the order of hand-out; `tasks` writes this and the fields below."""
        self.slotted = 0
        self.prefetch = 0
        """The most tasks that it prefetches beyond its slots."""
        self.pushes = False
        """It speaks TASKS: tasks may be pushed to it."""
        self.returns = False
        """It answers a reclaim."""
        self.pace = 0.0
        self.paced = 0.0


class Service:
    __slots__ = ("backends", "heap", "last_offered", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.heap: list[tuple[int, int, Backend]] = []
        self.backends: set[Backend] = set()
        self.last_offered = 0.0
        """Monotonic time when the last backend left; undefined while there is one."""


class Scheduler:
    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self._idle: dict[str, None] = {}
        """Services without backends, in the order in which they became so."""
        self.backends: set[Backend] = set()
        self._clock = 0
        self._serial = 0

    def enter(self, identity: str, peer: PeerAddress) -> Backend:
        self._serial += 1
        self._clock += 1
        backend = Backend(identity, peer, self._serial)
        backend.stamp = self._clock
        self.backends.add(backend)
        return backend

    def change(self, backend: Backend, services: Iterable[str], slots: int, mono: float) -> None:
        """Replace the services and slots of a backend; it keeps its work."""
        wanted = frozenset(services)
        for name in sorted(backend.services - wanted):
            self._withdraw(backend, name, mono)
        for name in sorted(wanted - backend.services):
            service = self.services.get(name)
            if service is None:
                self.services[name] = service = Service(name)
            service.backends.add(backend)
            self._idle.pop(name, None)
        backend.services = wanted
        backend.slots = slots
        if backend.busy < slots:
            backend.absent.clear()
            for name in wanted:
                self._list(backend, name)
        else:
            backend.absent = [name for name in wanted if name not in backend.listed]

    def leave(self, backend: Backend, mono: float) -> None:
        """Remove a backend from every queue."""
        self.change(backend, (), 0, mono)
        backend.alive = False
        self.backends.discard(backend)

    def take(self, name: str) -> Backend | None:
        """Take a slot of the least recently used backend, and stamp it."""
        service = self.services.get(name)
        if service is None:
            return None
        heap = service.heap
        while heap:
            stamp, serial, backend = heap[0]
            if name not in backend.services:
                heapq.heappop(heap)
                backend.listed.discard(name)
            elif backend.busy >= backend.slots:
                self._drop_top(service, backend)
            elif stamp != backend.stamp:
                heapq.heapreplace(heap, (backend.stamp, serial, backend))
            else:
                self._clock += 1
                backend.stamp = self._clock
                backend.busy += 1
                if backend.busy < backend.slots:
                    heapq.heapreplace(heap, (backend.stamp, serial, backend))
                else:
                    self._drop_top(service, backend)
                return backend
        return None

    def take_pushing(self, name: str) -> Backend | None:
        """As `take`, among backends that speak TASKS; the others keep their position."""
        backend = self.take(name)
        if backend is None or backend.pushes:
            return backend
        others = []
        while backend is not None and not backend.pushes:
            others.append(backend)
            backend = self.take(name)
        for other in others:
            self.give_back(other)
        return backend

    def has_room(self, name: str) -> bool:
        """True if a backend that speaks TASKS has a free slot for this service."""
        service = self.services.get(name)
        return service is not None and any(b.pushes and b.busy < b.slots for b in service.backends)

    def backends_of(self, name: str) -> int:
        service = self.services.get(name)
        return len(service.backends) if service is not None else 0

    def take_from(self, backend: Backend) -> bool:
        if backend.busy >= backend.slots or not backend.services:
            return False
        self._clock += 1
        backend.stamp = self._clock
        backend.busy += 1
        return True

    def give_back(self, backend: Backend) -> None:
        backend.busy -= 1
        if backend.absent and backend.busy < backend.slots:
            for name in backend.absent:
                if name in backend.services:
                    self._list(backend, name)
            backend.absent.clear()

    def offered(self, name: str) -> bool:
        service = self.services.get(name)
        return service is not None and bool(service.backends)

    def offered_since(self, name: str, mono: float) -> bool:
        service = self.services.get(name)
        return service is not None and (bool(service.backends) or service.last_offered >= mono)

    def _list(self, backend: Backend, name: str) -> None:
        if name not in backend.listed:
            backend.listed.add(name)
            heapq.heappush(self.services[name].heap, (backend.stamp, backend.serial, backend))

    def _drop_top(self, service: Service, backend: Backend) -> None:
        heapq.heappop(service.heap)
        backend.listed.discard(service.name)
        backend.absent.append(service.name)

    def _withdraw(self, backend: Backend, name: str, mono: float) -> None:
        service = self.services[name]
        service.backends.discard(backend)
        service.last_offered = mono
        if not service.backends:
            self._idle[name] = None
            if len(self._idle) > MAX_IDLE_SERVICES:
                self._drop(next(iter(self._idle)))
                return
        if len(service.heap) > 2 * len(service.backends) + HEAP_SLACK:
            self._rebuild(service)

    def _rebuild(self, service: Service) -> None:
        kept = [entry for entry in service.heap if entry[2] in service.backends]
        for _, _, backend in service.heap:
            if backend not in service.backends:
                backend.listed.discard(service.name)
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
        for _, _, backend in self.services.pop(name).heap:
            backend.listed.discard(name)
