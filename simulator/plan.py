"""Derives from a seed the size of a network, its load, and its faults. Invariant: a plan depends only on its seed. Each
seed has its own set of faults: a fault that is always present would hide the bugs of its absence."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

CALM_EVERY: Final = 10
"""One of this many seeds has no faults, so that a failure there has another cause."""
HEALTHY_SECONDS: Final = 190.0
"""How long a run continues after everything was healed."""
MIN_MINUTES: Final = 4.0

OLD_FAULTS: Final = (
    *("slow_route", "clog_one_way", "clog_both_ways", "split", "snap_seen", "snap_half_open", "snap_unseen"),
    *("broker_killed", "broker_loses_power", "broker_killed_before_commit", "broker_killed_after_commit"),
    *("broker_asleep", "broker_stopped", "disk_slow", "broker_clock", "backend_clock"),
    *("backend_killed", "backend_stopped", "backend_leaves", "offer_changed", "backend_drained"),
    *("frontend_vanishes", "frontend_stopped", "burst", "hostile", "drained", "disabled"),
)
TASK_FAULTS: Final = ("node_killed", "task_burst", "task_clients_vanish")
FAULTS: Final = (*OLD_FAULTS, *TASK_FAULTS)
"""The names of all faults, which `faults.py` implements."""
TASKLESS_EVERY: Final = 6
"""One of this many seeds has no tasks."""


class TaskPlan(msgspec.Struct, frozen=True, kw_only=True):
    submit_every: float
    """Seconds between submissions, of all clients together."""
    prefetch: tuple[int, ...]
    """Of each backend."""
    bunch: tuple[int, ...]
    """How many short tasks each backend reports together."""
    pull_nodes: int
    raw_clients: int
    announcements_lost: float
    """The share of announcements that are lost."""
    window: int
    """Tasks of one method and priority that a broker keeps in memory; 0: the production value."""
    concurrency: int
    """Of the limited method."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float
    calm: bool
    faults: tuple[str, ...]
    fault_every: float
    """Average seconds between faults."""
    disk_may_be_lost: bool
    backends: int
    slots: tuple[int, ...]
    """The slots of each backend, of all its services together."""
    service_slots: tuple[tuple[int, ...], ...]
    """Of each backend, the slots of each of `services`; empty: it announces only the total."""
    services: tuple[str, ...]
    offers: tuple[tuple[str, ...], ...]
    """The services of each backend."""
    asked_intervals: tuple[float | None, ...]
    frontends: int
    named_frontends: bool
    call_every: float
    """Seconds between calls, of all frontends together."""
    interval: float
    liveness: int
    change_every: float
    """Seconds between configuration changes."""
    capacity: int
    strain: bool
    tasks: TaskPlan | None = None

    @property
    def heal_at(self) -> float:
        return self.seconds - HEALTHY_SECONDS


class Offer(NamedTuple):
    """What a backend offers."""

    services: tuple[str, ...]
    slots: int
    each: tuple[int, ...] = ()
    """The slots of each service, in their order; empty: only the total is announced."""

    @property
    def service_slots(self) -> dict[str, int] | None:
        """As a session announces them."""
        return dict(zip(self.services, self.each, strict=True)) if self.each else None

    def slots_of(self, service: str) -> int:
        """Returns how many requests and tasks of this service the backend accepts at once."""
        if service not in self.services:
            return 0
        return min(self.slots, (self.service_slots or {}).get(service, self.slots))


def offer_of(plan: Plan, number: int) -> Offer:
    """Returns the offer of a backend."""
    services, each = plan.offers[number], dict(zip(plan.services, plan.service_slots[number], strict=False))
    return Offer(services, plan.slots[number], tuple(each[name] for name in services) if each else ())


def make_plan(seed: int, minutes: float, only: Sequence[str] = ()) -> Plan:
    """Returns the plan of a seed; `only` replaces its faults."""
    rng = random.Random(f"scale0 plan {seed}")
    calm = seed % CALM_EVERY == 0 and not only
    backends = rng.randint(2, 5)
    services = tuple(f"s{number}" for number in range(rng.randint(1, 3)))
    offers = []
    for number in range(backends):
        some = tuple(service for service in services if rng.random() < 0.7)
        offers.append(services if number == 0 else some or services[:1])
    chosen = tuple(name for name in OLD_FAULTS if rng.random() < 0.4) or ("snap_seen",)
    tasks, task_faults = make_task_plan(seed, backends, bool(only))
    chosen = tuple(only) if only else (*chosen, *task_faults)
    interval = rng.choice((0.5, 1.0, 1.0, 2.0, 3.0))
    return Plan(
        seed=seed,
        seconds=max(minutes, MIN_MINUTES) * 60.0,
        calm=calm,
        faults=() if calm else chosen,
        fault_every=rng.choice((5.0, 10.0, 20.0)),
        disk_may_be_lost=rng.random() < 0.25,
        backends=backends,
        slots=(slots := tuple(rng.choice((1, 1, 2, 4)) for _ in range(backends))),
        service_slots=make_service_slots(seed, slots, len(services)),
        services=services,
        offers=tuple(offers),
        asked_intervals=tuple(rng.choice((None, None, interval * 2)) for _ in range(backends)),
        frontends=rng.randint(1, 4),
        named_frontends=rng.random() < 0.7,
        call_every=rng.choice((0.15, 0.4, 1.0)),
        interval=interval,
        liveness=rng.choice((2, 3, 3, 4)),
        change_every=rng.choice((20.0, 60.0)),
        capacity=rng.choice((6, 1_000)),
        strain=not calm,
        tasks=tasks,
    )


def make_service_slots(seed: int, slots: Sequence[int], services: int) -> tuple[tuple[int, ...], ...]:
    """Returns the slots of each service of each backend, none for some; it has a separate generator, so that the rest
    does not change."""
    rng = random.Random(f"scale0 service slots {seed}")
    return tuple(tuple(rng.randint(1, total) for _ in range(services)) if rng.random() < 0.6 else () for total in slots)


def make_task_plan(seed: int, backends: int, always: bool) -> tuple[TaskPlan | None, tuple[str, ...]]:
    """Returns a seed's task plan, if any, and its task faults; it has a separate generator, so that the rest does not
    change."""
    if seed % TASKLESS_EVERY == 0 and not always:
        return None, ()
    rng = random.Random(f"scale0 task plan {seed}")
    plan = TaskPlan(
        submit_every=rng.choice((0.3, 0.6, 1.2)),
        prefetch=tuple(rng.choice((0, 2, 8)) for _ in range(backends)),
        bunch=tuple(rng.choice((1, 1, 4)) for _ in range(backends)),
        pull_nodes=rng.randint(1, 2),
        raw_clients=rng.randint(0, 2),
        announcements_lost=rng.choice((0.0, 0.3, 1.0)),
        window=rng.choice((0, 0, 2, 6)),
        concurrency=rng.randint(1, 3),
    )
    return plan, tuple(name for name in TASK_FAULTS if rng.random() < 0.5)
