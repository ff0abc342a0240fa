"""Batches of requests: those that arrived as one REQUESTS, and that one backend gets as one.

A batch costs about as much as one request. Invariants: it means what its requests mean one by one, for the order of
backends, slots, limits and statistics; a request that a client waits for is in one place, in the `pending` numbers of a
batch or in a `RoutedRequest`; whatever concerns a single request of a batch separates all that are pending.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.core.permissions import HELEN_PREFIX
from scale0.broker.core.request import RoutedRequest
from scale0.broker.core.request_memory import REQUEST_BYTES
from scale0.broker.core.slot_shares import UNLIMITED
from scale0.transport.core.request_batches import bodies_of, check_ids, number_of, pack_bodies, sizes_of

if TYPE_CHECKING:
    from scale0.broker.core.connections import Connection
    from scale0.broker.core.requests import Requests
    from scale0.broker.core.scheduler import Backend, Scheduler, Service
    from scale0.broker.core.slot_shares import SlotShares
    from scale0.broker.core.state import BrokerState
    from scale0.kernel.clock import Now
    from scale0.kernel.effects import Effects
    from scale0.transport.core import messages as options

LEAST: Final = 2
"""Fewer requests are handed out one by one."""
MAX_BATCHES: Final = 200
"""Batches of one connection, as many as are looked through for an id; further requests are accepted one by one."""
BY_NUMBER: Final = attrgetter("number")


class RequestBatch:
    """Requests with consecutive numbers that one backend has. They occupy a slot each."""

    __slots__ = (
        *("accepted", "account", "backend", "bucket", "count", "deadline", "ended", "first", "number", "origin"),
        *("packed", "pending", "retry", "service", "shares", "size", "text"),
    )

    def __init__(
        self,
        number: int,
        origin: Connection,
        text: str,
        first: int,
        count: int,
        service: str,
        packed: bytes,
        size: int,
        accepted: float,
        deadline: float,
        retry: bool,
        backend: Backend,
        shares: SlotShares,
        account: Any,
    ) -> None:
        self.number = number
        """Our number of the first request, in the order of acceptance."""
        self.origin = origin
        self.text = text
        self.first = first
        """With `text`: the client's id of the first request."""
        self.count = count
        self.service = service
        self.packed = packed
        """The bodies."""
        self.size = size
        """Their bytes."""
        self.accepted = accepted
        self.deadline = deadline
        self.retry = retry
        self.backend = backend
        self.shares = shares
        self.account = account
        self.pending = bits(0, count)
        """A bit for each request that has no answer."""
        self.ended = False
        self.bucket = 0

    @property
    def charge(self) -> int:
        """What its requests need, as one by one, until the last of them has its answer."""
        return self.size + REQUEST_BYTES * self.count

    @property
    def left(self) -> int:
        return self.pending.bit_count()

    def has_id(self, text: str, number: int) -> bool:
        """True if a request with this id of the client is pending."""
        index = number - self.first
        return 0 <= index < self.count and text == self.text and bool(self.pending >> index & 1)


def bits(index: int, count: int) -> int:
    """So many bits, the first one for this index."""
    return ((1 << count) - 1) << index


def alike(pending: int, index: int, most: int) -> int:
    """How many bits are like the one at this index, from it on."""
    rest = pending >> index
    if rest & 1:
        rest = ~rest
    return min(most, (rest & -rest).bit_length() - 1) if rest else most


