"""Waiting requests: a queue for each service, fair between clients.

Lives here: who is next, and who gives way when a queue is full. Never here: slots, timers or answers. A client is a key
with CURVE, and a connection without. Invariants: the requests of one client are served in their order; clients are
served in turn, over all services of a backend, so that whoever asks much waits behind nobody but itself; a full queue
refuses the client that has the most in it; every operation costs the same however many wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0.broker.core.request import RoutedRequest

Owner = Any
"""Of a request: what stands for its client."""


class ServiceQueue(Collection["RoutedRequest"]):
    """What waits for one service."""

    __slots__ = ("_by_count", "_most", "_of", "_size")

    def __init__(self) -> None:
        self._of: OrderedDict[Owner, OrderedDict[RoutedRequest, None]] = OrderedDict()
        """Each client's own, the client whose turn it is first."""
        self._by_count: dict[int, dict[Owner, None]] = {}
        """Clients by how many of theirs wait, so that the largest is found at once."""
        self._most = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[RoutedRequest]:
        """All of them, the oldest first."""
        return iter(sorted((one for own in self._of.values() for one in own), key=lambda one: one.number))

    def __contains__(self, request: object) -> bool:
        return any(request in own for own in self._of.values())

    def head(self) -> RoutedRequest:
        """The next one."""
        return next(iter(next(iter(self._of.values()))))

    def oldest(self) -> RoutedRequest:
        """The one that has waited longest."""
        return min((next(iter(own)) for own in self._of.values()), key=lambda one: one.number)

    def add(self, request: RoutedRequest, owner: Owner, first: bool = False) -> None:
        """Behind, or before, all others of its client; `first`: its client is the next, too."""
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
        """Take one out; False if it was not there. Its client goes behind the others when it was the next."""
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
        """This client was served: the others come first."""
        if len(self._of) > 1:
            self._of.move_to_end(owner)

    def of(self, owner: Owner) -> int:
        """How many of this client's wait."""
        return len(self._of.get(owner, ()))

    def newest_of_largest(self) -> tuple[RoutedRequest, int]:
        """The last request of the client that has the most here, and how many that are."""
        owner = next(iter(self._by_count[self._most]))
        return next(reversed(self._of[owner])), self._most

    def _count(self, owner: Owner, before: int, after: int) -> None:
        """A count changes by one, so the largest does, at most."""
        if before:
            del self._by_count[before][owner]
        if after:
            self._by_count.setdefault(after, {})[owner] = None
        if before and not self._by_count[before]:
            del self._by_count[before]
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after


class ClientShare:
    """What one client had of the backends."""

    __slots__ = ("stamp", "waiting")

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        """When it was served last, in hand-outs; a newcomer counts from now."""
        self.waiting = 0


class RequestQueues:
    """The queues of all services."""

    __slots__ = ("_clock", "_shares", "queues")

    def __init__(self) -> None:
        self.queues: dict[str, ServiceQueue] = {}
        self._shares: dict[Owner, ClientShare] = {}
        self._clock = 0

    def __bool__(self) -> bool:
        return bool(self.queues)

    def of(self, service: str) -> list[RoutedRequest]:
        """What waits for a service, the oldest first."""
        queue = self.queues.get(service)
        return list(queue) if queue is not None else []

    def room(self, request: RoutedRequest, limit: int) -> RoutedRequest | None:
        """Who gives way if this one is to wait: nobody (None) if there is room, itself if its client has the most."""
        queue = self.queues.get(request.service)
        if queue is None or len(queue) < limit:
            return None if limit > 0 else request
        last, most = queue.newest_of_largest()
        return last if most > queue.of(owner_of(request)) + 1 else request

    def add(self, request: RoutedRequest, first: bool = False) -> None:
        """Let it wait; `first`: before all others, because it was the next before."""
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
        """It waits no more; False if it did not."""
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

    def next(self, services: frozenset[str]) -> RoutedRequest | None:
        """The next one for a backend that offers these: of the client that was served longest ago."""
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
        """It is handed out: the clients who wait beside its own come first now."""
        owner = request.owner
        self._clock += 1
        self._shares[owner].stamp = self._clock
        self.queues[request.service].pass_turn(owner)
        self.remove(request)


def owner_of(request: RoutedRequest) -> Owner:
    """What stands for a request's client: its key, or its connection."""
    return request.origin.user_id or request.origin
