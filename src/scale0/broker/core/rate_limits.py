"""Rate limits and the ban list for senders of bad messages and floods.

A sender whose bad messages exceed the limit is an *error client*: it is ignored for a while, and leaves the scheduler,
so that no work is handed to a backend whose answers would be ignored.
"""

from __future__ import annotations

from typing import Final

from scale0.broker.core.connections import Connection, Connections, SenderAccount
from scale0.broker.core.members import Members
from scale0.broker.core.state import BrokerState
from scale0.history.events.clients import ClientRefused
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal

WINDOW_SECONDS: Final = 1.0
"""The window of `max_control_per_second` and `max_requests_per_second`."""
OFFER_SECONDS: Final = 10.0
"""The window of `max_service_changes_per_second`: a fleet of 100 backends with 1,000 services each may join at once."""
KEY_SHARE: Final = 2.0
"""How much negotiation and heartbeats one key may send, relative to the heartbeats of all clients together."""


class RateLimits:
    def __init__(self, state: BrokerState, connections: Connections, members: Members) -> None:
        self._state = state
        self._connections = connections
        self._members = members

    def reject(self, connection: Connection, code: int, message: str, now: Now, effects: Effects) -> None:
        """Count one bad message; at the limit its sender is ignored for a while and removed from the members."""
        if connection.account.banned_until is not None or not self._connections.count_error(connection, now):
            return
        self._state.count("error_clients")
        effects.record(ClientRefused(identity=connection.name, code=code, data={"reason": message[:200]}))
        # With CURVE the key is ignored, on every connection.
        ignored = self._connections.of_users((connection.sender,)) if connection.sender else (connection,)
        for one in ignored:
            if one.member is not None:
                self._members.leave(one.member, now, effects)

    def allows_control(self, connection: Connection, now: Now, effects: Effects, count: int = 1) -> bool:
        """Count a message of negotiation or heartbeat, a long one several times; False: the connection is over its
        limit, a bad message."""
        limits = self._state.limits
        if connection.control.add(count, WINDOW_SECONDS, now.mono) > limits.max_control_per_second:
            self._state.count("messages_flooded")
            self.reject(connection, codes.TOO_MANY, "too many control messages in one second", now, effects)
            return False
        if not connection.sender:
            return True
        # All connections of a key together. A fleet that reconnects at once is not penalised: what exceeds the limit is
        # dropped, and its sender asks again.
        most = max(limits.max_control_per_second, KEY_SHARE * limits.max_heartbeats_per_second)
        if connection.account.control.add(count, WINDOW_SECONDS, now.mono) <= most:
            return True
        self._state.count("messages_flooded")
        return False

    def check_changes(self, account: SenderAccount, count: int, now: Now) -> None:
        """A backend adds, changes or withdraws so many services; raises a refusal if its key is over its limit. That is
        not penalised."""
        most = self._state.limits.max_service_changes_per_second
        if account.offers.spend(count, int(OFFER_SECONDS * most), OFFER_SECONDS, now.mono):
            return
        self._state.count("offers_flooded")
        limit = f"{most} a second over {OFFER_SECONDS:g} s (max_service_changes_per_second)"
        raise Refusal(
            codes.TOO_MANY,
            f"the backends of this key add, change or withdraw more services than {limit}: try again later",
        )

    def allows_requests(self, account: SenderAccount, count: int, now: Now) -> bool:
        """Count several requests if all of them are allowed; otherwise count none, and look at each."""
        most = self._state.limits.max_requests_per_second
        return account.requests.spend_each(count, most, WINDOW_SECONDS, now.mono)

    def allows_request(self, account: SenderAccount, now: Now, share: int = 1) -> bool:
        """Count one request; False: the key is over `share` times its limit. That is not penalised: the client may
        retry.

        A request that reads many rows costs more: see `SenderAccount.charge_rows`."""
        if account.requests.spend(1, share * self._state.limits.max_requests_per_second, WINDOW_SECONDS, now.mono):
            return True
        self._state.count("requests_flooded")
        return False
