"""Discovery: the reserved services that the broker answers itself (PROTOCOL 3): `scale0.services`, `scale0.clients`,
`scale0.brokers` and `scale0.ping`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from scale0.broker.admin.views import MAX_PAGE_ROWS, Views
from scale0.broker.core.connections import Connection
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.transport.core import messages


class Paging(msgspec.Struct, frozen=True):
    limit: int = MAX_PAGE_ROWS
    after: str | None = None


PING: Final = "scale0.ping"
MAX_PAGES: Final = 20
"""Distinct pages built in one turn: each has up to 1,000 rows, and any client may request them."""

_paging: Final = msgspec.json.Decoder(Paging)


class Discovery:
    def __init__(self, views: Views) -> None:
        self._made: dict[tuple[str, int, str | None], bytes] = {}
        self._made_at = 0.0
        self._table: dict[str, Callable[[Paging, Now], Any]] = {
            "scale0.services": lambda paging, now: views.services(paging.limit, paging.after),
            "scale0.clients": lambda paging, now: views.clients(now, paging.limit, paging.after),
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
        paging = Paging()
        if bodies and bodies[0]:
            try:
                paging = _paging.decode(bodies[0])
            except (msgspec.DecodeError, RecursionError, ValueError):
                # Callers may pass any arguments to `scale0.ping` and the like; they are ignored.
                paging = Paging()
        if request.service == PING:
            body: bytes | None = msgspec.json.encode(look(paging, now))
        else:
            body = self._page(request.service, paging, now)
        if body is None:
            message = "too many different listings were requested at once: try again"
            effects.send(connection, ("ERROR", {"id": request.id, "code": codes.TOO_MANY, "message": message}))
        else:
            effects.send(connection, ("REPLY", {"id": request.id, "service": request.service}, body))

    def _page(self, service: str, paging: Paging, now: Now) -> bytes | None:
        """Return a page, built at most once in a turn; None when too many distinct pages are requested in this turn."""
        if now.mono != self._made_at:
            self._made, self._made_at = {}, now.mono
        key = (service, paging.limit, paging.after)
        page = self._made.get(key)
        if page is None:
            if len(self._made) >= MAX_PAGES:
                return None
            self._made[key] = page = msgspec.json.encode(self._table[service](paging, now))
        return page
