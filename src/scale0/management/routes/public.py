"""What needs no login: whether the server lives, what the API is, and the console's pages.

Lives here: answers that are the same for everybody. Never here: anything of the network.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler

from scale0.management.access.guard import ROLE


@get("/healthz", opt={ROLE: None}, summary="Whether this server lives")
async def healthz() -> dict[str, Any]:
    """The server answers; whether the broker does is in the overview."""
    return {"status": "ok"}


HANDLERS: Final[list[HTTPRouteHandler]] = [healthz]
