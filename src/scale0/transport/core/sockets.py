"""The sockets of a broker and the states that it can be in, by the names that the protocol and the logs use."""

from __future__ import annotations

from typing import Final

FRONTEND: Final = "frontend"
BACKEND: Final = "backend"
PEER: Final = "peer"
DIALED: Final = "dialed"
"""Where this broker's own connections to peers end; `peer` is where theirs do."""
CONFIG_PUB: Final = "config_pub"
CONFIG_SUB: Final = "config_sub"
"""Where this broker hears what others publish as `config_pub`."""
TASK_PUB: Final = "task_pub"
CLIENT_SOCKETS: Final = (FRONTEND, BACKEND)
PEER_SOCKETS: Final = (PEER, DIALED)

JOINING: Final = "joining"
ACTIVE: Final = "active"
DISABLED: Final = "disabled"
DRAINING: Final = "draining"
STANDBY: Final = "standby"
"""Both are shown of a broker that is active, as far as its own state goes: it serves nobody new."""

ROLES: Final = (FRONTEND, BACKEND, PEER)
"""The roles of a key: the socket that it may connect to."""
