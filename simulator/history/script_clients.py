"""Plants truths of backends and methods: outages, deploys, releases. A backend has no truth during one of its
broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.pipeline.time_ranges import DAY_US, MINUTE_US, SECOND_US
from simulator.history import truths, vocabulary
from simulator.history.script import Backend, Gap, Release
from simulator.history.truths import Truth

if TYPE_CHECKING:
    import numpy as np

    from simulator.history.plan import Plan
    from simulator.history.script_builder import Calendar

SLOW_FACTOR: Final = 3.0
FAILED_SHARE: Final = 0.4
FAILED_US: Final = 3 * 60 * MINUTE_US
"""How long a failing release runs; longer in a small history, to be detectable."""
FAILED_PART: Final = 0.15
FEW_TASKS: Final = 10_000
NODE_SLOTS: Final = 4
MORE_SLOTS: Final = 8
OWN_SLOTS: Final = 2
QUIET_PER_HOUR: Final = 2.0
RELEASED_METHODS: Final = 8
"""Releases are of the busiest methods; in a small history of the first."""


class Clients(NamedTuple):
    backends: tuple[Backend, ...]
    releases: tuple[Release, ...]
    truths: list[Truth]


def plant_clients(plan: Plan, calendar: Calendar, rng: np.random.Generator) -> Clients:
    """Nodes are distributed over the brokers; each exclusive service has one backend."""
    found: list[Truth] = []
    nodes = _nodes(plan)
    for n in range(plan.counts.deploys):
        _deploy(plan, nodes, n % len(nodes), calendar, rng, found)
    for n in range(plan.counts.replaced_clients):
        _moment(plan, nodes, (n + 1) % len(nodes), truths.CLIENT_REPLACED, calendar, found)
    for n in range(plan.counts.changed_clients):
        _moment(plan, nodes, (n + 2) % len(nodes), truths.CLIENT_CHANGED, calendar, found)
    own = [_solo(plan, n, calendar, rng, found) for n in range(plan.counts.backend_outages)]
    quiet = [_quiet(plan, n, found) for n in range(plan.counts.quiet_services)]
    releases = _releases(plan, calendar, rng, found)
    return Clients((*nodes, *own, *quiet), releases, found)


def _nodes(plan: Plan) -> list[Backend]:
    """Each broker has a node for every method; with many nodes, each offers a part of them."""
    parts = max(1, min(3, plan.nodes // plan.brokers // 2))
    services = [service.name for service in vocabulary.SERVICES]
    nodes = []
    for n in range(plan.nodes):
        part = n // plan.brokers % parts
        methods = [method.name for m, method in enumerate(vocabulary.METHODS) if m % parts == part]
        offered = tuple(sorted([*methods, *services]))
        nodes.append(Backend(f"node-{n + 1:03d}", n % plan.brokers, offered, NODE_SLOTS))
    return nodes


def _deploy(
    plan: Plan, nodes: list[Backend], n: int, calendar: Calendar, rng: np.random.Generator, found: list[Truth]
) -> None:
    node = nodes[n]
    length_us = int(rng.integers(MINUTE_US, 3 * MINUTE_US))
    start_us = calendar.slot(length_us, (node.name,), (plan.sources[node.broker],))
    nodes[n] = node._replace(gaps=(*node.gaps, Gap(start_us, start_us + length_us, is_left=True)))
    found.append(Truth(truths.DEPLOY, "client", node.name, start_us, start_us + length_us))


def _moment(plan: Plan, nodes: list[Backend], n: int, kind: str, calendar: Calendar, found: list[Truth]) -> None:
    node = nodes[n]
    us = calendar.slot(SECOND_US, (node.name,), (plan.sources[node.broker],))
    if kind == truths.CLIENT_REPLACED:
        nodes[n] = node._replace(replaced_us=us)
    else:
        nodes[n] = node._replace(changed_us=us)
    found.append(Truth(kind, "client", node.name, us, us))


def _solo(plan: Plan, n: int, calendar: Calendar, rng: np.random.Generator, found: list[Truth]) -> Backend:
    """A backend that alone offers its service, and its outage: from its last sign of life to its return."""
    base_name = vocabulary.SOLO_SERVICES[n % len(vocabulary.SOLO_SERVICES)]
    turn = n // len(vocabulary.SOLO_SERVICES)
    service = base_name if not turn else f"{base_name}-{turn + 1}"
    name, broker = f"{service.replace('.', '-')}-1", n % plan.brokers
    length_us = int(rng.integers(25 * MINUTE_US, 70 * MINUTE_US))
    start_us = calendar.slot(length_us, (name,), (plan.sources[broker],))
    facts = {"service": service, "broker": plan.sources[broker]}
    found.append(Truth(truths.BACKEND_OUTAGE, "client", name, start_us, start_us + length_us, facts))
    gap = Gap(start_us, start_us + length_us, is_left=False)
    return Backend(name, broker, (service,), OWN_SLOTS, (gap,))


def _quiet(plan: Plan, n: int, found: list[Truth]) -> Backend:
    service = vocabulary.QUIET_SERVICE if n == 0 else f"{vocabulary.QUIET_SERVICE}-{n + 1}"
    facts = {"per_hour": QUIET_PER_HOUR}
    found.append(Truth(truths.QUIET_SERVICE, "service", service, plan.start_us, plan.end_us, facts))
    return Backend(f"{service.replace('.', '-')}-1", n % plan.brokers, (service,), OWN_SLOTS)


def _releases(plan: Plan, calendar: Calendar, rng: np.random.Generator, found: list[Truth]) -> tuple[Release, ...]:
    """Slow ones stay; failing ones are rolled back after some hours. Each is of another method."""
    counts = plan.counts
    releases = counts.slow_releases + counts.failing_releases
    if releases > len(vocabulary.METHODS):
        raise ValueError(f"there are {len(vocabulary.METHODS)} methods, and each can have one release")
    is_small = plan.tasks < FEW_TASKS
    busiest = releases if is_small else RELEASED_METHODS
    failed_us = max(FAILED_US, int(FAILED_PART * plan.days * DAY_US)) if is_small else FAILED_US
    order = [int(n) for n in rng.permutation(busiest)] + list(range(busiest, len(vocabulary.METHODS)))
    out = []
    for _ in range(counts.slow_releases):
        method = order.pop(0)
        start_us = calendar.slot(min(DAY_US, plan.days * DAY_US // 4), (vocabulary.METHODS[method].name,), first=0.5)
        out.append(Release(method, start_us, plan.end_us, run_factor=SLOW_FACTOR))
        name = vocabulary.METHODS[method].name
        found.append(Truth(truths.SLOW_RELEASE, "method", name, start_us, plan.end_us, {"run_factor": SLOW_FACTOR}))
    for _ in range(counts.failing_releases):
        method = order.pop(0)
        start_us = calendar.slot(failed_us, (vocabulary.METHODS[method].name,), first=0.5)
        out.append(Release(method, start_us, start_us + failed_us, failed_share=FAILED_SHARE))
        name, ends_us = vocabulary.METHODS[method].name, start_us + failed_us
        found.append(Truth(truths.FAILING_RELEASE, "method", name, start_us, ends_us, {"failed_share": FAILED_SHARE}))
    return tuple(out)
