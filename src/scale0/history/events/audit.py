"""The audit chain: each audit event of a source contains the hash of the audit event before it.

Invariant: the hash of an event covers all its columns, the hash that it contains included. An event that was changed,
removed or inserted therefore differs from what the next one says; the hash of the newest event is stored with it, and
so is the hash of the last one that the retention removed.
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
    missing; all 0 if no event is left."""

    boot: int
    seq: int
    time: int
    reason: str


COMPLETE: Final = "complete"
RECORDED: Final = "recorded"
UNKNOWN: Final = "unknown"
"""The beginning of a chain: its first event is there; it is where the store has recorded it; or no store that was read
has recorded it."""


class AuditStart(NamedTuple):
    """Where the audit events of a source begin, as its store has it."""

    after: str
    """The hash of the last audit event that the retention removed; blank: it has removed none."""
    source: str

    def encode(self) -> bytes:
        return f"{self.after} {self.source}".encode()


def decode_start(value: bytes) -> AuditStart:
    after, _, source = value.decode().partition(" ")
    return AuditStart(after, source)


class AuditChain:
    """Checks the audit events of one source, in their order."""

    def __init__(self) -> None:
        self.rows = 0
        self.unchained = 0
        """Events of versions before the chain."""
        self.first_seq = 0
        self.head = ""
        self.previous = ""
        """The hash that the first event contains; blank: it is the first of its chain."""
        self.beginning = ""
        """COMPLETE, RECORDED or UNKNOWN, after `judge_beginning`."""
        self.broken: ChainBreak | None = None
        self._hashes: set[str] = set()
        self._first = self._last = (0, 0, 0)

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
            self.first_seq, self.previous = event["seq"], previous or ""
            self._first = event["boot"], event["seq"], event["time"]
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

    @property
    def starts(self) -> bool:
        """True if the first event of the chain is there."""
        return self.rows > 0 and not self.previous

    def judge_beginning(self, recorded: set[str], head: str) -> None:
        """`recorded`: the hashes of the event before the beginning, as the store has them; empty: the store says
        nothing. `head`: the hash of the newest event."""
        if self.broken is not None:
            return
        if not self.rows and head and (not recorded or head in recorded):
            # Nothing was recorded since the retention removed the last event.
            self.head = head
            self._hashes.add(head)
        if self.starts:
            self.beginning = COMPLETE
        elif not self.head:
            return
        elif self.previous in recorded or recorded & self._hashes:
            # What the retention is about to remove may still be there.
            self.beginning = RECORDED
        elif not recorded:
            self.beginning = UNKNOWN
        else:
            self.broken = ChainBreak(*self._first, "events before it were removed, and not by the retention")

    def holds(self, head: str) -> bool:
        """True unless the event with this hash, the newest when it was stored, is missing."""
        return not head or head in self._hashes

    def cut_off(self) -> None:
        """The event whose hash the store has is missing."""
        reason = "events after it were removed, or it was changed" if self.rows else "all events were removed"
        self.broken = ChainBreak(*self._last, reason)
