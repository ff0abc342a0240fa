"""The audit chain: each audit event of a source contains the hash of the audit event before it.

Invariant: the hash of an event covers all its columns, the hash that it contains included. An event that was changed,
removed or inserted therefore differs from what the next one says; the hash of the newest event is stored with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

AUDIT_KINDS: Final = (
    "management.commanded",
    "config.changed",
    "config.conflict",
    "broker.state_changed",
    "task.reopened",
    "key.changed",
)
"""The kinds of the audit log, all of them chained."""

PREVIOUS: Final = "previous_hash"
"""The key in `data`; blank in the first event of a chain. Events of versions before the chain have none."""

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def link(data: str | None, head: str) -> str:
    """The JSON text of `data` with the hash of the previous event."""
    rest = "}" if data in (None, "{}") else f",{data[1:]}"
    return f'{{"{PREVIOUS}":"{head}"{rest}'


def hash_of(event: Mapping[str, Any]) -> str:
    """SHA-256 of an event as `journal.read` returns it. Columns without a value do not count: new ones may follow."""
    filled = {name: value for name, value in event.items() if value is not None}
    return hashlib.sha256(_ENCODER.encode(filled)).hexdigest()


def previous_of(event: Mapping[str, Any]) -> str | None:
    """The hash that an event contains; None if it has none."""
    try:
        data = msgspec.json.decode(event["data"] or "{}")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    previous = data.get(PREVIOUS) if isinstance(data, dict) else None
    return previous if isinstance(previous, str) else None


class ChainBreak(NamedTuple):
    """The first event of a source that does not follow from the one before it, or the last one before an end that is
    missing."""

    boot: int
    seq: int
    time: int
    reason: str


class AuditChain:
    """Checks the audit events of one source, in their order."""

    def __init__(self) -> None:
        self.rows = 0
        self.unchained = 0
        """Events of versions before the chain."""
        self.first_seq = 0
        self.head = ""
        self.starts = False
        """The first event of the chain is there; otherwise it is beyond the retention."""
        self.broken: ChainBreak | None = None
        self._hashes: set[str] = set()
        self._last = (0, 0, 0)

    def add(self, event: Mapping[str, Any]) -> None:
        if self.broken is not None:
            return
        previous = previous_of(event)
        if previous is None and not self._hashes:
            self.unchained += 1
            return
        reason = self._reason(previous)
        if reason:
            self.broken = ChainBreak(event["boot"], event["seq"], event["time"], reason)
            return
        if not self._hashes:
            self.first_seq, self.starts = event["seq"], previous == ""
        self.rows += 1
        self._last = event["boot"], event["seq"], event["time"]
        self.head = hash_of(event)
        self._hashes.add(self.head)

    def _reason(self, previous: str | None) -> str:
        if not self._hashes or previous == self.head:
            return ""
        if previous is None:
            return "it contains no hash: it was changed or inserted"
        if not previous:
            return "the chain begins again: the store was replaced, or events before it were removed"
        if previous in self._hashes:
            return "it follows an older event: a backup was restored, or an event before it was inserted"
        return "the event before it was changed or removed"

    def holds(self, head: str) -> bool:
        """True unless the event with this hash, the newest when it was stored, is missing."""
        return not head or head in self._hashes

    def cut_off(self) -> None:
        """The event whose hash the store has is missing."""
        self.broken = ChainBreak(*self._last, "events after it were removed, or it was changed")
