"""The roster against a naive model: who has a free slot, and who was handed work longest ago."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from scale0.broker.core.scheduler import Backend, Scheduler
from tests.fakes.examples import examples

SERVICES = ("a", "b", "c", "d")
services = st.sets(st.sampled_from(SERVICES))


class Naive:
    """One backend of the model."""

    def __init__(self, stamp: int) -> None:
        self.services: set[str] = set()
        self.slots = 0
        self.busy = 0
        self.stamp = stamp


# Promise: REQ-3, REQ-4
class RosterAndModel(RuleBasedStateMachine):
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

    @rule(target=backends, names=services, slots=st.integers(1, 3))
    def enter(self, names: set[str], slots: int) -> Backend:
        peer: Any = object()
        backend = self.scheduler.enter(f"b{self.clock}", peer)
        self.model[backend] = Naive(self.tick())
        self.change(backend, names, slots)
        return backend

    @rule(backend=backends, names=services, slots=st.integers(0, 3))
    def change(self, backend: Backend, names: set[str], slots: int) -> None:
        self.scheduler.change(backend, names, slots, float(self.clock))
        self.model[backend].services, self.model[backend].slots = set(names), slots

    @rule(backend=consumes(backends))
    def leave(self, backend: Backend) -> None:
        self.scheduler.leave(backend, float(self.clock))
        del self.model[backend]

    @rule(name=st.sampled_from(SERVICES), times=st.integers(1, 4))
    def take(self, name: str, times: int) -> None:
        for _ in range(times):
            free = [b for b, n in self.model.items() if name in n.services and n.busy < n.slots]
            expected = min(free, key=lambda backend: self.model[backend].stamp, default=None)
            assert self.scheduler.take(name) is expected
            if expected is not None:
                self.model[expected].busy += 1
                self.model[expected].stamp = self.tick()

    @rule(backend=backends)
    def take_from(self, backend: Backend) -> None:
        naive = self.model[backend]
        can = naive.busy < naive.slots and bool(naive.services)
        assert self.scheduler.take_from(backend) is can
        if can:
            naive.busy += 1
            naive.stamp = self.tick()

    @rule(backend=backends)
    def give_back(self, backend: Backend) -> None:
        if self.model[backend].busy:
            self.scheduler.give_back(backend)
            self.model[backend].busy -= 1

    @rule(keep=st.floats(0, 20))
    def prune(self, keep: float) -> None:
        self.scheduler.prune(float(self.clock), keep)

    @invariant()
    def they_agree(self) -> None:
        assert set(self.model) == self.scheduler.backends
        for backend, naive in self.model.items():
            assert (backend.busy, backend.slots, backend.stamp) == (naive.busy, naive.slots, naive.stamp)
        for name in SERVICES:
            offering = {backend for backend, naive in self.model.items() if name in naive.services}
            assert self.scheduler.offered(name) is bool(offering)
            service = self.scheduler.services.get(name)
            assert (set() if service is None else service.backends) == offering
            heap = [] if service is None else service.heap
            assert len({id(entry[2]) for entry in heap}) == len(heap), "a backend is in a heap at most once"


TestRosterAndModel = RosterAndModel.TestCase
TestRosterAndModel.settings = examples(150, stateful_step_count=40)


def test_backends_that_come_and_go_leave_no_heap_behind():
    scheduler = Scheduler()
    peer: Any = object()
    for number in range(5_000):
        backend = scheduler.enter(f"b{number}", peer)
        scheduler.change(backend, ("a",), 1, float(number))
        scheduler.leave(backend, float(number))
    assert len(scheduler.services["a"].heap) < 200
    scheduler.prune(1e9, 1.0)
    assert not scheduler.services


def test_a_service_was_offered_since_its_last_backend_left():
    scheduler = Scheduler()
    peer: Any = object()
    backend = scheduler.enter("b", peer)
    assert not scheduler.offered_since("a", 0.0)
    scheduler.change(backend, ("a",), 1, 1.0)
    assert scheduler.offered_since("a", 5.0)
    scheduler.leave(backend, 7.0)
    assert scheduler.offered_since("a", 7.0)
    assert not scheduler.offered_since("a", 7.1)
