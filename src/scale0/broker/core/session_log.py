"""What the journal knows of the sessions of members: when they began and ended, and what they offered.

A backend may change its services with each READY, and clients may come and go: the events of a sender are therefore
limited by their bytes. Invariants: the journal has at most one open session of a member; what waits is recorded in its
newest state, or not at all if the session ended before; an end is recorded if its beginning was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scale0.history.events.clients import ClientChanged, ClientJoined
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, RecordedEvent

if TYPE_CHECKING:
    from scale0.broker.core.connections import SenderAccount
    from scale0.broker.core.members import Member
    from scale0.broker.core.state import BrokerState

SESSION_BYTES: Final = 4 * 1024 * 1024
"""Of the events of one sender in WINDOW_SECONDS: 10,000 backends with ten services each may join at once."""
WINDOW_SECONDS: Final = 60.0
EVENT_BYTES: Final = 128
"""An event without its services."""
NAME_BYTES: Final = 4
"""A service, beside the characters of its name."""
RETRY_SECONDS: Final = 1.0
"""How often states that wait are recorded."""
RETRY_BYTES: Final = 256 * 1024
"""Of events that waited, in one turn."""

Offer = tuple[tuple[str, ...], int]
"""Services, and slots of all together."""


class SessionLog:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: dict[SenderAccount, dict[Member, None]] = {}
        """By sender: members whose state is not recorded yet, the first one longest."""

    def note(self, member: Member, now: Now, effects: Effects) -> None:
        """A session began, or its offer changed: record this now, or its newest state once there is room."""
        account = member.connection.account
        waiting = self._waiting.get(account)
        if waiting is None:
            if member.recorded == offer_of(member) or self._record(member, account, now, effects):
                return
            self._waiting[account] = waiting = {}
            self._state.timers.add((self._catch_up, account), now.mono + RETRY_SECONDS)
        if member not in waiting:
            waiting[member] = None
            self._state.count("sessions_delayed")

    def end(self, member: Member, kind: Callable[..., RecordedEvent], effects: Effects, **more: Any) -> None:
        """A session ended. The event has the services that were recorded last; the sender owes its bytes."""
        account, recorded = member.connection.account, member.recorded
        member.recorded = None
        self._waiting.get(account, {}).pop(member, None)
        if recorded is None:
            self._state.count("sessions_unrecorded")
            return
        account.sessions.used += bytes_of(recorded)
        services, slots = recorded
        effects.record(kind(identity=member.identity, role=member.role, services=services, slots=slots, **more))

    def _record(self, member: Member, account: SenderAccount, now: Now, effects: Effects) -> bool:
        """Record the current state; False if the sender has no bytes left."""
        services, slots = offer = offer_of(member)
        if not account.sessions.spend(bytes_of(offer), SESSION_BYTES, WINDOW_SECONDS, now.mono):
            return False
        kind = ClientJoined if member.recorded is None else ClientChanged
        member.recorded = offer
        effects.record(kind(identity=member.identity, role=member.role, services=services, slots=slots))
        return True

    def _catch_up(self, account: SenderAccount, now: Now, effects: Effects) -> None:
        waiting, size = self._waiting[account], 0
        while waiting and size < RETRY_BYTES:
            member = next(iter(waiting))
            if member.recorded != offer_of(member):
                if not self._record(member, account, now, effects):
                    break
                size += bytes_of(offer_of(member))
            del waiting[member]
        if waiting:
            self._state.timers.add((self._catch_up, account), now.mono + RETRY_SECONDS)
        else:
            del self._waiting[account]


def offer_of(member: Member) -> Offer:
    return member.services, member.slots


def bytes_of(offer: Offer) -> int:
    return EVENT_BYTES + sum(map(len, offer[0])) + NAME_BYTES * len(offer[0])
