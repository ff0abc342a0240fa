"""Waiting requests: one queue for each service, fair between clients.

A client is a key with CURVE, and a connection without. Invariants: the requests of one client are served in order;
clients are served in turn over all services of a backend, so that a client with many requests delays only itself; one
that may have no more in flight (`slot_shares`) is parked, and has no turn; a full queue refuses the client with the
most requests in it; the cost to add or remove does not grow with its size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Set
from typing import TYPE_CHECKING, Final

from scale0.broker.core.request_memory import Owner, RequestMemory

if TYPE_CHECKING:
    from scale0.broker.core.request import RoutedRequest

QUEUE_BYTES: Final = 1_500
"""What the queue of one client for one service needs."""


class ServiceQueue(Collection["RoutedRequest"]):
    __slots__ = ("_by_count", "_most", "_of", "_parked", "_size", "_turns")

    def __init__(self) -> None:
        self._of: OrderedDict[Owner, OrderedDict[RoutedRequest, None]] = OrderedDict()
        """The requests of each client."""
        self._turns: OrderedDict[Owner, None] = OrderedDict()
        """Clients with requests that are not parked; the one whose turn it is comes first."""
        self._parked: OrderedDict[Owner, None] = OrderedDict()
        """The others, the first one longest."""
        self._by_count: dict[int, dict[Owner, None]] = {}
        """Clients by their number of waiting requests, to find the largest in constant time."""
        self._most = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[RoutedRequest]:
        """In order of acceptance."""
        return iter(sorted((one for own in self._of.values() for one in own), key=lambda one: one.number))

    def __contains__(self, request: object) -> bool:
        return any(request in own for own in self._of.values())

    def head(self) -> RoutedRequest | None:
        """The next request; None if every client is parked."""
        owner = next(iter(self._turns), None)
        return None if owner is None else next(iter(self._of[owner]))

    def park(self, owner: Owner) -> None:
        del self._turns[owner]
        self._parked[owner] = None

    def unpark(self, owner: Owner) -> None:
        if owner in self._parked:
            del self._parked[owner]
            self._turns[owner] = None

    def unpark_first(self) -> None:
        if self._parked:
            self._turns[self._parked.popitem(last=False)[0]] = None

    def unpark_all(self) -> None:
        self._turns.update(self._parked)
        self._parked.clear()

    def oldest(self) -> RoutedRequest:
        return min((next(iter(own)) for own in self._of.values()), key=lambda one: one.number)

    def add(self, request: RoutedRequest, owner: Owner, first: bool = False) -> bool:
        """Add a request behind, or with `first` before, the others of its client; its client is then next, too. True if
        it is the only one of its client."""
        own = self._of.get(owner)
        if own is None:
            self._of[owner] = own = OrderedDict()
            self._turns[owner] = None
        own[request] = None
        if first:
            own.move_to_end(request, last=False)
            self.unpark(owner)
            self._turns.move_to_end(owner, last=False)
        self._size += 1
        self._count(owner, len(own) - 1, len(own))
        return len(own) == 1

    def remove(self, request: RoutedRequest, owner: Owner) -> bool:
        """Remove a request; False if it was not there."""
        own = self._of.get(owner)
        if own is None or request not in own:
            return False
        del own[request]
        self._size -= 1
        self._count(owner, len(own) + 1, len(own))
        if not own:
            del self._of[owner]
            self._turns.pop(owner, None)
            self._parked.pop(owner, None)
        return True

    def pass_turn(self, owner: Owner) -> None:
        if len(self._turns) > 1:
            self._turns.move_to_end(owner)

    def of(self, owner: Owner) -> int:
        return len(self._of.get(owner, ()))

    def newest_of_largest(self) -> tuple[RoutedRequest, int]:
        """The last request of the client with the most requests here, and their number."""
        owner = next(iter(self._by_count[self._most]))
        return next(reversed(self._of[owner])), self._most

    def _count(self, owner: Owner, before: int, after: int) -> None:
        """A count changes by one, so the maximum changes by at most one."""
        if before:
            del self._by_count[before][owner]
        if after:
            self._by_count.setdefault(after, {})[owner] = None
        if before and not self._by_count[before]:
            del self._by_count[before]
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after


class ClientShare:
    __slots__ = ("stamp", "waiting")

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        """The hand-out number when it was last served; a new client starts at the current one."""
        self.waiting = 0


class RequestQueues:
    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        """It has the queues; the requests in them have been charged."""
        self.queues: dict[str, ServiceQueue] = {}
        self._shares: dict[Owner, ClientShare] = {}
        self._clock = 0

    def __bool__(self) -> bool:
        return bool(self.queues)

    def of(self, service: str) -> list[RoutedRequest]:
        """The requests that wait for a service, in order of acceptance."""
        queue = self.queues.get(service)
        return list(queue) if queue is not None else []

    def room(self, request: RoutedRequest, limit: int) -> RoutedRequest | None:
        """Which request is refused if this one is queued: None if there is room, itself if its client has the most."""
        queue = self.queues.get(request.service)
        if queue is None or len(queue) < limit:
            return None if limit > 0 else request
        last, most = queue.newest_of_largest()
        return last if most > queue.of(owner_of(request)) + 1 else request

    def cost(self, request: RoutedRequest) -> int:
        """What it needs to wait, beside what it was charged."""
        queue = self.queues.get(request.service)
        return QUEUE_BYTES if queue is None or not queue.of(owner_of(request)) else 0

    def add(self, request: RoutedRequest, first: bool = False) -> None:
        """Queue a request; `first`: before all others, because it had been the next."""
        request.owner = owner = owner_of(request)
        queue = self.queues.get(request.service)
        if queue is None:
            self.queues[request.service] = queue = ServiceQueue()
        if queue.add(request, owner, first):
            self._memory.add(owner, QUEUE_BYTES)
        share = self._shares.get(owner)
        if share is None:
            self._shares[owner] = share = ClientShare(self._clock)
        share.waiting += 1

    def remove(self, request: RoutedRequest) -> bool:
        owner = request.owner
        if owner is None:
            return False
        request.owner = None
        queue = self.queues[request.service]
        queue.remove(request, owner)
        if not queue.of(owner):
            self._memory.remove(owner, QUEUE_BYTES)
            if not queue:
                del self.queues[request.service]
        share = self._shares[owner]
        share.waiting -= 1
        if not share.waiting:
            del self._shares[owner]
        return True

    def next(self, services: Set[str]) -> RoutedRequest | None:
        """The next request of these services: from the client that was served longest ago."""
        queues = self.queues
        if len(services) == 1:
            queue = queues.get(next(iter(services)))
            return None if queue is None else queue.head()
        if len(queues) < len(services):
            found = [queue.head() for name, queue in queues.items() if name in services]
        else:
            found = [queues[name].head() for name in services & queues.keys()]
        heads = [request for request in found if request is not None]
        if len(heads) < 2:
            return heads[0] if heads else None
        shares = self._shares
        return min(heads, key=lambda request: (shares[request.owner].stamp, request.number))

    def served(self, request: RoutedRequest) -> None:
        """The request is handed out: the other clients in its queue are now before its client."""
        owner = request.owner
        self._clock += 1
        self._shares[owner].stamp = self._clock
        self.queues[request.service].pass_turn(owner)
        self.remove(request)


def owner_of(request: RoutedRequest) -> Owner:
    """The key of a request's client: its user, or its connection."""
    return request.sender or request.origin.sender or request.origin
