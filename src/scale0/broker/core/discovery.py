"""Discovery: the reserved services that the broker answers itself (PROTOCOL 3): `scale0.services`, `scale0.clients`,
`scale0.brokers` and `scale0.ping`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scale0.broker.admin.views import MAX_PAGE_ROWS, Views
from scale0.broker.core.connections import Connection
from scale0.broker.core.permission_check import PermissionCheck
from scale0.broker.core.permissions import DISCOVER, Granted
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import MAX_IDENTITY_CHARS
from scale0.transport.core import messages
from scale0.transport.core.sockets import ROLES


class Paging(msgspec.Struct, frozen=True):
    limit: int = MAX_PAGE_ROWS
    after: str | None = None


PING: Final = "scale0.ping"
SERVICES: Final = "scale0.services"
CLIENTS: Final = "scale0.clients"
PAGE_SECONDS: Final = 1.0
"""How long a page is used again."""
MAX_PAGES: Final = 20
"""Pages that are built for one sender in that time: each has up to 1,000 rows, and any client may request them."""
MAX_KEPT: Final = 1_000
MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Pages that are kept, and their bytes."""
MAX_CLIENT_KEY_CHARS: Final = MAX_IDENTITY_CHARS + 1 + max(map(len, ROLES))
"""The longest position in a list of clients: identity and role."""

PageKey = tuple[str, int, str | None, Granted | None]
"""Service, limit, after, and the rules that restrict the list."""


class KeptPage(NamedTuple):
    built_at: float
    changes: int
    """`Views.changes` of that moment."""
    page: bytes


_paging: Final = msgspec.json.Decoder(Paging)


class Discovery:
    def __init__(self, views: Views, permission_check: PermissionCheck, max_service_bytes: int) -> None:
        self._permission_check = permission_check
        self._views = views
        self._max_after = max(max_service_bytes, MAX_CLIENT_KEY_CHARS)
        self._kept: dict[PageKey, KeptPage] = {}
        """The oldest first."""
        self._kept_bytes = 0
        self._table: dict[str, Callable[[Paging, Now], Any]] = {
            SERVICES: lambda paging, now: views.services(paging.limit, paging.after),
            CLIENTS: lambda paging, now: views.clients(now, paging.limit, paging.after),
            "scale0.brokers": lambda paging, now: views.brokers(now),
            "scale0.ping": lambda paging, now: views.ping(now),
        }

    def answer(
        self, connection: Connection, request: messages.Request, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """Reply with one JSON body, or with ERROR 404 for an unknown reserved name."""
        look = self._table.get(request.service)
        if look is None:
            message = f"{request.service[:255]} is a reserved name that this broker does not implement"
            effects.send(connection, ("ERROR", {"id": request.id, "code": codes.NO_SUCH_SERVICE, "message": message}))
            return
        if request.service == CLIENTS:
            reason = self._permission_check.why_not(connection, DISCOVER, CLIENTS, now, effects)
            if reason:
                effects.send(connection, ("ERROR", {"id": request.id, "code": codes.NOT_ALLOWED, "message": reason}))
                return
        paging = Paging()
        if bodies and bodies[0]:
            try:
                paging = _paging.decode(bodies[0])
            except (msgspec.DecodeError, RecursionError, ValueError):
                # Callers may pass any arguments to `scale0.ping` and the like; they are ignored.
                paging = Paging()
        if request.service == PING:
            body: bytes | None = msgspec.json.encode(look(paging, now))
        elif paging.after is not None and len(paging.after) > self._max_after:
            message = f"after is longer than {self._max_after} characters: it must be the value of next"
            effects.send(connection, ("ERROR", {"id": request.id, "code": codes.MALFORMED, "message": message}))
            return
        else:
            body = self._page(connection, request.service, paging, now)
        if body is None:
            message = f"more than {MAX_PAGES} different lists were requested in a second: try again later"
            effects.send(connection, ("ERROR", {"id": request.id, "code": codes.TOO_MANY, "message": message}))
        else:
            effects.send(connection, ("REPLY", {"id": request.id, "service": request.service}, body))

    def _page(self, connection: Connection, service: str, paging: Paging, now: Now) -> bytes | None:
        """A page of at most PAGE_SECONDS of age, without a member's change since; None if too many had to be built for
        its sender."""
        self._drop_old(now)
        rules = self._permission_check.restriction(connection, DISCOVER) if service == SERVICES else None
        limit = max(1, min(paging.limit, MAX_PAGE_ROWS))
        key = (service, limit, paging.after, rules)
        kept = self._kept.get(key)
        if kept is not None and kept.changes == self._views.changes:
            return kept.page
        if not connection.account.pages.allows(1, MAX_PAGES, PAGE_SECONDS, now.mono):
            return None
        listed = self._table[service](Paging(limit, paging.after), now)
        connection.account.charge_rows(listed=len(listed["items"]))
        if rules is not None:
            permits = self._permission_check.permits
            listed["items"] = [row for row in listed["items"] if permits(connection, DISCOVER, row["service"])]
        page = msgspec.json.encode(listed)
        self._keep(key, KeptPage(now.mono, self._views.changes, page))
        return page

    def _keep(self, key: PageKey, kept: KeptPage) -> None:
        if key in self._kept:
            self._drop(key)
        self._kept[key] = kept
        self._kept_bytes += len(kept.page)
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop_old(self, now: Now) -> None:
        while self._kept:
            oldest = next(iter(self._kept))
            if now.mono - self._kept[oldest].built_at < PAGE_SECONDS:
                break
            self._drop(oldest)

    def _drop(self, key: PageKey) -> None:
        self._kept_bytes -= len(self._kept.pop(key).page)
