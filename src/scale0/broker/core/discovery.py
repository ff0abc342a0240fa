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
    __slots__ = ("_made", "_made_at", "_table")

    def __init__(self, views: Views) -> None:
        self._made: dict[tuple[str, int, str | None], bytes] = {}
        self._made_at = 0.0
        self._table: dict[str, Callable[[Paging, Now], Any]] = {
            "scale0.services": lambda asked, now: views.services(asked.limit, asked.after),
            "scale0.clients": lambda asked, now: views.clients(now, asked.limit, asked.after),
            "scale0.brokers": lambda asked, now: views.brokers(now),
            "scale0.ping": lambda asked, now: views.ping(now),
        }

    def answer(
        self, connection: Connection, said: messages.Request, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """Reply with one JSON body, or with ERROR 404 for an unknown reserved name."""
        look = self._table.get(said.service)
        if look is None:
            message = f"{said.service[:255]} is reserved, and there is no such thing"
            effects.send(connection, ("ERROR", {"id": said.id, "code": codes.NO_SUCH_SERVICE, "message": message}))
            return
        asked = Paging()
        if bodies and bodies[0]:
            try:
                asked = _paging.decode(bodies[0])
            except (msgspec.DecodeError, RecursionError, ValueError):
                # Callers may pass any arguments to `scale0.ping` and the like; they are ignored.
                asked = Paging()
        if said.service == PING:
            body: bytes | None = msgspec.json.encode(look(asked, now))
        else:
            body = self._page(said.service, asked, now)
        if body is None:
            message = "too many listings are asked for: try again"
            effects.send(connection, ("ERROR", {"id": said.id, "code": codes.TOO_MANY, "message": message}))
        else:
            effects.send(connection, ("REPLY", {"id": said.id, "service": said.service}, body))

    def _page(self, service: str, asked: Paging, now: Now) -> bytes | None:
        """Return a page, built at most once in a turn; None when too many distinct pages are requested in this turn."""
        if now.mono != self._made_at:
            self._made, self._made_at = {}, now.mono
        key = (service, asked.limit, asked.after)
        page = self._made.get(key)
        if page is None:
            if len(self._made) >= MAX_PAGES:
                return None
            self._made[key] = page = msgspec.json.encode(self._table[service](asked, now))
        return page
