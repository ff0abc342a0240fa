"""Rotation of a broker's own key: for a while the broker accepts handshakes for two keys, the current and the previous.

    keys/server/server.key_secret     the current pair: it is published, and tokens contain it
    keys/server/previous.key_secret   the previous pair, while a rotation is under way
    keys/server/usage.json            who still uses the previous one; written by the broker

Invariants: the previous pair is on disk before the current one is replaced, so that the broker accepts every client
after a kill at any step; only `finish` removes a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.broker.edge.key_folder import KeyFolder
from scale0.kernel.edge.secret_files import write_secret
from scale0.storage.data_dir import sync_directory
from scale0.transport.edge.curve_certificates import (
    PUBLIC_ENDING,
    SECRET_ENDING,
    CurveCertificate,
    new_certificate,
    read_pair,
    write_pair,
    write_public,
)

USAGE: Final = "usage.json"
RECENT_SECONDS: Final = 3_600.0
"""The previous key counts as used for so long after its last handshake."""
MAX_USERS: Final = 10_000
"""Users of the previous key that are remembered."""


class ServerPairs(NamedTuple):
    current: CurveCertificate
    previous: CurveCertificate | None = None

    @property
    def all(self) -> tuple[CurveCertificate, ...]:
        return (self.current,) if self.previous is None else (self.current, self.previous)


class PreviousKeyUsage(msgspec.Struct):
    """Who uses the previous key, as the broker last saw it."""

    previous: str = ""
    """The previous public key."""
    wall: float = 0.0
    """When the broker wrote this."""
    connections: dict[str, int] = {}
    """By user: open connections that were made for the previous key."""
    last_used: dict[str, float] = {}
    """By user: the last handshake for the previous key."""
    moved: list[str] = []
    """Users that made a handshake for the current key since the rotation started."""
    unseen: list[str] = []
    """Accepted users that made neither: they do not know the current key, and may have to join again."""

    def recent(self, wall: float) -> list[str]:
        """Users that are connected by the previous key, or were within RECENT_SECONDS."""
        late = (user for user, last in self.last_used.items() if wall - last < RECENT_SECONDS)
        return sorted({*self.connections, *late})


def previous_file(folder: KeyFolder) -> Path:
    return folder.server_file.with_name(f"previous{SECRET_ENDING}")


def read_server_pairs(folder: KeyFolder) -> ServerPairs:
    """The pairs that a broker accepts. Raises ConfigError."""
    current, path = folder.server(), previous_file(folder)
    previous = read_pair(path) if path.exists() else None
    # After a kill between the two writes of `start_rotation` both are the same.
    return ServerPairs(current, previous if previous is not None and previous.public != current.public else None)


def start_rotation(folder: KeyFolder) -> ServerPairs:
    """Make a new pair the current one, and keep the previous one; during a rotation, nothing changes."""
    before = read_server_pairs(folder)
    if before.previous is not None:
        write_public(folder.server_file.with_suffix(PUBLIC_ENDING), before.current)
        return before
    write_pair(previous_file(folder), before.current)
    sync_directory(folder.server_file.parent)
    made = new_certificate(name="server")
    write_pair(folder.server_file, made)
    write_public(folder.server_file.with_suffix(PUBLIC_ENDING), made)
    sync_directory(folder.server_file.parent)
    return ServerPairs(made, before.current)


def finish_rotation(folder: KeyFolder) -> str:
    """Remove the previous pair; return its public key, or a blank text if there is none."""
    pairs = read_server_pairs(folder)
    previous_file(folder).unlink(missing_ok=True)
    sync_directory(folder.server_file.parent)
    return pairs.previous.public if pairs.previous is not None else ""


def read_usage(folder: KeyFolder, previous: str) -> PreviousKeyUsage:
    """What the broker last wrote about this previous key."""
    try:
        found = msgspec.json.decode((folder.server_file.parent / USAGE).read_bytes(), type=PreviousKeyUsage)
    except (OSError, msgspec.DecodeError):
        found = PreviousKeyUsage()
    return found if found.previous == previous else PreviousKeyUsage(previous=previous)


def write_usage(folder: KeyFolder, usage: PreviousKeyUsage) -> None:
    write_secret(folder.server_file.parent / USAGE, msgspec.json.encode(usage).decode())


class UsageOfPrevious:
    """Counts the uses of the previous key, in the broker's loop."""

    def __init__(self, usage: PreviousKeyUsage) -> None:
        self._last_used = dict(usage.last_used)
        self._moved = set(usage.moved)
        self.previous = usage.previous

    def note_moved(self, user: str) -> None:
        if len(self._moved) < MAX_USERS:
            self._moved.add(user)

    def note(self, user: str, wall: float) -> None:
        if user in self._last_used or len(self._last_used) < MAX_USERS:
            self._last_used[user] = wall

    def seen(self, connected: Iterable[Mapping[str, int]], accepted: Iterable[str], wall: float) -> PreviousKeyUsage:
        """The report; `connected`: by user, for each socket, open connections that use the previous key; `accepted`:
        all users."""
        counts: dict[str, int] = {}
        for users in connected:
            for user, count in users.items():
                counts[user] = counts.get(user, 0) + count
        for user in counts:
            self.note(user, wall)
        unseen = sorted(user for user in accepted if user not in self._moved and user not in self._last_used)
        return PreviousKeyUsage(
            self.previous, wall, counts, dict(self._last_used), sorted(self._moved), unseen[:MAX_USERS]
        )