class RequestBatches:
    def __init__(self, state: BrokerState, scheduler: Scheduler, requests: Requests) -> None:
        self._state = state
        self._scheduler = scheduler
        self._requests = requests

    def submit(
        self,
        origin: Connection,
        message: options.ManyRequests,
        packed: bytes,
        timeout: float,
        retry: bool,
        now: Now,
        effects: Effects,
    ) -> None:
        """Accept requests that were checked: each backend with free slots gets its part; what is left waits."""
        sizes = sizes_of(packed)
        service = self._scheduler.services.get(message.service)
        done, bodies = 0, None
        if (
            service is not None
            and self._is_simple(origin, message.service, service)
            and self._fits(origin, len(packed) + REQUEST_BYTES * len(sizes))
        ):
            taken = self._scheduler.take_many(message.service, len(sizes))
            for backend, count in taken:
                part = sizes[done : done + count]
                if count == len(sizes):
                    some = packed
                else:
                    bodies = bodies or bodies_of(packed)
                    some = pack_bodies(bodies[done : done + count])
                batch = RequestBatch(
                    self._requests.take_numbers(count),
                    *(origin, message.id, message.first + done, count, message.service, some, sum(part)),
                    *(now.mono, now.mono + timeout, retry, backend, service.shares, origin.sender or origin),
                )
                self._hand(batch, service, now, effects)
                done += count
        for index in range(done, len(sizes)):
            bodies = bodies or bodies_of(packed)
            id_ = f"{message.id}{message.first + index}"
            self._requests.submit(origin, id_, message.service, (bodies[index],), timeout, retry, now, effects)

    def _is_simple(self, origin: Connection, name: str, service: Service) -> bool:
        """True if each of several requests would get a free slot here, as long as there are any."""
        shares = service.shares
        return (
            bool(service.offerings)
            and origin.request_batches
            and len(origin.batches) < MAX_BATCHES
            and self._state.serving
            and not name.startswith(HELEN_PREFIX)
            and shares.most == UNLIMITED
            and shares.alone in (None, origin.sender or origin)
        )

    def _fits(self, origin: Connection, size: int) -> bool:
        return not self._requests.memory.why_not(origin.sender or origin, size, self._state.limits)

    def _hand(self, batch: RequestBatch, service: Service, now: Now, effects: Effects) -> None:
        backend, shares = batch.backend, batch.shares
        shares.take(batch.account, len(service.offerings), service.slots, now.mono)
        shares.in_flight += batch.count - 1
        self._requests.memory.add(batch.account, batch.charge)
        batch.origin.batches.append(batch)
        backend.batches.append(batch)
        is_many = len(backend.batches) > MAX_BATCHES
        if batch.count < LEAST or is_many or not backend.peer.request_batches:
            for request in self.separate(batch, now):
                self._requests.send(request, backend, now, effects)
            return
        self._requests.timers.add(batch, now.mono)
        settings = {
            "service": batch.service,
            "id": self._requests.prefix,
            "first": batch.number,
            "timeout": batch.deadline - now.mono,
        }
        effects.send(backend.peer, ("REQUESTS", settings, batch.packed))

    def replies(
        self,
        connection: Connection,
        message: options.ManyReplies,
        packed: bytes,
        now: Now,
        effects: Effects,
    ) -> None:
        """Pass the replies to each batch on as one message, and those to other requests one by one."""
        sizes = sizes_of(packed)
        check_ids(message, len(sizes))
        bodies: list[bytes] = []
        done = 0
        while done < len(sizes):
            first = message.first + done
            batch, index, count = self._find(connection, message.id, first, len(sizes) - done)
            if batch is not None and count == len(sizes):
                self._answer(batch, index, sizes, packed, now, effects)
                return
            bodies = bodies or bodies_of(packed)
            some = bodies[done : done + count]
            if batch is not None:
                self._answer(batch, index, sizes[done : done + count], pack_bodies(some), now, effects)
            else:
                self._reply_each(connection, message.id, first, some, now, effects)
            done += count

    def _reply_each(
        self, connection: Connection, text: str, first: int, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """Replies to requests that are in no batch: the unknown ones are only counted."""
        requests, unknown = self._requests, 0
        for number, body in enumerate(bodies, first):
            id_ = f"{text}{number}"
            if id_ in requests.under_way:
                requests.reply(connection, id_, (body,), now, effects)
            else:
                unknown += 1
        if unknown:
            self._state.count("replies_unknown", unknown)

    def _answer(
        self, batch: RequestBatch, index: int, sizes: Sequence[int], packed: bytes, now: Now, effects: Effects
    ) -> None:
        """Replies to pending requests of a batch, from this index on."""
        backend, count = batch.backend, len(sizes)
        size = batch.size if count == batch.count else sum(sizes_of(batch.packed)[index : index + count])
        batch.pending &= ~bits(index, count)
        self._give_back(batch, count, now)
        settings = {"id": batch.text, "first": batch.first + index, "service": batch.service}
        effects.send(batch.origin, ("REPLIES", settings, packed))
        stats = self._requests.stats
        stats.answered(batch.service, backend.identity, now.mono - batch.accepted, size + sum(sizes), count)
        self._requests.feed(backend, batch.service, now, effects)

    def _give_back(self, batch: RequestBatch, count: int, now: Now) -> None:
        """Give back the slots of requests that are not pending any more."""
        if not batch.pending:
            self._remove(batch)
        self._scheduler.give_back(batch.backend, batch.service, count)
        shares = batch.shares
        if shares.in_flight > count and shares.alone is not None:
            shares.in_flight -= count
        else:
            for _ in range(count):
                self._requests.give_share(batch.account, batch.service, shares, now)

    def _remove(self, batch: RequestBatch) -> None:
        batch.ended = True
        batch.packed = b""
        self._requests.memory.remove(batch.account, batch.charge)
        batch.origin.batches.remove(batch)
        batch.backend.batches.remove(batch)
        self._requests.timers.remove(batch)

    def _find(self, connection: Connection, text: str, number: int, most: int) -> tuple[RequestBatch | None, int, int]:
        """The batch of a backend that has the request with this number of ours, and its index there; None if none has
        it. The last value: for how many numbers, from this one on, that is so."""
        member = connection.member
        if text != self._requests.prefix or member is None or member.backend is None:
            return None, 0, most
        batches = member.backend.batches  # in the order of their numbers
        place = bisect_right(batches, number, key=BY_NUMBER)
        if place:
            batch = batches[place - 1]
            index = number - batch.number
            if index < batch.count:
                count = alike(batch.pending, index, min(most, batch.count - index))
                return (batch if batch.pending >> index & 1 else None), index, count
        return None, 0, min(most, batches[place].number - number) if place < len(batches) else most

    def separate_by_id(self, connection: Connection, id_: Any, now: Now) -> None:
        """A backend says something about a single request: separate its batch, if it belongs to one."""
        place = number_of(id_)
        batch = self._find(connection, *place, 1)[0] if place is not None else None
        if batch is not None:
            self.separate(batch, now)

    def separate(self, batch: RequestBatch, now: Now) -> list[RoutedRequest]:
        """Make a RoutedRequest of each pending request; they keep their slots and their deadline."""
        bodies = bodies_of(batch.packed)
        requests: list[RoutedRequest] = []
        for index in range(batch.count):
            if not batch.pending >> index & 1:
                continue
            number = batch.number + index
            id_, origin_id = self._requests.id_of(number), f"{batch.text}{batch.first + index}"
            request = RoutedRequest(
                *(id_, number, batch.origin, origin_id, batch.service, (bodies[index],)),
                *(batch.accepted, batch.deadline, batch.retry, 0),
            )
            request.shares, request.account = batch.shares, batch.account
            self._requests.adopt(request, batch.backend, now)
            requests.append(request)
        batch.pending = 0
        self._remove(batch)
        return requests

    def separate_all(self, batches: Sequence[RequestBatch], now: Now) -> None:
        for batch in list(batches):
            self.separate(batch, now)
