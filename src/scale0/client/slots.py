"""The slots of each service of a worker, and the tasks that wait for one.

Invariants: at most `slots` handlers of one service run at once, requests and tasks alike; tasks of one service start in
the order in which they came; a retry is reported as started alone, so that a task that kills the process can be
identified; tasks that are reported together take at most `GROUP_SECONDS`, estimated from earlier ones.
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
"""The estimated duration of tasks that are reported as started together."""
QUICK_SECONDS: Final = 0.0005
"""Tasks that take less on average are reported in groups."""
MAX_GROUP: Final = 500
"""Tasks that are reported together."""
MAX_THREADS: Final = 256
"""Threads of one service; more slots than that only queue."""
WEIGHT: Final = 0.2
"""The weight of the newest measurement in the average."""


class ServiceSlots:
    """The tasks of one service, and how many of its slots are used."""

    __slots__ = ("group", "held", "is_listed", "name", "reported", "running", "seconds", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        self.held: deque[RequestReceived] = deque()
        """Requests that wait for a slot."""
        self.waiting: deque[AssignedTask] = deque()
        self.reported: deque[AssignedTask] = deque()
        """Tasks that were reported as started: any thread may run the next."""
        self.is_listed = False
        self.seconds = 0.0
        """The average duration of a task; 0 if unknown."""
        self.group = 1

    def take_group(self, limit: int) -> list[AssignedTask]:
        """The next tasks to report together."""
        waiting = self.waiting
        group: list[AssignedTask] = []
        while waiting and len(group) < limit:
            if waiting[0].attempt > 1 and group:
                break
            task = waiting.popleft()
            if task.stop:
                continue
            group.append(task)
            if task.attempt > 1:
                break
        return group

    def record(self, count: int, seconds: float) -> None:
        """Update the average, and the size of the next group: at most twice the last one."""
        if count == 0:
            return
        each = seconds / count
        self.seconds = each if self.seconds == 0.0 else self.seconds + WEIGHT * (each - self.seconds)
        if self.seconds >= QUICK_SECONDS:
            self.group = 1
        else:
            self.group = min(2 * self.group, MAX_GROUP, max(1, int(GROUP_SECONDS / max(self.seconds, 1e-6))))


class WorkerSlots:
    """The slots of all services of one worker. The lock is held only briefly."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._lock = threading.Lock()
        self._services: dict[str, ServiceSlots] = {}
        self._round_robin: deque[ServiceSlots] = deque()
        """Services with tasks, in round-robin order."""
        self._counted_requests: set[str] = set()
        """Requests that hold a slot."""
        self.is_counting = False
        """Slots are counted here for each service. With a single service and no tasks, the broker's count is enough."""
        self.is_open = True
        """Tasks may start."""
        self.busy = 0
        """Slots that tasks hold."""

    def acquire_request(self, request: RequestReceived) -> bool:
        """Take a slot for a request; False if there is none: the request is held until there is."""
        handler = self._handlers.get(request.service)
        with self._lock:
            service = self._service(request.service)
            if handler is not None and service.running >= at_once(handler):
                service.held.append(request)
                return False
            service.running += 1
            self._counted_requests.add(request.id)
        return True

    def release_request(self, request: RequestReceived) -> RequestReceived | None:
        """Free a request's slot; return the request that was held for it."""
        if not self._counted_requests:
            return None
        with self._lock:
            if request.id not in self._counted_requests:
                return None
            self._counted_requests.discard(request.id)
            service = self._service(request.service)
            service.running -= 1
            return service.held.popleft() if service.held else None

    def add(self, tasks: Sequence[AssignedTask]) -> None:
        self.is_counting = True
        with self._lock:
            for task in tasks:
                service = self._services.get(task.method)
                if service is None:
                    service = self._service(task.method)
                service.waiting.append(task)
                self._schedule(service)

    def acquire(self, is_async: bool) -> ServiceSlots | None:
        """Take a slot of the next service that has a task and a free slot."""
        if not self._round_robin:
            return None
        with self._lock:
            for _ in range(len(self._round_robin)):
                service = self._round_robin[0]
                if not service.waiting and not service.reported:
                    service.is_listed = False
                    self._round_robin.popleft()
                    continue
                self._round_robin.rotate(-1)
                handler = self._handlers.get(service.name)
                if handler is not None and handler.is_async == is_async and self._free(service, handler):
                    service.running += 1
                    self.busy += 1
                    return service
        return None

    def take_group(self, service: ServiceSlots, limit: int | None = None) -> list[AssignedTask]:
        """The tasks to report next; none while reported tasks have not started."""
        with self._lock:
            return [] if service.reported else service.take_group(service.group if limit is None else limit)

    def mark_reported(self, service: ServiceSlots, tasks: Sequence[AssignedTask]) -> None:
        with self._lock:
            service.reported.extend(tasks)
            self._schedule(service)

    def put_back(self, service: ServiceSlots, tasks: Sequence[AssignedTask]) -> None:
        """They cannot start now."""
        with self._lock:
            service.waiting.extendleft(reversed(tasks))
            self._schedule(service)

    def release_task(self, service: ServiceSlots) -> RequestReceived | None:
        """Free a task's slot; return the request that was held for it."""
        with self._lock:
            service.running -= 1
            self.busy -= 1
            return service.held.popleft() if service.held else None

    def startable(self) -> int:
        """How many tasks for threads could start now."""
        if not self._round_robin:
            return 0
        with self._lock:
            return sum(
                self._free(service, handler)
                for service in self._round_robin
                if (handler := self._handlers.get(service.name)) is not None and not handler.is_async
            )

    def _free(self, service: ServiceSlots, handler: Handler) -> int:
        ready = len(service.reported) + (len(service.waiting) if self.is_open else 0)
        return max(0, min(ready, at_once(handler) - service.running - len(service.held)))

    def _schedule(self, service: ServiceSlots) -> None:
        if not service.is_listed:
            service.is_listed = True
            self._round_robin.append(service)

    def _service(self, name: str) -> ServiceSlots:
        service = self._services.get(name)
        if service is None:
            service = self._services[name] = ServiceSlots(name)
        return service


def at_once(handler: Handler) -> int:
    """How many requests and tasks of a service run at once."""
    return handler.slots if handler.is_async else min(handler.slots, MAX_THREADS)
