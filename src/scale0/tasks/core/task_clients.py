"""Task clients: the ids under which tasks are submitted and read. An id stays valid until `client_disconnect`, across
reconnects and restarts; the store has all ids, and memory those in use. Invariant: every id in `known` is stored, or
will be with this turn's commit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

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
    __slots__ = ("line", "owner")

    def __init__(self, line: Any, owner: str) -> None:
        self.line = line
        self.owner = owner
        """The key that owns the id; empty without CURVE."""


class TaskClients:
    __slots__ = ("_adapter", "_known", "_state")

    def __init__(self, state: BrokerState, adapter: BrokerAdapter) -> None:
        self._state = state
        self._adapter = adapter
        self._known: OrderedDict[str, KnownClient] = OrderedDict()

    def connect(self, line: Any, client_id: str | None, now: Now, effects: Effects) -> str:
        """Makes an id valid; raises RpcError if another client uses it."""
        if client_id is None:
            client_id = f"client-{self._state.rng.getrandbits(64):016x}"
        elif not is_identity(client_id):
            raise RpcError(BAD_CLIENT, "a client id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        known = self._known.get(client_id)
        if known is None:
            self._remember(client_id, KnownClient(line, line.user_id))
        else:
            self._check_owner(known, line)
            if known.line is not line and self._is_used(known, now):
                raise RpcError(BAD_CLIENT, f"{client_id} is in use by another connection")
            known.line = line
        effects.write(PutTaskClient(client_id, line.user_id, of_seconds(now.wall)))
        return client_id

    def disconnect(self, line: Any, client_id: str, effects: Effects) -> None:
        """Invalidates an id; its tasks continue."""
        known = self._known.pop(client_id)
        self._check_owner(known, line)
        effects.write(DropTaskClient(client_id))

    def check(self, line: Any, client_id: str) -> bool:
        """True for a valid id; False if it must be looked up in the store."""
        known = self._known.get(client_id)
        if known is None:
            if not is_identity(client_id):
                raise RpcError(BAD_CLIENT, "a client id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
            return False
        if known.line is not line:
            self._check_owner(known, line)
            if known.line is None:
                known.line = line
        return True

    def learn(self, line: Any, found: TaskClient | None, client_id: str) -> None:
        """Caches a lookup result; raises RpcError if the id is not valid."""
        if client_id in self._known:
            return
        if found is None:
            raise RpcError(BAD_CLIENT, f"unknown client id {client_id}: say client_connect first")
        known = KnownClient(line, found.owner)
        self._check_owner(known, line)
        self._remember(client_id, known)

    def _remember(self, client_id: str, known: KnownClient) -> None:
        self._known[client_id] = known
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _is_used(self, known: KnownClient, now: Now) -> bool:
        return known.line is not None and now.mono - self._adapter.heard(known.line) <= self._state.interval

    def _check_owner(self, known: KnownClient, line: Any) -> None:
        if known.owner and known.owner != line.user_id:
            raise RpcError(BAD_CLIENT, "this client id belongs to another key")
