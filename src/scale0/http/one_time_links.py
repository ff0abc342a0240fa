"""One-time links: a way in for a browser that has no password.

Lives here: how one is made. Never here: how it is used up (`routes/session`). Invariant: its secret stands behind the
`#`, which browsers send to nobody.
"""

from __future__ import annotations

import secrets
from typing import Final

from scale0.broker.admin.access import ADMIN
from scale0.http.network import BrokerClient

LINK_SECONDS: Final = 600.0
"""How long a link waits for somebody."""
LINK_PREFIX: Final = "once-"
"""Of the name of its token, and of the session that it gives."""


async def first_link(network: BrokerClient, url: str) -> str:
    """A link for an administrator. Raises `Problem` if the broker gives none now."""
    name = f"{LINK_PREFIX}{secrets.token_hex(4)}"
    made = await network.local("issue_token", name=name, role=ADMIN, ttl=LINK_SECONDS)
    return f"{url}/#/login?once={made['token']}"
