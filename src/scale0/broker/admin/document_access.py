"""Which parts of the network document each role may change: one table, by the keys at the top of the document.

Invariant: addresses of brokers, their server keys and the groups are for administrators alone, because every client
trusts them. The comparison is between two documents, so that no way to write a path matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scale0.broker.admin.access import ADMIN, OPERATOR
from scale0.config import NetworkDocument
from scale0.config.key_paths import MADE_BY_BROKERS

CHANGEABLE: Final[Mapping[str, frozenset[str]]] = {
    OPERATOR: frozenset(
        {
            "default_heartbeat_interval",
            "heartbeat_liveness",
            "services",
            "checks",
            "handlers",
            "downtimes",
            "silences",
        }
    ),
    ADMIN: frozenset(NetworkDocument.__struct_fields__),
}
"""By role. A key that is not in the row of a role, a new one included, is closed to it."""


def forbidden_keys(role: str, before: NetworkDocument, after: NetworkDocument) -> list[str]:
    """The keys that differ, and that this role may not change."""
    changeable = CHANGEABLE.get(role, frozenset())
    return [
        name
        for name in NetworkDocument.__struct_fields__
        if name not in changeable and name not in MADE_BY_BROKERS and getattr(before, name) != getattr(after, name)
    ]
