"""Join tokens on the broker's side: tokens for new clients, and this broker as a new peer of another (PROTOCOL 11)."""

from __future__ import annotations

import time

from scale0.broker.edge.key_folder import KeyFolder, folder_of
from scale0.transport.edge.curve_certificates import CurveCertificate
from scale0.transport.edge.joining import JoinToken, enrol


def new_join_token(folder: KeyFolder, role: str, name: str, seconds: float) -> JoinToken:
    """Create a token that admits one client, within this time."""
    expires = int(time.time() + seconds)
    pair = folder.new_token(role, name, expires)
    return JoinToken(role, folder.server().public, pair.secret, expires)


def join_peer(endpoint: str, token: JoinToken, identity: str, folder: KeyFolder) -> bool:
    """Make this broker a peer of another: each stores the other's key. False: they know each other already."""
    folder.init()
    peers = folder.path / folder_of(token.role)
    if any(f'"{token.server_key}"' in path.read_text() for path in peers.glob("*.key")):
        return False
    enrolled = enrol(endpoint, token, identity, folder.server().public)
    name = enrolled.identity or f"peer-{int(time.time())}"
    folder.store(
        token.role, name, CurveCertificate(public=token.server_key, metadata={"name": name, "endpoint": endpoint})
    )
    return True
