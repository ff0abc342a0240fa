"""Replication of the network document between brokers, resolution of conflicts, and joining (PROTOCOL 7).

Invariants: a broker never goes back to an older document; of two documents with the same version the larger hash wins
on every broker; the loser stays in the history, and both sides record the conflict; a document is validated as a whole
before it is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Members
from scale0.broker.core.state import BrokerState
from scale0.config import MAX_VERSION, NetworkDocument, check_document, digest, parse_existing
from scale0.history.events.changes import ConfigConflict
from scale0.history.events.sources import BrokerStateChanged
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import ConfigError, Refusal
from scale0.kernel.log_context import about
from scale0.storage.rows import DocumentRow, PutDocument, ReadDocument, ReadDocuments
from scale0.transport.core import messages
from scale0.transport.core.sockets import ACTIVE, JOINING

BROKER_ROLE: Final = "broker"
JSON: Final = "json"
MAX_REPORTED: Final = 1_000
"""Conflicts that are recorded, and losing documents that are kept, until the process ends."""

ANSWER_INTERVALS: Final = 0.5
"""In heartbeat intervals: after this time another broker that announces the document is asked, too."""
MAX_ADVANCE: Final = 1_000_000
"""How far the version of a received document may be ahead of ours: more can only be an error or an attack, and would
use up the versions of the network. A joining broker accepts any version."""
AFTER_ALL_HASHES: Final = "~"
VERSION_FRAMES: Final = 3
CONFIG_FRAMES: Final = 4
PUBLISHED: Final = "config_sub"
"""In place of a broker's name: a publisher does not identify itself."""

log = logging.getLogger("scale0.spread")

Rank = tuple[int, str]
"""(version, hash): the larger one wins."""


