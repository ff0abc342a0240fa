"""Waiting requests: one queue for each service, fair between clients.

A client is a key with CURVE, and a connection without. Invariants: the requests of one client are served in order;
clients are served in turn over all services of a backend, so that a client with many requests delays only itself; a
full queue refuses the client with the most requests in it; the cost to add or remove does not grow with its size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0.broker.core.request import RoutedRequest

Owner = Any


class ServiceQueue(Collection["RoutedRequest"]):
    __slots__ = ("_by_count", "_most", "_of", "_size")

    def __init__(self) -> None:
        self._of: OrderedDict[Owner, OrderedDict[RoutedRequest, None]] = OrderedDict()
        """The requests of each client; the client whose turn it is comes first."""
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

    def head(self) -> RoutedRequest:
        return next(iter(next(iter(self._of.values()))))

    def oldest(self) -> RoutedRequest:
        return min((next(iter(own)) for own in self._of.values()), key=lambda one: one.number)

    def add(self, request: RoutedRequest, owner: Owner, first: bool = False) -> None:
        """Add a request behind, or with `first` before, the others of its client; its client is then next, too."""
        own = self._of.get(owner)
        if own is None:
            self._of[owner] = own = OrderedDict()
        own[request] = None
        if first:
            own.move_to_end(request, last=False)
            self._of.move_to_end(owner, last=False)
        self._size += 1
        self._count(owner, len(own) - 1, len(own))

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
        return True

    def pass_turn(self, owner: Owner) -> None:
        if len(self._of) > 1:
            self._of.move_to_end(owner)

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
    def __init__(self) -> None:
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

    def add(self, request: RoutedRequest, first: bool = False) -> None:
        """Queue a request; `first`: before all others, because it had been the next."""
        request.owner = owner = owner_of(request)
        queue = self.queues.get(request.service)
        if queue is None:
            self.queues[request.service] = queue = ServiceQueue()
        queue.add(request, owner, first)
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
        if len(queues) < len(services):
            heads = [queue.head() for name, queue in queues.items() if name in services]
        else:
            heads = [queues[name].head() for name in services & queues.keys()]
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
    return request.origin.user_id or request.origin
