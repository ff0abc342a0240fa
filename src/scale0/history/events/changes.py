"""Events of those who change the network: configuration and management.

Lives here: the classes. Never here: a password, a token or a document's text. Invariant: a version is exact in `data`
even where the `code` column is too small for it, since other brokers choose versions.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from scale0.history.events.columns import EventRow, clip_int


class ConfigChanged(msgspec.Struct, frozen=True):
    """Another network document is the current one."""

    kind: ClassVar[str] = "config.changed"
    version: int
    hash: str
    parent: str
    """The hash of the document that it was made from."""
    changed_by: str
    """An admin here, or the broker that it came from."""

    def row(self) -> EventRow:
        data = {"version": self.version, "hash": self.hash, "parent": self.parent}
        return EventRow(kind=self.kind, identity=self.changed_by, code=clip_int(self.version), data=data)


class ConfigConflict(msgspec.Struct, frozen=True):
    """Two documents where one was expected: neither descends from the other."""

    kind: ClassVar[str] = "config.conflict"
    version: int
    hash: str
    """Of the one that is current here now."""
    other_hash: str
    identity: str
    """Who has, or had, the other."""

    def row(self) -> EventRow:
        data = {"version": self.version, "hash": self.hash, "other_hash": self.other_hash}
        return EventRow(kind=self.kind, identity=self.identity, code=clip_int(self.version), data=data)


class ManagementCommanded(msgspec.Struct, frozen=True):
    """An admin's command was answered; or taken, if it takes its time. Should that fail, it is another event."""

    kind: ClassVar[str] = "management.commanded"
    identity: str
    """The `auth_id`."""
    command: str
    code: int
    """The answer's."""
    origin: str = ""
    """Which door and connection it came from."""
    before: Any = None
    after: Any = None
    """What it changed, in plain values."""

    def row(self) -> EventRow:
        data = {"command": self.command, "origin": self.origin, "before": self.before, "after": self.after}
        return EventRow(kind=self.kind, identity=self.identity, code=clip_int(self.code), data=data)


EVENTS: Final = (ConfigChanged, ConfigConflict, ManagementCommanded)
