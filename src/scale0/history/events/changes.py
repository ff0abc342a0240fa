"""Events of configuration changes and admin commands; they never contain a password, a token or the text of a document.

`data` has the exact version, because other brokers choose versions that may not fit the `code` column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from scale0.history.events.columns import Event, EventRow, clip_int


class ConfigChanged(Event, frozen=True):
    """Another network document is current."""

    kind: ClassVar[str] = "config.changed"
    targets: ClassVar[Mapping[str, str]] = {"changed_by": "identity"}
    version: int
    hash: str
    parent: str
    """The hash of the document that it was made from."""
    changed_by: str
    """An admin here, or the broker that sent it."""

    def row(self) -> EventRow:
        return msgspec.structs.replace(super().row(), code=clip_int(self.version))


class ConfigConflict(Event, frozen=True):
    """Two documents conflict: neither descends from the other."""

    kind: ClassVar[str] = "config.conflict"
    version: int
    hash: str
    """The hash of the current document here."""
    other_hash: str
    identity: str
    """The broker that has, or had, the other one."""

    def row(self) -> EventRow:
        return msgspec.structs.replace(super().row(), code=clip_int(self.version))


class ManagementCommanded(Event, frozen=True):
    """An admin command was answered, or accepted if it runs longer; a later failure is another event."""

    kind: ClassVar[str] = "management.commanded"
    identity: str
    """The `auth_id`."""
    command: str
    code: int
    """The code of the answer."""
    origin: str = ""
    """The socket and connection that it came from."""
    before: Any = None
    after: Any = None
    """The values that it changed."""


class KeyChanged(Event, frozen=True):
    """A key that the broker admits was stored, replaced by another of the same name, given other permissions or another
    expiry, removed, or has expired."""

    kind: ClassVar[str] = "key.changed"
    identity: str
    """The user: `role/name`, or `token:role/id` of a key that may only enrol; `server`: the broker's own key."""
    state: str
    """stored, replaced, permitted, dated, removed or expired; of the broker's own key: rotating (the previous one is
    accepted as well), rotated (it no longer is) or replaced."""
    public_key: str
    """The new one, or the one that was removed."""
    allow: tuple[str, ...] = ()
    """Its permissions: the rules to allow, and to deny."""
    deny: tuple[str, ...] = ()
    expires: float = 0.0
    """When it expires, in seconds since the epoch; 0: never."""
