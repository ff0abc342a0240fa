"""Task clients: the ids under which tasks are submitted and read. An id stays valid until `client_disconnect`, or until
it has no tasks and was not heard for a week, across reconnects and restarts; the store has all ids, and memory those in
use. With CURVE an id belongs to a user, the name of a key, as an identity does: one that is the name of a key, or lies
beneath it, to that key, any other to the first that uses it. The tasks belong to the public key, so the next key of
that name inherits the id alone. Invariants: every id in `known` is stored, or will be with this turn's commit, unless
another broker of a shared store deletes it as unused; the number of ids is bounded, for each key and in all."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity
from scale0.storage.task_queries import CountTaskClients, ReadUnusedClients
from scale0.storage.task_rows import DropTaskClient, PutTaskClient, TaskClient
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.task import of_seconds
from scale0.tasks.jsonrpc.messages import BAD_CLIENT, QUEUE_FULL, RpcError
from scale0.transport.core.sockets import FRONTEND

MAX_KNOWN: Final = 100_000
"""Client ids in memory; others are looked up in the store."""
UNUSED_SECONDS: Final = 7 * 86_400.0
"""How long a client id without tasks stays valid after it was heard last."""
HEARD_SECONDS: Final = 3_600.0
"""How old the stored time of a client id in use may be."""
COUNT_SECONDS: Final = 60.0
"""Interval at which the stored client ids are counted."""
LOOK_SECONDS: Final = 3_600.0
"""Interval at which unused client ids are looked for."""
MAX_UNUSED: Final = 10_000
"""Unused client ids that one query returns."""
DROPPED_AT_ONCE: Final = 500
"""Unused client ids that one commit deletes."""
DROP_SECONDS: Final = 0.05
"""Pause between such commits."""
SENDER: Final = "task clients"
NEXT_STEP: Final = "disconnect some, or raise {limit} in the broker's file"


class KnownClient:
    __slots__ = ("connection", "heard", "owner")

    def __init__(self, connection: Connection, owner: str) -> None:
        self.connection = connection
        self.owner = owner
        """The user that the id belongs to; empty without CURVE."""
        self.heard = -math.inf
        """When its time was stored last, monotonic."""


class TaskClients:
    def __init__(self, state: BrokerState, adapter: BrokerAdapter, retained_us: Callable[[Now], int]) -> None:
        """`retained_us`: the time by which what is stored expires."""
        self._state = state
        self._adapter = adapter
        self._retained_us = retained_us
        self._known: OrderedDict[str, KnownClient] = OrderedDict()
        self._counts: Counter[str] = Counter()
        """Stored ids, by owner: as they were counted last, and those that were added and disconnected since."""
        self._total = 0
        self._added: Counter[str] = Counter()
        """Since that count was requested."""
        self._unused: deque[str] = deque()
        """Ids that are to be deleted, unless they are heard before."""
        self._heard_us = 0
        """They were not heard after this time."""
        self._look_at = -math.inf

    def start(self, now: Now) -> None:
        # Earlier versions stored only when an id connected: those in use are heard before unused ones are looked for.
        self._look_at = now.mono + LOOK_SECONDS
        self._state.timers.add((self._count, None), now.mono + 1.0)

    def connect(self, connection: Connection, client_id: str | None, now: Now, effects: Effects) -> str:
        """Makes an id valid; raises RpcError if another client uses it, or if there are too many."""
        if client_id is None:
            client_id = f"client-{self._state.rng.getrandbits(64):016x}"
        elif not is_identity(client_id):
            raise RpcError(BAD_CLIENT, "a client id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        known = self._known.get(client_id)
        if known is None:
            known = KnownClient(connection, connection.user_id)
            self._check_owner(client_id, known, connection)
            self._check_room(connection.user_id)
            self._add(connection.user_id, 1)
            self._remember(client_id, known)
        else:
            self._check_owner(client_id, known, connection)
            if known.connection is not connection and self._is_used(known, now):
                raise RpcError(BAD_CLIENT, f"{client_id} is in use by another connection")
            known.connection = connection
            if known.owner and known.owner != connection.user_id:
                # Another key used it before this one was stored.
                effects.write(DropTaskClient(client_id))
                known.owner = connection.user_id
        self._hear(client_id, known, now, effects)
        return client_id

    def disconnect(self, connection: Connection, client_id: str, effects: Effects) -> None:
        """Invalidates an id; its tasks continue."""
        known = self._known.pop(client_id)
        self._check_owner(client_id, known, connection)
        self._add(known.owner, -1)
        effects.write(DropTaskClient(client_id))

    def check(self, connection: Connection, client_id: str, now: Now, effects: Effects) -> bool:
        """True for a valid id; False if it must be looked up in the store."""
        known = self._known.get(client_id)
        if known is None:
            if not is_identity(client_id):
                raise RpcError(BAD_CLIENT, "a client id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
            return False
        if known.connection is not connection:
            self._check_owner(client_id, known, connection)
        if now.mono - known.heard > HEARD_SECONDS and not self._state.full:
            self._hear(client_id, known, now, effects)
        return True

    def learn(
        self, connection: Connection, found: TaskClient | None, client_id: str, now: Now, effects: Effects
    ) -> None:
        """Caches a lookup result; raises RpcError if the id is not valid."""
        if client_id in self._known:
            return
        if found is None:
            raise RpcError(BAD_CLIENT, f"unknown client id {client_id}: call client_connect first")
        known = KnownClient(connection, found.owner)
        self._check_owner(client_id, known, connection)
        self._remember(client_id, known)
        self.check(connection, client_id, now, effects)

    def _hear(self, client_id: str, known: KnownClient, now: Now, effects: Effects) -> None:
        """Stores when an id was heard."""
        known.heard = now.mono
        effects.write(PutTaskClient(client_id, known.owner, self._retained_us(now)))

    def _remember(self, client_id: str, known: KnownClient) -> None:
        self._known[client_id] = known
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _is_used(self, known: KnownClient, now: Now) -> bool:
        return now.mono - self._adapter.last_received(known.connection) <= self._state.interval

    def _check_owner(self, client_id: str, known: KnownClient, connection: Connection) -> None:
        owner = "" if self._state.keys is None else self._state.keys.owner_of(FRONTEND, client_id)
        if owner and owner != connection.user_id.partition("/")[2]:
            raise RpcError(BAD_CLIENT, f"client ids {owner} and {owner}.… belong to the key {owner}")
        if not owner and known.owner and known.owner != connection.user_id:
            raise RpcError(BAD_CLIENT, "this client id belongs to another key")

    # The number of ids, and those that nobody uses.

    def _check_room(self, owner: str) -> None:
        limits = self._state.limits
        most = limits.task_client_limit
        key_most = limits.max_key_task_clients or (most + 1) // 2
        if owner and self._counts[owner] >= key_most:
            step = NEXT_STEP.format(limit="max_key_task_clients")
            raise RpcError(QUEUE_FULL, f"{owner} may have {key_most} client ids (max_key_task_clients): {step}")
        if self._total >= most:
            step = NEXT_STEP.format(limit="task_client_limit")
            raise RpcError(QUEUE_FULL, f"all clients together may have {most} client ids (task_client_limit): {step}")

    def _add(self, owner: str, count: int) -> None:
        self._counts[owner] += count
        self._total += count
        self._added[owner] += count

    def _count(self, _: None, now: Now, effects: Effects) -> None:
        self._added.clear()
        effects.ask(StoreQuery(CountTaskClients(), self._counted, aside=True, sender=SENDER))
        if now.mono >= self._look_at and not self._unused:
            self._look_at = now.mono + LOOK_SECONDS
            self._heard_us = self._retained_us(now) - of_seconds(UNUSED_SECONDS)
            query = ReadUnusedClients(self._heard_us, MAX_UNUSED)
            effects.ask(StoreQuery(query, self._found_unused, aside=True, sender=SENDER))

    def _counted(self, counts: Any, now: Now, _: Effects) -> None:
        if not isinstance(counts, Refusal):
            # What was added meanwhile may be counted twice until the next count.
            self._counts = Counter(counts) + self._added
            self._total = self._counts.total()
        self._state.timers.add((self._count, None), now.mono + COUNT_SECONDS)

    def _found_unused(self, ids: Any, now: Now, effects: Effects) -> None:
        if isinstance(ids, Refusal):
            return
        self._unused.extend(ids)
        if len(ids) == MAX_UNUSED:
            self._look_at = now.mono  # there are more
        self._drop(None, now, effects)

    def _drop(self, _: None, now: Now, effects: Effects) -> None:
        """Deletes some unused ids; one whose connection lives is heard instead."""
        for _number in range(min(DROPPED_AT_ONCE, len(self._unused)) if not self._state.full else 0):
            client_id = self._unused.popleft()
            known = self._known.get(client_id)
            if known is not None and self._adapter.last_received(known.connection) != -math.inf:
                self._hear(client_id, known, now, effects)
            else:
                self._known.pop(client_id, None)
                effects.write(DropTaskClient(client_id, self._heard_us))
        if self._unused:
            self._state.timers.add((self._drop, None), now.mono + (1.0 if self._state.full else DROP_SECONDS))
