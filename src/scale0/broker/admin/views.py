"""Views: the broker's state as plain rows, in pages, for discovery and management.

Invariants: views change nothing; a page is bounded, and the next one starts where it ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from scale0.broker.cluster.catalog import Catalog
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connections
from scale0.broker.core.members import Member, Members
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Scheduler, Service
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now

MAX_PAGE_ROWS: Final = 1_000
MAX_PAGE_BYTES: Final = 1024 * 1024
"""Of encoded rows: a page ends with the row that reaches it."""
MAX_LRU_ROWS: Final = 100
"""Backends of one service that are listed in LRU order."""
MAX_ROW_CHARS: Final = 4_096
"""Of the names that one row lists; the others are only counted."""

Thing = TypeVar("Thing")
Page = dict[str, Any]


def page(
    things: Iterable[Thing], key: Callable[[Thing], str], row: Callable[[Thing], Any], limit: int, after: str | None
) -> Page:
    """The first rows whose key is past `after`, in the order of keys: at most `limit`, and MAX_PAGE_BYTES."""
    limit = max(1, min(limit, MAX_PAGE_ROWS))
    rest = things if after is None else (thing for thing in things if key(thing) > after)
    found = heapq.nsmallest(limit + 1, rest, key=key)
    items: list[Any] = []
    size = 0
    for thing in found[:limit]:
        items.append(row(thing))
        size += len(msgspec.json.encode(items[-1]))
        if size >= MAX_PAGE_BYTES:
            break
    return {"items": items, "next": key(found[len(items) - 1]) if len(found) > len(items) else None}


def listed(names: Sequence[str]) -> int:
    """How many of these names one row lists."""
    chars = 0
    for count, name in enumerate(names):
        chars += len(name)
        if chars > MAX_ROW_CHARS:
            return count
    return len(names)


class Views:
    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        peers: Peers,
        scheduler: Scheduler,
        requests: Requests,
        documents: ConfigDocument,
        catalog: Catalog,
        task_counts: Callable[[], dict[str, int]],
        task_backlog: Callable[[], dict[str, tuple[int, bool]]],
    ) -> None:
        self._state = state
        self._catalog = catalog
        self._connections = connections
        self._members = members
        self._peers = peers
        self._scheduler = scheduler
        self._requests = requests
        self._documents = documents
        self._task_counts = task_counts
        self._task_backlog = task_backlog
        """By method: the number of tasks that wait in memory, and whether the store has more."""

    @property
    def changes(self) -> int:
        """Changes with every member that joins, leaves or changes its services."""
        return self._members.changes

    def ping(self, now: Now) -> dict[str, Any]:
        outage = self._state.outage
        return {
            "broker": self._state.identity,
            "owner": self._state.owner,
            "boot": f"{self._state.boot:x}",
            "state": self._state.duty,
            "time": now.wall,
            "config_version": self._documents.version,
            "full": self._state.full,
            "outage_since": None if outage is None else outage.since,
        }

    def status(self, now: Now, version: str) -> dict[str, Any]:
        stats = self._requests.stats
        roles: dict[str, int] = {}
        for role, _ in self._members.by_name:
            roles[role] = roles.get(role, 0) + 1
        return {
            "broker": self._state.identity,
            "version": version,
            "state": self._state.duty,
            "draining": self._state.drain_requested,
            "standby_for": self._state.config.standby_for,
            "group": self._state.config.group,
            "time": now.wall,
            "uptime": now.mono - self._state.started,
            "config_version": self._documents.version,
            "config_hash": self._documents.hash,
            "heartbeat_interval": self._state.interval,
            "connections": len(self._connections),
            "clients": roles,
            "services": sum(bool(service.offerings) for service in self._scheduler.services.values()),
            "requests": {
                "waiting": sum(map(len, self._requests.queues.values())),
                "under_way": self._requests.in_flight,
                "answered": stats.total_answered,
                "failed": stats.total_failed,
            },
            "tasks": self._task_counts(),
            "error_clients": len(self._connections.banned(now)),
            "full": self._state.full,
            "outage": self._state.outage,
            "clock_suspect": self._state.clock_suspect,
            "counters": dict(self._state.counters),
            "endpoints": self._state.endpoints,
        }

    def services(self, limit: int = MAX_PAGE_ROWS, after: str | None = None) -> Page:
        """Every service that has backends or waiting requests, here or at a live peer."""
        names = {name for name, service in self._scheduler.services.items() if service.offerings}
        names.update(name for peer in self._peers.alive() for name in peer.table.offered)
        names.update(self._catalog.services)
        names.update(self._requests.queues)
        return page(names, str, self._service, limit, after)

    def rates(self, limit: int, after: str | None) -> Page:
        """Totals of each service since the start, from which clients compute rates."""
        totals = self._requests.stats.totals()
        return page(totals, str, lambda name: totals[name].row(name), limit, after)

    def queues(self, now: Now, limit: int, after: str | None) -> Page:
        """The backends of each service in LRU order, and the requests that wait for them."""
        waiting = self._task_backlog()
        names = {name for name, service in self._scheduler.services.items() if service.offerings}
        names.update(self._requests.queues, waiting)
        return page(names, str, lambda name: self._queue(name, waiting.get(name), now), limit, after)

    def _queue(self, name: str, tasks: tuple[int, bool] | None, now: Now) -> dict[str, Any]:
        service = self._scheduler.services.get(name) or Service(name)
        first = heapq.nsmallest(MAX_LRU_ROWS, service.offerings, key=lambda one: (not one.has_room, one.backend.stamp))
        first = first[: listed([one.backend.identity for one in first])]
        queue = self._requests.queues.get(name)
        oldest = queue.oldest() if queue is not None else None
        return {
            "service": name,
            "waiting": len(self._requests.queues.get(name, ())),
            "oldest_seconds": None if oldest is None else now.mono - oldest.accepted,
            "backends": len(service.offerings),
            "slots": sum(one.slots for one in service.offerings),
            "busy": sum(one.busy for one in service.offerings),
            "lru": [{"identity": one.backend.identity, "slots": one.slots, "busy": one.busy} for one in first],
            "tasks_queued": None if tasks is None else tasks[0],
            "tasks_more": tasks is not None and tasks[1],
        }

    def clients(self, now: Now, limit: int = MAX_PAGE_ROWS, after: str | None = None) -> Page:
        return page(self._members.by_name.values(), client_key, lambda m: self._client(m, now), limit, after)

    def brokers(self, now: Now) -> Page:
        state = self._state
        row = {
            "broker": state.identity,
            "group": state.config.group,
            "state": state.shown,
            "standby_for": state.config.standby_for,
            "services": state.config.services,
            "endpoints": state.endpoints,
            "config_version": self._documents.version,
            "load": float(len(self._members.by_name)),
            "age": 0.0,
        }
        others = [{name: each[name] for name in row} for each in self._peers.rows(now) if each["broker"]]
        return {"items": [row, *others], "next": None}

    def peers(self, now: Now) -> Page:
        """The brokers that this one knows, or should know."""
        return {"items": self._peers.rows(now), "next": None}

    def error_clients(self, now: Now, limit: int, after: str | None) -> Page:
        def row(one: Any) -> dict[str, Any]:
            name, socket, account = one
            left = (account.banned_until or now.mono) - now.mono
            return {"client": name, "socket": socket, "ends_in": left, "bad": account.bad.used}

        return page(self._connections.banned(now), lambda one: one[0], row, limit, after)

    def _service(self, name: str) -> dict[str, Any]:
        service = self._scheduler.services.get(name) or Service(name)
        here = [(offering.slots, offering.busy) for offering in service.offerings]
        there = [
            (peer.identity, peer.table.offered[name]) for peer in self._peers.alive() if name in peer.table.offered
        ]
        known = {self._state.identity, *self._peers.by_name}
        afar = [identity for identity in self._catalog.where(name) if identity not in known]
        return {
            "service": name,
            "backends": len(here) + sum(offer.backends for _, offer in there),
            "slots": sum(slots for slots, _ in here) + sum(offer.slots for _, offer in there),
            "busy": sum(busy for _, busy in here) + sum(offer.busy for _, offer in there),
            "waiting": len(self._requests.queues.get(name, ())),
            "where": [*([self._state.identity] if here else []), *sorted([*(name for name, _ in there), *afar])],
        }

    def _client(self, member: Member, now: Now) -> dict[str, Any]:
        backend = member.backend
        services = list(member.services[: listed(member.services)])
        return {
            "identity": member.identity,
            "role": member.role,
            "services": services,
            "services_more": len(member.services) - len(services),
            "slots": backend.slots if backend else 0,
            "busy": backend.busy if backend else 0,
            "age": now.mono - member.connection.last_received,
            "since": member.joined_wall,
            "heartbeat_interval": member.interval,
            "config_version": member.config_version,
            "protocol": member.protocol,
            "tasks": len(backend.tasks) if backend else 0,
            "status": msgspec.json.decode(member.status) if member.status else None,
        }


def client_key(member: Member) -> str:
    return f"{member.identity} {member.role}"