class ConfigReplication:
    def __init__(self, state: BrokerState, documents: ConfigDocument, members: Members, peers: Peers) -> None:
        self._state = state
        self._documents = documents
        self._members = members
        self._peers = peers
        self._asked: tuple[float, Rank] | None = None
        """The last request and its rank: many brokers announce a change at once, and one copy of it is enough."""
        self._reported: set[tuple[Rank, Rank]] = set()
        """Conflicts that were recorded: each is recorded once."""

    @property
    def rank(self) -> Rank:
        """The rank of our document; a joining broker has none."""
        return (0, "") if self._state.state == JOINING else (self._documents.version, self._documents.hash)

    def peer_reported(self, peer: Peer, connection: Connection, now: Now, effects: Effects) -> None:
        """A peer sent its version: request the document if it is newer."""
        theirs = (peer.config_version, peer.config_hash)
        if (
            theirs <= self.rank
            or theirs[0] > self._newest_acceptable
            or (peer.asked is not None and now.mono - peer.asked < self._state.interval)
        ):
            return
        if self._asked is not None and self._asked[1] == theirs and now.mono - self._asked[0] < self._patience:
            return
        if peer.asked is None:  # otherwise it did not answer earlier, and there is no need to wait for it
            self._asked = (now.mono, theirs)
        self._ask(peer, connection, now, effects)

    @property
    def _newest_acceptable(self) -> int:
        """The largest version that we accept from another broker."""
        if self._state.state == JOINING:
            return MAX_VERSION
        return min(self._documents.version + MAX_ADVANCE, MAX_VERSION)

    @property
    def _patience(self) -> float:
        """How long to wait for an answer before another broker is asked."""
        return ANSWER_INTERVALS * self._state.interval

    def _ask(self, peer: Peer, connection: Connection, now: Now, effects: Effects) -> None:
        peer.asked = now.mono
        version, hash_ = self.rank
        message = messages.PeerCheckConfig(
            config_type=JSON,
            identity=self._state.identity,
            config_version=version or None,
            config_hash=hash_ or None,
            role=BROKER_ROLE,
        )
        effects.send(connection, ("CHECKCONFIG", message))

    def check_config(
        self, connection: Connection, message: messages.PeerCheckConfig, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """CHECKCONFIG of a broker: send the whole document, unless the broker has it."""
        if message.role != BROKER_ROLE:
            raise Refusal(codes.NOT_ALLOWED, "on the peer socket CHECKCONFIG needs role=broker")
        if self._state.state == JOINING:
            raise Refusal(codes.NOT_SERVING, "this broker is joining and has no configuration yet: ask another broker")
        theirs = (message.version or 0, message.config_hash or "")
        if theirs == self.rank or theirs[0] > self.rank[0]:
            self._ack(connection, theirs, effects)
        elif not theirs[0] or connection.peer is None:
            self._give(connection, False, effects)
        else:
            # Our own history shows whether our document descends from theirs.
            ask = ReadDocument(version=theirs[0], hash=theirs[1])
            effects.ask(StoreQuery(ask, partial(self._compared, connection, connection.peer, theirs)))
        if connection.peer is not None and theirs > self.rank:
            connection.peer.config_version, connection.peer.config_hash = theirs
            self.peer_reported(connection.peer, connection, now, effects)

    def _compared(
        self, connection: Connection, peer: Peer, theirs: Rank, found: DocumentRow | None, now: Now, effects: Effects
    ) -> None:
        """Their document is not in our history: the history may be too short, or theirs may be a fork."""
        if found is not None or self._documents.document.parent == theirs[1]:
            self._give(connection, False, effects)
        else:
            ask = ReadDocuments(limit=1, before_version=theirs[0], before_hash=AFTER_ALL_HASHES)
            effects.ask(StoreQuery(ask, partial(self._forked, connection, peer, theirs)))

    def _forked(
        self, connection: Connection, peer: Peer, theirs: Rank, older: Sequence[DocumentRow], now: Now, effects: Effects
    ) -> None:
        """A history with gaps cannot decide; it counts as a conflict, because a superfluous record does no harm."""
        if older:
            self._conflict(peer, theirs, effects)
        self._give(connection, bool(older), effects)

    def _give(self, connection: Connection, conflict: bool, effects: Effects) -> None:
        message = messages.PeerConfig(
            identity=self._state.identity,
            config_type=JSON,
            config_version=self._documents.version,
            config_hash=self._documents.hash,
            conflict=conflict,
        )
        effects.promise(connection, ("CONFIG", message, self._documents.body))

    def _ack(self, connection: Connection, rank: Rank, effects: Effects) -> None:
        message = messages.ConfigAck(identity=self._state.identity, config_version=rank[0], config_hash=rank[1])
        effects.promise(connection, ("CONFIGACK", message))

    def config(
        self, connection: Connection, message: messages.PeerConfig, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """CONFIG of a broker: accept the document if it is newer, keep it in the history if it lost."""
        peer = connection.peer
        assert peer is not None  # it has sent HELLO
        body = bodies[0] if bodies else b""
        self._asked = None  # any answer ends the wait
        document = self._read(message, body)
        peer.asked = None
        self._compare(peer, document, body, message, now, effects)

    def published(self, frames: Sequence[bytes], now: Now, effects: Effects) -> None:
        """A message of a `config_sub_ports` publisher: a document, or its rank. There is no sender to refuse."""
        if len(frames) == VERSION_FRAMES and frames[0] == b"version":
            if (int.from_bytes(frames[1][:8], "big"), text_of(frames[2])) > self.rank:
                self._ask_all(now, effects)
        elif len(frames) == CONFIG_FRAMES and frames[0] == b"config":
            version, hash_ = int.from_bytes(frames[1][:8], "big"), text_of(frames[2])
            message = messages.PeerConfig(
                identity="", config_type=JSON, config_version=version, config_hash=hash_, conflict=False
            )
            try:
                document = self._read(message, frames[3])
            except Refusal as refusal:
                self._state.count("config_sub_refused")
                log.debug(
                    "ignoring an invalid published document: %s",
                    refusal.message,
                    extra=about(config=hash_, version=version),
                )
                return
            self._compare(None, document, frames[3], message, now, effects)
        else:
            self._state.count("config_sub_refused")

    def _ask_all(self, now: Now, effects: Effects) -> None:
        for peer in self._peers.alive():
            link = peer.link
            if link is not None and (peer.asked is None or now.mono - peer.asked >= self._state.interval):
                self._ask(peer, link, now, effects)

    def _compare(
        self,
        peer: Peer | None,
        document: NetworkDocument,
        body: bytes,
        message: messages.PeerConfig,
        now: Now,
        effects: Effects,
    ) -> None:
        rank, own = (document.version, message.config_hash), self.rank
        if rank == own:
            return
        forked = message.conflict or rank[0] == own[0] or (rank[0] == own[0] + 1 and document.parent != own[1])
        if own[0] and forked:
            self._settle(peer, document, body, rank, now, effects)
        if rank > self.rank:
            self._documents.take(document, body, name_of(peer), list(self._members.by_name.values()), now, effects)
            self._joined(effects)

    def _settle(
        self, peer: Peer | None, document: NetworkDocument, body: bytes, rank: Rank, now: Now, effects: Effects
    ) -> None:
        """Two forks of the document: keep the loser, wherever it was made."""
        if rank > self.rank:
            # The peer's history needs our document, too.
            if peer is not None and peer.link is not None:
                self._give(peer.link, True, effects)
            self._conflict(peer, rank, effects)
            return
        row = msgspec.structs.replace(
            self._documents.row(name_of(peer), now),
            version=rank[0],
            hash=rank[1],
            parent=document.parent,
            body=body,
            current=False,
        )
        effects.ask(StoreQuery(ReadDocument(version=rank[0], hash=rank[1]), partial(self._keep, peer, row)))

    def _keep(
        self, peer: Peer | None, lost: PutDocument, found: DocumentRow | None, now: Now, effects: Effects
    ) -> None:
        """Store a losing document in the history and forward it, once."""
        del now
        if found is not None or len(self._reported) >= MAX_REPORTED:
            return
        effects.write(lost)
        self._conflict(peer, (lost.version, lost.hash), effects)
        message = messages.PeerConfig(
            identity=self._state.identity,
            config_type=JSON,
            config_version=lost.version,
            config_hash=lost.hash,
            conflict=True,
        )
        for other in self._peers.alive():
            if other is not peer and other.link is not None:
                effects.promise(other.link, ("CONFIG", message, lost.body))

    def _conflict(self, peer: Peer | None, theirs: Rank, effects: Effects) -> None:
        ours = self.rank
        pair = (min(ours, theirs), max(ours, theirs))
        if pair in self._reported or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(pair)
        winner, loser = pair[1], pair[0]
        effects.record(ConfigConflict(version=winner[0], hash=winner[1], other_hash=loser[1], identity=name_of(peer)))

    def acknowledged(
        self, connection: Connection, message: messages.ConfigAck, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        del message, now, effects
        self._asked = None
        if connection.peer is not None:
            connection.peer.asked = None

    def _read(self, message: messages.PeerConfig, body: bytes) -> NetworkDocument:
        """Decode and validate the whole document; raise a refusal without any change if it is invalid."""
        if message.config_version > self._newest_acceptable:
            raise Refusal(
                codes.MALFORMED,
                f"config_version {message.config_version} is too far ahead: this broker has version "
                f"{self._documents.version}, and accepts at most {self._newest_acceptable}",
            )
        if digest(body) != message.config_hash:
            raise Refusal(codes.MALFORMED, "the document does not match config_hash")
        try:
            document = parse_existing(body, NetworkDocument)
        except ConfigError as error:
            raise Refusal(codes.MALFORMED, f"the document cannot be read: {error}") from error
        if document.version != message.config_version:
            raise Refusal(codes.MALFORMED, "the document does not match config_version")
        faults = check_document(document)
        if faults:
            raise Refusal(codes.MALFORMED, f"the document is invalid: {faults[0]}")
        if self._state.state != JOINING and document.network != self._documents.document.network:
            raise Refusal(
                codes.NOT_ALLOWED,
                f"the document belongs to another network; this network is {self._documents.document.network}",
            )
        return document

    def _joined(self, effects: Effects) -> None:
        """A joining broker serves as soon as it has a configuration."""
        if self._state.state == JOINING:
            self._state.state = ACTIVE
            effects.record(BrokerStateChanged(identity=self._state.identity, before=JOINING, after=self._state.shown))


def name_of(peer: Peer | None) -> str:
    return PUBLISHED if peer is None else peer.identity


def text_of(frame: bytes) -> str:
    """Decode a hash; a value that is not ASCII equals no hash."""
    return frame[:64].decode("ascii", "replace")
