"""Blame: what bad input and floods cost their sender.

Lives here: the one place where a bad message is counted, an error client is made, and a flood is noticed. Never here:
what is bad. Invariant: an error client is a member no more: nobody is handed work whose answers would be ignored.
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

FLOOD_WINDOW_SECONDS: Final = 1.0
"""The window of `max_control_per_second` and `max_requests_per_second`."""
KEY_SHARE: Final = 2.0
"""How much negotiation and heartbeats one key may send, against the heartbeats of all clients together."""


class RateLimits:
    """The account of every connection."""

    __slots__ = ("_connections", "_members", "_state")

    def __init__(self, state: BrokerState, connections: Connections, members: Members) -> None:
        self._state = state
        self._connections = connections
        self._members = members

    def blame(self, connection: Connection, code: int, message: str, now: Now, effects: Effects) -> None:
        """Count one bad message; at the limit its sender is ignored for a while, and leaves."""
        if connection.account.banned_until is not None or not self._connections.blame(connection, now):
            return
        self._state.count("error_clients")
        effects.record(ClientRefused(identity=connection.name, code=code, data={"reason": message[:200]}))
        # With CURVE it is the key that is not heard any more, on whatever connection.
        ignored = self._connections.of_users((connection.user_id,)) if connection.user_id else (connection,)
        for one in ignored:
            if one.member is not None:
                self._members.leave(one.member, now, effects)

    def affords(self, connection: Connection, now: Now, effects: Effects) -> bool:
        """True for one more word of negotiation or heartbeat in this second; more is a flood, and bad input."""
        if now.mono - connection.spent_since > FLOOD_WINDOW_SECONDS:
            connection.spent, connection.spent_since = 0, now.mono
        connection.spent += 1
        if connection.spent <= self._state.limits.max_control_per_second:
            return not connection.user_id or self._key_affords(connection.account, now)
        self._state.count("messages_flooded")
        self.blame(connection, codes.TOO_MANY, "a flood of control messages", now, effects)
        return False

    def may_ask(self, account: SenderAccount, now: Now) -> bool:
        """True for one more request in this second. More is no offence: each is refused, and may be tried again."""
        if now.mono - account.asked_since > FLOOD_WINDOW_SECONDS:
            account.asked, account.asked_since = 0, now.mono
        account.asked += 1
        if account.asked <= self._state.limits.max_requests_per_second:
            return True
        self._state.count("requests_flooded")
        return False

    def _key_affords(self, account: SenderAccount, now: Now) -> bool:
        """The same for all connections of one key together. A fleet that comes back at once is no offence: what is too
        much is dropped, and its sender asks again."""
        if now.mono - account.spent_since > FLOOD_WINDOW_SECONDS:
            account.spent, account.spent_since = 0, now.mono
        account.spent += 1
        limits = self._state.limits
        if account.spent <= max(limits.max_control_per_second, KEY_SHARE * limits.max_heartbeats_per_second):
            return True
        self._state.count("messages_flooded")
        return False
