"""Stations: the slots of each service of a worker, and the tasks that wait for one.

Lives here: who may begin, and which tasks are announced together. Never here: running or announcing anything.
Invariants: at most `slots` of one service are at work at once, requests and tasks alike; tasks of one service begin in
the order in which they came; an attempt after the first is announced alone, so that whoever kills the process is known;
tasks that are announced together take `GROUP_SECONDS` at the most, as far as can be told from those before them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from scale0.client.handler import Handler
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived

GROUP_SECONDS: Final = 0.005
"""Work that is announced together."""
QUICK_SECONDS: Final = 0.0005
"""Tasks that take less on average are announced in groups."""
MAX_GROUP: Final = 500
"""Tasks that are announced together at the most."""
WEIGHT: Final = 0.2
"""Of the newest measure in the average."""


class ServiceSlots:
    """One service's tasks, and how many of it are at work."""

    __slots__ = ("announced", "group", "held", "listed", "name", "running", "seconds", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        self.held: deque[RequestReceived] = deque()
        """Requests that wait for a slot."""
        self.waiting: deque[AssignedTask] = deque()
        self.announced: deque[AssignedTask] = deque()
        """Tasks that were said to run, and are about to: any hand may take the next."""
        self.listed = False
        self.seconds = 0.0
        """That one task takes, on average; 0: not known."""
        self.group = 1

    def pick(self, most: int) -> list[AssignedTask]:
        """The next tasks to be announced together."""
        waiting = self.waiting
        group: list[AssignedTask] = []
        while waiting and len(group) < most:
            if waiting[0].attempt > 1 and group:
                break
            job = waiting.popleft()
            if job.stop:
                continue
            group.append(job)
            if job.attempt > 1:
                break
        return group

    def learn(self, count: int, seconds: float) -> None:
        """So many tasks took so long: the next group is as large as that allows, and at most twice the last."""
        if count == 0:
            return
        each = seconds / count
        self.seconds = each if self.seconds == 0.0 else self.seconds + WEIGHT * (each - self.seconds)
        if self.seconds >= QUICK_SECONDS:
            self.group = 1
        else:
            self.group = min(2 * self.group, MAX_GROUP, max(1, int(GROUP_SECONDS / max(self.seconds, 1e-6))))


class WorkerSlots:
    """All services of one worker. The lock is held for a moment only."""

    def __init__(self, offers: Mapping[str, Handler]) -> None:
        self._offers = offers
        self._lock = threading.Lock()
        self._stations: dict[str, ServiceSlots] = {}
        self._turn: deque[ServiceSlots] = deque()
        """Stations with tasks, the one whose turn it is first."""
        self._counted: set[str] = set()
        """Requests that are counted as running."""
        self.counting = False
        """Each service must keep to its own slots. While there is one alone, and requests alone, the broker counts."""
        self.is_open = True
        """Tasks may begin."""
        self.busy = 0
        """Slots that tasks hold."""

    def claim(self, work: RequestReceived) -> bool:
        """Take one of a request's own slots, or hold it until there is one."""
        offer = self._offers.get(work.service)
        with self._lock:
            station = self._station(work.service)
            if offer is not None and station.running >= offer.slots:
                station.held.append(work)
                return False
            station.running += 1
            self._counted.add(work.id)
        return True

    def release(self, work: RequestReceived) -> RequestReceived | None:
        """Give a request's slot back; what was held for it is returned."""
        if not self._counted:
            return None
        with self._lock:
            if work.id not in self._counted:
                return None
            self._counted.discard(work.id)
            station = self._station(work.service)
            station.running -= 1
            return station.held.popleft() if station.held else None

    def add(self, jobs: Sequence[AssignedTask]) -> None:
        """Tasks came."""
        self.counting = True
        with self._lock:
            for job in jobs:
                station = self._stations.get(job.method)
                if station is None:
                    station = self._station(job.method)
                station.waiting.append(job)
                self._list(station)

    def enter(self, is_async: bool) -> ServiceSlots | None:
        """Take a slot of the next service that has a task and a free slot; its own part of the turn is over then."""
        if not self._turn:
            return None
        with self._lock:
            for _ in range(len(self._turn)):
                station = self._turn[0]
                if not station.waiting and not station.announced:
                    station.listed = False
                    self._turn.popleft()
                    continue
                self._turn.rotate(-1)
                offer = self._offers.get(station.name)
                if offer is not None and offer.is_async == is_async and self._free(station, offer):
                    station.running += 1
                    self.busy += 1
                    return station
        return None

    def pick(self, station: ServiceSlots, most: int | None = None) -> list[AssignedTask]:
        """The tasks that are to be announced next; none while some are announced that have not begun."""
        with self._lock:
            return [] if station.announced else station.pick(station.group if most is None else most)

    def announce(self, station: ServiceSlots, jobs: Sequence[AssignedTask]) -> None:
        """They were announced: any hand may run them."""
        with self._lock:
            station.announced.extend(jobs)
            self._list(station)

    def put_back(self, station: ServiceSlots, jobs: Sequence[AssignedTask]) -> None:
        """They cannot begin now."""
        with self._lock:
            station.waiting.extendleft(reversed(jobs))
            self._list(station)

    def leave(self, station: ServiceSlots) -> RequestReceived | None:
        """Give a task's slot back; the request that was held for it is returned."""
        with self._lock:
            station.running -= 1
            self.busy -= 1
            return station.held.popleft() if station.held else None

    def startable(self) -> int:
        """Tasks for threads that could begin now, if there were a hand for each."""
        if not self._turn:
            return 0
        with self._lock:
            return sum(
                self._free(station, offer)
                for station in self._turn
                if (offer := self._offers.get(station.name)) is not None and not offer.is_async
            )

    def _free(self, station: ServiceSlots, offer: Handler) -> int:
        ready = len(station.announced) + (len(station.waiting) if self.is_open else 0)
        return max(0, min(ready, offer.slots - station.running - len(station.held)))

    def _list(self, station: ServiceSlots) -> None:
        if not station.listed:
            station.listed = True
            self._turn.append(station)

    def _station(self, name: str) -> ServiceSlots:
        station = self._stations.get(name)
        if station is None:
            station = self._stations[name] = ServiceSlots(name)
        return station
