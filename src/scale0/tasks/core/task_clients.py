"""Task clients: the ids under which tasks are submitted and read. An id stays valid until `client_disconnect`, across
reconnects and restarts; the store has all ids, and memory those in use. Invariant: every id in `known` is stored, or
will be with this turn's commit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_identity
from scale0.storage.task_rows import DropTaskClient, PutTaskClient, TaskClient
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.task import of_seconds
from scale0.tasks.jsonrpc.messages import BAD_CLIENT, RpcError

MAX_KNOWN: Final = 100_000
"""Client ids in memory; others are looked up in the store."""


class KnownClient:
    __slots__ = ("connection", "owner")

    def __init__(self, connection: Connection, owner: str) -> None:
        self.connection = connection
        self.owner = owner
        """The key that owns the id; empty without CURVE."""


class TaskClients:
    def __init__(self, state: BrokerState, adapter: BrokerAdapter) -> None:
        self._state = state
        self._adapter = adapter
        self._known: OrderedDict[str, KnownClient] = OrderedDict()

    def connect(self, connection: Connection, client_id: str | None, now: Now, effects: Effects) -> str:
        """Makes an id valid; raises RpcError if another client uses it."""
        if client_id is None:
            client_id = f"client-{self._state.rng.getrandbits(64):016x}"
        elif not is_identity(client_id):
            raise RpcError(BAD_CLIENT, "a client id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        known = self._known.get(client_id)
        if known is None:
            self._remember(client_id, KnownClient(connection, connection.user_id))
        else:
            self._check_owner(known, connection)
            if known.connection is not connection and self._is_used(known, now):
                raise RpcError(BAD_CLIENT, f"{client_id} is in use by another connection")
            known.connection = connection
        effects.write(PutTaskClient(client_id, connection.user_id, of_seconds(now.wall)))
        return client_id

    def disconnect(self, connection: Connection, client_id: str, effects: Effects) -> None:
        """Invalidates an id; its tasks continue."""
        known = self._known.pop(client_id)
        self._check_owner(known, connection)
        effects.write(DropTaskClient(client_id))

    def check(self, connection: Connection, client_id: str) -> bool:
        """True for a valid id; False if it must be looked up in the store."""
        known = self._known.get(client_id)
        if known is None:
            if not is_identity(client_id):
                raise RpcError(BAD_CLIENT, "a client id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
            return False
        if known.connection is not connection:
            self._check_owner(known, connection)
        return True

    def learn(self, connection: Connection, found: TaskClient | None, client_id: str) -> None:
        """Caches a lookup result; raises RpcError if the id is not valid."""
        if client_id in self._known:
            return
        if found is None:
            raise RpcError(BAD_CLIENT, f"unknown client id {client_id}: call client_connect first")
        known = KnownClient(connection, found.owner)
        self._check_owner(known, connection)
        self._remember(client_id, known)

    def _remember(self, client_id: str, known: KnownClient) -> None:
        self._known[client_id] = known
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _is_used(self, known: KnownClient, now: Now) -> bool:
        return now.mono - self._adapter.last_received(known.connection) <= self._state.interval

    def _check_owner(self, known: KnownClient, connection: Connection) -> None:
        if known.owner and known.owner != connection.user_id:
            raise RpcError(BAD_CLIENT, "this client id belongs to another key")
