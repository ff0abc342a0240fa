"""The network document of this broker, and the part of it that each client gets.

Invariants: the version that clients receive never decreases while the process runs, and a document is stored before it
is published.
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
from scale0.kernel.effects import Effects, Message, PeerAddress
from scale0.storage.rows import PutDocument
from scale0.transport.core import messages
from scale0.transport.core.address_book import SERVER_KEY
from scale0.transport.core.request_batches import LEAST_MESSAGE_BYTES
from scale0.transport.core.sockets import CONFIG_PUB

BEACON_SECONDS: Final = 1.0
"""How often the version is published, for subscribers that missed a change."""
PUSH_CHUNK: Final = 500
"""Clients notified of a change in one turn; more would delay other requests."""


class ConfigDocument:
    """The current document, and the clients that have not received it yet."""

    def __init__(self, state: BrokerState, document: NetworkDocument, body: bytes) -> None:
        self._state = state
        self._pending: deque[tuple[Member, bool]] = deque()
        self._unstored = 0
        """Versions that no commit has stored yet."""
        self.on_taken: Callable[[Now, Effects], None] = lambda *_: None
        """Called after a new document is accepted, to notify other brokers before the next heartbeat."""
        self._hold(document, body)

    @property
    def version(self) -> int:
        return self.document.version

    def start(self, now: Now, effects: Effects) -> None:
        self._beacon(None, now, effects)

    def answer(self, member: Member, asked: messages.CheckConfig, now: Now, effects: Effects) -> None:
        """Answer CHECKCONFIG with CONFIGACK or CONFIG."""
        version, hash_ = asked.version, asked.config_hash
        member.config_type = format_named(asked.config_type)
        if version is not None and version > self.version:
            # A stale broker must not downgrade a client.
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
        """Send CONFIG, after the document is stored: no client may use a version that a crash could lose."""
        member.config_version = self.version
        message = messages.Config(
            identity=member.identity,
            config_type=member.config_type,
            config_version=self.version,
            config_hash=self.hash,
            owner=self._owner,
            server_key=self._server_key,
            request_batches=self._accepts_batches,
            long_holds=True,
        )
        self._say(effects)(member.connection, ("CONFIG", message, render(self._part(member), member.config_type)))

    def change(
        self, document: NetworkDocument, author: str, members: Iterable[Member], now: Now, effects: Effects
    ) -> None:
        self.take(document, document_bytes(document), author, members, now, effects)

    def take(
        self, document: NetworkDocument, body: bytes, author: str, members: Iterable[Member], now: Now, effects: Effects
    ) -> None:
        """Make another document the current one, byte for byte: store it, publish it, notify clients."""
        before = self.shared
        self._hold(document, body)
        self.store(author, now, effects)
        effects.record(ConfigChanged(version=self.version, hash=self.hash, parent=document.parent, changed_by=author))
        # A key with rules receives only the beacon, and its part of the document by negotiation.
        readers = self._state.keys.may_read_document if self._state.keys is not None else None
        effects.publish(CONFIG_PUB, [b"config", self.version.to_bytes(8, "big"), self.hash.encode(), body], readers)
        if not self._pending:
            self._state.timers.add((self._push, None), now.mono)
        for member in members:
            which = HELEN_SERVICE in member.services
            self._pending.append((member, before[which] != self.shared[which]))
        self.on_taken(now, effects)

    def store(self, author: str, now: Now, effects: Effects) -> None:
        effects.write(self.row(author, now))
        self._unstored += 1
        effects.after_commit(self._stored)

    def _stored(self, _now: Now, _effects: Effects) -> None:
        self._unstored -= 1

    def row(self, author: str, now: Now) -> PutDocument:
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
        """The part that all clients of a kind share. Clients need a new document only if it changes."""
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
        """Set only where several brokers share a store."""
        return msgspec.UNSET if self._state.owner == self._state.identity else self._state.owner

    @property
    def _accepts_batches(self) -> bool:
        return self._state.limits.max_message_bytes >= LEAST_MESSAGE_BYTES

    @property
    def _server_key(self) -> str | msgspec.UnsetType:
        """Set only where CURVE is used."""
        return self._state.endpoints.get(SERVER_KEY) or msgspec.UNSET

    def announce_server_key(self, members: Iterable[Member], now: Now) -> None:
        """Our own key has changed: send it to all clients with CONFIGACK."""
        if not self._pending:
            self._state.timers.add((self._push, None), now.mono)
        self._pending.extend((member, False) for member in members)

    def _ack(self, member: Member, version: int, hash_: str, effects: Effects) -> None:
        member.config_version = version
        message = messages.ConfigAck(
            identity=member.identity,
            config_version=version,
            config_hash=hash_,
            owner=self._owner,
            server_key=self._server_key,
            request_batches=self._accepts_batches,
            long_holds=True,
        )
        self._say(effects)(member.connection, ("CONFIGACK", message))

    def _say(self, effects: Effects) -> Callable[[PeerAddress, Message], None]:
        """Clients are told after a commit; while the database is unavailable, at once, if the document is stored."""
        return effects.promise if self._state.outage is None or self._unstored else effects.send

    def _push(self, _: None, now: Now, effects: Effects) -> None:
        """Notify the next chunk of clients; the rest follow in later turns."""
        for _turn in range(min(PUSH_CHUNK, len(self._pending))):
            member, changed = self._pending.popleft()
            if member.gone or not member.connection.takes_pushes or member.foreign:
                continue
            if (member.config_version or 0) > self.version:
                continue  # it has a newer version from another broker: a stale broker must not downgrade it
            if changed:
                self.give(member, effects)
            else:
                self._ack(member, self.version, self.hash, effects)
        if self._pending:
            self._state.timers.add((self._push, None), now.mono)

    def _beacon(self, _: None, now: Now, effects: Effects) -> None:
        effects.publish(CONFIG_PUB, [b"version", self.version.to_bytes(8, "big"), self.hash.encode()])
        self._state.timers.add((self._beacon, None), now.mono + BEACON_SECONDS)
