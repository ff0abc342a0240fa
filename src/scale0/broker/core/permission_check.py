"""The permission check of a broker: every request, offer, submission, hand-out and listing of a client passes it.

Invariants: without CURVE everything is permitted, because there is no key to refuse; a refusal is recorded in the
audit, and a flood of refusals as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scale0.broker.core.audit_limit import AuditLimit
from scale0.broker.core.connections import Connection
from scale0.broker.core.permissions import Granted
from scale0.broker.core.state import BrokerState
from scale0.history.events.changes import ManagementCommanded
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

REFUSED: Final = "refused"
"""The command of the event that counts further refusals."""
CONNECT: Final = "connect"
"""The command of the event of a handshake that was refused."""


def refusals_of(user: str, more: int, _subjects: Sequence[str]) -> ManagementCommanded:
    code = codes.NOT_ALLOWED if user else codes.WRONG_CREDENTIALS
    return ManagementCommanded(identity=user, command=REFUSED, code=code, after={"refused": more})


class PermissionCheck:
    def __init__(self, state: BrokerState, refusals: AuditLimit) -> None:
        self._state = state
        self._refusals = refusals

    def refuse_expired(self, user: str, socket: str, now: Now, effects: Effects) -> None:
        """Record that a handshake was refused because its key has expired."""
        self._state.count("keys_expired_refused")
        after = {"reason": "its key has expired"}
        event = ManagementCommanded(identity=user, command=CONNECT, code=codes.NOT_ALLOWED, origin=socket, after=after)
        self._refusals.record(user, event, now, effects)

    def permits(self, connection: Connection, action: str, service: str) -> bool:
        """Whether the key of this connection may do this; nothing is recorded."""
        keys = self._state.keys
        return keys is None or not keys.permissions.why_not(connection.user_id, action, service)

    def restriction(self, connection: Connection, action: str) -> Granted | None:
        """The rules of the key of this connection, if any is about this action."""
        keys = self._state.keys
        return None if keys is None else keys.permissions.restriction(connection.user_id, action)

    def why_not(self, connection: Connection, action: str, service: str, now: Now, effects: Effects) -> str:
        """Why the key of this connection may not do this, for the answer; blank if it may. A refusal is recorded."""
        keys = self._state.keys
        if keys is None:
            return ""
        reason = keys.permissions.why_not(connection.user_id, action, service)
        if reason:
            user = connection.user_id
            self._state.count("permissions_refused")
            event = ManagementCommanded(
                identity=user,
                command=action,
                code=codes.NOT_ALLOWED,
                origin=f"{connection.socket}/{connection.name}",
                after={"service": service[:255]},
            )
            self._refusals.record(user, event, now, effects)
        return reason
