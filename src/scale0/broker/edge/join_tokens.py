"""Join tokens on the broker's side: tokens for new clients, and this broker as a new peer of another (PROTOCOL 11)."""

from __future__ import annotations

import time
from typing import Final

from scale0.broker.core.permissions import NO_RULES, KeyRules
from scale0.broker.edge.key_folder import KeyFolder, folder_of
from scale0.transport.core.sockets import PEER
from scale0.transport.edge.curve_certificates import CurveCertificate
from scale0.transport.edge.joining import JoinToken, enrol

LOCAL_TOKEN_SECONDS: Final = 60.0
"""The life of a token that a broker makes for itself at another broker of this machine."""


def new_join_token(
    folder: KeyFolder, role: str, name: str, seconds: float, rules: KeyRules = NO_RULES, key_seconds: float = 0.0
) -> JoinToken:
    """Create a token that admits one client, within this time, with these permissions, for `key_seconds`."""
    expires = int(time.time() + seconds)
    pair = folder.new_token(role, name, expires, rules, key_seconds)
    return JoinToken(role, folder.server().public, pair.secret, expires)


def join_local_peer(endpoint: str, other: KeyFolder, identity: str, folder: KeyFolder) -> None:
    """Make this broker a peer of one that the same user runs on this machine, without a token from the user."""
    if other.path != folder.path.absolute() and not knows_peer(folder, other.server().public):
        join_peer(endpoint, new_join_token(other, PEER, identity, LOCAL_TOKEN_SECONDS), identity, folder)


def knows_peer(folder: KeyFolder, public: str) -> bool:
    peers = folder.path / folder_of(PEER)
    return any(f'"{public}"' in path.read_text() for path in peers.glob("*.key"))


def join_peer(endpoint: str, token: JoinToken, identity: str, folder: KeyFolder) -> bool:
    """Make this broker a peer of another: each stores the other's key. False: they know each other already."""
    folder.init()
    if knows_peer(folder, token.server_key):
        return False
    enrolled = enrol(endpoint, token, identity, folder.server().public)
    name = enrolled.identity or f"peer-{int(time.time())}"
    folder.store(
        token.role, name, CurveCertificate(public=token.server_key, metadata={"name": name, "endpoint": endpoint})
    )
    return True
