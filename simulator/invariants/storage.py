"""Invariants of stored data: everything that was acknowledged about the configuration and the journal is on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from scale0.history.events.journal import JournalRow, read
from scale0.kernel.effects import Message
from scale0.storage.interface import OpenedStore
from scale0.storage.memory.store import MemoryStore
from scale0.storage.rows import ReadDocument
from simulator.network.broker import BrokerNode
from simulator.network.client_connection import SimLink
from simulator.promises import broken

BEGINS = ("client.joined",)
ENDS = ("client.left", "client.lost", "client.replaced")
GOES_ON = ("client.changed",)


class Reader(Protocol):
    """Receives the events of a journal."""

    def event(self, event: dict[str, Any]) -> None: ...


class StoreChecks:
    def __init__(self) -> None:
        self._acknowledged = 0
        """The newest version that was acknowledged to an administrator."""
        self._published = 0
        """The newest version that was sent to any client."""
        self._versions: dict[SimLink, int] = {}

    def began(self, opened: OpenedStore, with_disk: bool) -> None:
        """Checks that the disk of a starting broker has everything that the previous process acknowledged."""
        if not with_disk:
            self._acknowledged = self._published = 0
            return
        version = opened.document.version if opened.document else 0
        if version < self._acknowledged:
            raise broken("stored-then-sent", f"version {self._acknowledged} was acknowledged, the disk has {version}")
        if version < self._published:
            raise broken("stored-then-sent", f"version {self._published} was sent to clients, the disk has {version}")

    def sent(self, node: BrokerNode, messages: Sequence[Message]) -> None:
        """Checks what the broker sends about configurations."""
        for message in messages:
            if message[0] == "MANAGEMENTREP" and isinstance(message, tuple) and message[1].code == 200:
                self._acknowledge(node, message)
            elif message[0] in ("CONFIG", "CONFIGACK") and isinstance(message, tuple):
                version = message[1].config_version
                if version <= node.broker.documents.version:
                    self._published = max(self._published, version)

    def _acknowledge(self, node: BrokerNode, message: tuple[Any, ...]) -> None:
        version = msgspec.json.decode(message[2]).get("version")
        if isinstance(version, int):
            if node.disk.store.read(ReadDocument(version)) is None:
                raise broken("stored-then-sent", f"version {version} was acknowledged before it was stored")
            self._acknowledged = max(self._acknowledged, version)

    def changed(self, link: SimLink) -> None:
        """Checks a client's session after its turn."""
        connection: Any = getattr(link.session, "connection", None)
        version = connection.config_version if connection is not None else None
        if version is not None:
            before = self._versions.get(link, 0)
            if version < before:
                raise broken("versions-forward", f"{link.name} went back from version {before} to {version}")
            self._versions[link] = version

    def journal(self, store: MemoryStore, reader: Reader | None) -> None:
        """Checks the whole journal on a disk; `reader` gets every event."""
        seq, boot, time_us = 0, 0, 0
        rows: Any = store.snapshot().journal
        open_sessions: set[tuple[str, str]] = set()
        for row in rows:
            if seq and row.first_seq != seq + 1:
                raise broken("journal", f"event {row.first_seq} follows {seq}")
            if row.boot < boot or (row.boot == boot and row.time_us < time_us):
                raise broken("journal", f"event {row.first_seq} is before its predecessor")
            if row.boot != boot:
                open_sessions = set()
            seq, boot, time_us = row.last_seq, row.boot, row.time_us
            self._sessions(row, open_sessions, reader)

    def _sessions(self, row: JournalRow, open_sessions: set[tuple[str, str]], reader: Reader | None) -> None:
        for event in read(row.body):
            kind = event["kind"]
            if reader is not None:
                reader.event(event)
            if kind not in BEGINS and kind not in ENDS and kind not in GOES_ON:
                continue
            session = (msgspec.json.decode(event["data"])["role"], event["identity"])
            if (kind in BEGINS) == (session in open_sessions):
                raise broken("sessions-pair-up", f"{kind} of {session} at event {event['seq']} is out of order")
            if kind in BEGINS:
                open_sessions.add(session)
            elif kind in ENDS:
                open_sessions.discard(session)
