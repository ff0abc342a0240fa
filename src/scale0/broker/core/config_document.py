"""The network document that this broker holds, and each client's part of it.

Lives here: version, hash, exact bytes, the answer to "is mine right?", and telling everybody after a change. Never
here: who may change it (management), or how it spreads between brokers. Invariant: the version that clients are told
never goes down while the process lives, and what was published is what is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from scale0.broker.core.members import Member
from scale0.broker.core.state import BrokerState
from scale0.config import ClientConfig, NetworkDocument, client_config, digest, document_bytes, format_named, render
from scale0.config.network_documents import HELEN_SERVICE
from scale0.history.events.changes import ConfigChanged, ConfigConflict
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.rows import PutDocument
from scale0.transport.core import messages
from scale0.transport.core.sockets import CONFIG_PUB

BEACON_SECONDS: Final = 1.0
"""How often the version is published for those who missed a change."""
PUSH_CHUNK: Final = 500
"""Clients told of a change in one turn: a change must not stall the others' requests."""


class ConfigDocument:
    """The current document, and who still has to hear of it."""

    __slots__ = ("_pending", "_state", "body", "document", "hash", "on_taken", "shared")

    def __init__(self, state: BrokerState, document: NetworkDocument) -> None:
        self._state = state
        self._pending: deque[tuple[Member, bool]] = deque()
        self.on_taken: Callable[[Now, Effects], None] = lambda *_: None
        """Told that there is another one; other brokers shall not wait for the next heartbeat."""
        self._hold(document, document_bytes(document))

    @property
    def version(self) -> int:
        """Of the current document."""
        return self.document.version

    def start(self, now: Now, effects: Effects) -> None:
        """Begin with the beacon."""
        self._beacon(None, now, effects)

    def answer(self, member: Member, asked: messages.CheckConfig, now: Now, effects: Effects) -> None:
        """CHECKCONFIG: CONFIGACK or CONFIG."""
        version, hash_ = asked.version, asked.config_hash
        member.config_type = format_named(asked.config_type)
        if version is not None and version > self.version:
            # A stale broker downgrades nobody.
            self._state.count("clients_ahead")
            self._ack(member, version, hash_ or "", effects)
        elif version == self.version and (hash_ is None or hash_ == self.hash):
            self._ack(member, self.version, self.hash, effects)
        else:
            if version == self.version:
                effects.record(
                    ConfigConflict(
                        version=self.version, hash=self.hash, other_hash=(hash_ or "")[:64], identity=member.identity
                    )
                )
            self.give(member, effects)

    def give(self, member: Member, effects: Effects) -> None:
        """CONFIG: the whole part of one client. A promise: nobody uses a version that a crash could take back."""
        member.config_version = self.version
        said = messages.Config(
            identity=member.identity,
            config_type=member.config_type,
            config_version=self.version,
            config_hash=self.hash,
            owner=self._owner,
        )
        effects.promise(member.connection, ("CONFIG", said, render(self._part(member), member.config_type)))

    def change(
        self, document: NetworkDocument, author: str, members: Iterable[Member], now: Now, effects: Effects
    ) -> None:
        """Make a document of our own the current one."""
        self.take(document, document_bytes(document), author, members, now, effects)

    def take(
        self, document: NetworkDocument, body: bytes, author: str, members: Iterable[Member], now: Now, effects: Effects
    ) -> None:
        """Make another document the current one, in exactly these bytes: store, publish, tell."""
        before = self.shared
        self._hold(document, body)
        effects.write(self.row(author, now))
        effects.record(ConfigChanged(version=self.version, hash=self.hash, parent=document.parent, changed_by=author))
        effects.publish(CONFIG_PUB, [b"config", self.version.to_bytes(8, "big"), self.hash.encode(), body])
        if not self._pending:
            self._state.timers.add((self._push, None), now.mono)
        for member in members:
            which = HELEN_SERVICE in member.services
            self._pending.append((member, before[which] != self.shared[which]))
        self.on_taken(now, effects)

    def row(self, author: str, now: Now) -> PutDocument:
        """The current document as it is stored."""
        return PutDocument(
            version=self.version,
            hash=self.hash,
            parent=self.document.parent,
            body=self.body,
            time_us=int(now.wall * 1_000_000),
            current=True,
            author=author,
        )

    def _hold(self, document: NetworkDocument, body: bytes) -> None:
        self.document = document
        self.body = body
        self.hash = digest(body)
        self.shared = (self._common(document, ()), self._common(document, (HELEN_SERVICE,)))
        self._state.interval = document.default_heartbeat_interval
        self._state.liveness = document.heartbeat_liveness
        self._state.policies = {policy.name: policy for policy in document.services}

    def _common(self, document: NetworkDocument, services: tuple[str, ...]) -> str:
        """What all clients of a kind have in common: only if this changes must they take a new document."""
        plain = msgspec.structs.replace(document, version=1)
        part = client_config(
            plain, "any", services, self._state.config.group, "any", document.default_heartbeat_interval
        )
        return digest(render(part, "json"))

    def _part(self, member: Member) -> ClientConfig:
        config = self._state.config
        interval = member.interval or self.document.default_heartbeat_interval
        return client_config(
            self.document, member.identity, sorted(member.services), config.group, self._state.identity, interval
        )

    @property
    def _owner(self) -> str | msgspec.UnsetType:
        """Told only where several brokers share a store."""
        return msgspec.UNSET if self._state.owner == self._state.identity else self._state.owner

    def _ack(self, member: Member, version: int, hash_: str, effects: Effects) -> None:
        member.config_version = version
        said = messages.ConfigAck(
            identity=member.identity, config_version=version, config_hash=hash_, owner=self._owner
        )
        effects.promise(member.connection, ("CONFIGACK", said))

    def _push(self, _: None, now: Now, effects: Effects) -> None:
        """Tell some of those who have not heard of the change; the rest next turn."""
        for _turn in range(min(PUSH_CHUNK, len(self._pending))):
            member, changed = self._pending.popleft()
            if member.gone or not member.connection.takes_pushes or member.foreign:
                continue
            if (member.config_version or 0) > self.version:
                continue  # it knows a broker that remembers more: a stale one downgrades nobody
            if changed:
                self.give(member, effects)
            else:
                self._ack(member, self.version, self.hash, effects)
        if self._pending:
            self._state.timers.add((self._push, None), now.mono)

    def _beacon(self, _: None, now: Now, effects: Effects) -> None:
        effects.publish(CONFIG_PUB, [b"version", self.version.to_bytes(8, "big"), self.hash.encode()])
        self._state.timers.add((self._beacon, None), now.mono + BEACON_SECONDS)
