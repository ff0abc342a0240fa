"""The scheduler against a naive model: which backends have a free slot of a service, and which one is next."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from scale0.broker.core.scheduler import Backend, Scheduler
from tests.fakes.examples import examples

SERVICES = ("a", "b", "c", "d")
services = st.dictionaries(st.sampled_from(SERVICES), st.integers(1, 3))
"""The slots of each service."""
names = st.sampled_from(SERVICES)


class Naive:
    """One backend of the model."""

    def __init__(self, stamp: int) -> None:
        self.services: dict[str, int] = {}
        self.slots = 0
        self.busy = dict.fromkeys(SERVICES, 0)
        self.reserved = 0
        self.stamp = stamp

    def has_room(self, name: str) -> bool:
        own = self.busy[name] + self.reserved < self.services.get(name, 0)
        return own and sum(self.busy.values()) + self.reserved < self.slots


# Promise: REQ-3, REQ-4
class SchedulerAndModel(RuleBasedStateMachine):
    """Every change is made to both; every taking must give the same backend."""

    backends = Bundle("backends")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.model: dict[Backend, Naive] = {}
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    @rule(target=backends, offered=services, slots=st.integers(1, 7))
    def enter(self, offered: dict[str, int], slots: int) -> Backend:
        peer: Any = object()
        backend = self.scheduler.enter(f"b{self.clock}", peer)
        self.model[backend] = Naive(self.tick())
        self.change(backend, offered, slots)
        return backend

    @rule(backend=backends, offered=services, slots=st.integers(0, 7))
    def change(self, backend: Backend, offered: dict[str, int], slots: int) -> None:
        self.scheduler.change(backend, offered, slots, float(self.clock))
        self.model[backend].services, self.model[backend].slots = offered, slots

    @rule(backend=consumes(backends))
    def leave(self, backend: Backend) -> None:
        self.scheduler.leave(backend, float(self.clock))
        del self.model[backend]

    @rule(name=names, times=st.integers(1, 4))
    def take(self, name: str, times: int) -> None:
        for _ in range(times):
            free = [backend for backend, naive in self.model.items() if naive.has_room(name)]
            expected = min(free, key=lambda backend: self.model[backend].stamp, default=None)
            assert self.scheduler.take(name) is expected
            if expected is not None:
                self.model[expected].busy[name] += 1
                self.model[expected].stamp = self.tick()

    @rule(backend=backends, name=names)
    def take_from(self, backend: Backend, name: str) -> None:
        naive = self.model[backend]
        can = naive.has_room(name)
        assert self.scheduler.take_from(backend, name) is can
        if can:
            naive.busy[name] += 1
            naive.stamp = self.tick()

    @rule(backend=backends, name=names)
    def give_back(self, backend: Backend, name: str) -> None:
        if self.model[backend].busy[name]:
            self.scheduler.give_back(backend, name)
            self.model[backend].busy[name] -= 1

    @rule(backend=backends, count=st.integers(0, 2))
    def reserve(self, backend: Backend, count: int) -> None:
        """At most `count` are reserved from now on."""
        naive = self.model[backend]
        self.scheduler.unreserve(backend, naive.reserved)
        self.scheduler.reserve(backend, count)
        naive.reserved = count

    @rule(keep=st.floats(0, 20))
    def prune(self, keep: float) -> None:
        self.scheduler.prune(float(self.clock), keep)

    @invariant()
    def they_agree(self) -> None:
        assert set(self.model) == self.scheduler.backends
        for backend, naive in self.model.items():
            total = sum(naive.busy.values())
            assert (backend.busy, backend.slots, backend.stamp) == (total, naive.slots, naive.stamp)
            busy = {name: offering.busy for name, offering in backend.offerings.items() if offering.busy}
            assert busy == {name: count for name, count in naive.busy.items() if count}
            own = {name: min(slots, naive.slots) for name, slots in naive.services.items()}
            if sum(own.values()) > naive.slots:
                assert backend.is_shared
            elif not backend.is_shared:
                # A slot that a service frees is of no use to another one.
                full = total + naive.reserved >= naive.slots
                assert not full or all(naive.busy[name] + naive.reserved >= slots for name, slots in own.items())
        for name in SERVICES:
            offering = {backend for backend, naive in self.model.items() if name in naive.services}
            answering = [one for one in offering if min(self.model[one].services[name], self.model[one].slots)]
            assert self.scheduler.offered(name) is bool(answering), "those without slots take tasks only"
            service = self.scheduler.services.get(name)
            assert {one.backend for one in service.offerings} == offering if service is not None else not offering
            heap = [] if service is None else service.heap
            assert len({entry[1] for entry in heap}) == len(heap), "a backend is in a heap at most once"


TestSchedulerAndModel = SchedulerAndModel.TestCase
TestSchedulerAndModel.settings = examples(150, stateful_step_count=40)


def test_backends_that_come_and_go_leave_no_heap_behind():
    scheduler = Scheduler()
    peer: Any = object()
    for number in range(5_000):
        backend = scheduler.enter(f"b{number}", peer)
        scheduler.change(backend, {"a": 1}, 1, float(number))
        scheduler.leave(backend, float(number))
    assert len(scheduler.services["a"].heap) < 200
    scheduler.prune(1e9, 1.0)
    assert not scheduler.services


def test_a_service_was_offered_since_its_last_backend_left():
    scheduler = Scheduler()
    peer: Any = object()
    backend = scheduler.enter("b", peer)
    assert not scheduler.offered_since("a", 0.0)
    scheduler.change(backend, {"a": 1}, 1, 1.0)
    assert scheduler.offered_since("a", 5.0)
    scheduler.leave(backend, 7.0)
    assert scheduler.offered_since("a", 7.0)
    assert not scheduler.offered_since("a", 7.1)


def test_a_service_that_was_withdrawn_is_forgotten_with_its_last_work():
    scheduler = Scheduler()
    peer: Any = object()
    backend = scheduler.enter("b", peer)
    for number in range(300):
        scheduler.change(backend, {"a": 1, f"s{number}": 1}, 2, float(number))
        assert scheduler.take(f"s{number}") is backend
        scheduler.change(backend, {"a": 1}, 1, float(number))
        scheduler.give_back(backend, f"s{number}")
        scheduler.prune(1e9, 1.0)
    assert len(backend.offerings) <= 2
