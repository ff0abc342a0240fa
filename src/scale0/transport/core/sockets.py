"""The sockets of a broker and its states, by their names in the protocol and the logs."""

from __future__ import annotations

from typing import Final

FRONTEND: Final = "frontend"
BACKEND: Final = "backend"
PEER: Final = "peer"
DIALED: Final = "dialed"
"""This broker's own connections to peers; `peer` is the socket that accepts theirs."""
CONFIG_PUB: Final = "config_pub"
CONFIG_SUB: Final = "config_sub"
"""Subscribes to the `config_pub` sockets of other brokers."""
TASK_PUB: Final = "task_pub"
CLIENT_SOCKETS: Final = (FRONTEND, BACKEND)
PEER_SOCKETS: Final = (PEER, DIALED)

JOINING: Final = "joining"
ACTIVE: Final = "active"
DISABLED: Final = "disabled"
DRAINING: Final = "draining"
STANDBY: Final = "standby"
"""Draining and standby are shown for a broker whose own state is active: it accepts no new clients."""

ROLES: Final = (FRONTEND, BACKEND, PEER)
"""The roles of a key: the socket that it may connect to."""
HELEN: Final = "helen"
"""The role of a token whose key is stored as a backend and as a frontend."""
ROLES_OF_HELEN: Final = (BACKEND, FRONTEND)
