"""The memory of what members offer and report, by key: the services of a backend with the records that the broker keeps
for each, the services that a frontend names, and the statuses of task nodes.

Invariants: what a member needs is charged to the account of its connection, and moves with the member to another one;
what was charged is released when the member leaves. An offer beyond a limit is refused before anything is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from scale0.kernel import codes
from scale0.kernel.errors import Refusal

if TYPE_CHECKING:
    from scale0.broker.core.connections import SenderAccount
    from scale0.broker.core.members import Member
    from scale0.kernel.limits import Limits

SERVICE_BYTES: Final = 1_500
"""A service of a backend that no other offers, beside the characters of its name: measured. A service that many offer
needs about a third of it for each."""
NAME_BYTES: Final = 64
"""A service that a frontend names."""


def cost_of_services(names: Collection[str], each: int = SERVICE_BYTES) -> int:
    return sum(map(len, names)) + each * len(names)


class OfferMemory:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.used = 0
        """What all members together need."""

    def check(self, account: SenderAccount, member: Member | None, services: int, status: int) -> None:
        """Raises a refusal if this member may not need so many bytes for its services and its status."""
        before = 0
        if member is not None and member.payer is account:
            before = member.service_bytes + member.status_bytes
        more = services + status - before
        if more <= 0:
            return
        total = self._limits.max_offer_bytes
        key_most = self._limits.max_key_offer_bytes or (total + 1) // 2
        for size, most, limit, whose in (
            (account.offer_bytes + more, key_most, "max_key_offer_bytes", "services and statuses of one key"),
            (self.used + more, total, "max_offer_bytes", "services and statuses of all clients together"),
        ):
            if size > most:
                raise Refusal(
                    codes.TOO_MANY,
                    f"{whose} may have {most} bytes ({limit}): offer fewer services, or raise {limit}",
                )

    def charge(self, member: Member, services: int, status: int) -> None:
        """A member needs so many bytes now; they are those of its connection's account."""
        self.release(member)
        account = member.connection.account
        member.payer, member.service_bytes, member.status_bytes = account, services, status
        account.offer_bytes += services + status
        self.used += services + status

    def release(self, member: Member) -> None:
        size = member.service_bytes + member.status_bytes
        if member.payer is not None and size:
            member.payer.offer_bytes -= size
            self.used -= size
        member.payer, member.service_bytes, member.status_bytes = None, 0, 0
