"""CURVE on a broker's sockets: connects the key folder, replicated keys, ZAP and the authenticators with the broker
core.

Invariants: within LOOK_SECONDS and one turn, a revoked key is admitted nowhere, its messages are dropped and nothing
more is sent to it; the loop never waits for a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

import zmq

from scale0.broker.cluster.key_replication import KeyReplication, Snapshot, places_of
from scale0.broker.cluster.replicated_keys import AdmittedKey, clash, let_in
from scale0.broker.core.enrolment import StoreKey
from scale0.broker.core.keys import ROLES_OF, Keys, KeyTable, is_guest
from scale0.broker.edge.authenticator import Authenticator
from scale0.broker.edge.key_folder import KeyFolder
from scale0.broker.edge.replicated_key_folder import read_told, write_told
from scale0.broker.edge.zap import ZapAuthenticator
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.log_context import about
from scale0.transport.core.sockets import DIALED, PEER, ROLES
from scale0.transport.edge.curve_certificates import CurveCertificate, set_client

log = logging.getLogger("scale0.keys")

LOOK_SECONDS: Final = 0.5
GATHER_SECONDS: Final = 0.05
WRITE_SECONDS: Final = 1.0
"""The shortest time between two writes of replicated keys; their owners have them on disk as well."""

Socket = zmq.Socket[bytes]
Take = Callable[[Callable[[Now, Effects], None]], None]
Lose = Callable[[Collection[str], Now, Effects], None]
ServerKeys = Callable[[str], str]
"""By endpoint: the public key that a broker there announced; blank if none did."""


NOTHING_TOLD: Final[tuple[Snapshot, frozenset[str]]] = ({}, frozenset())


class KeysRead(NamedTuple):
    told: Snapshot
    own: KeyTable
    """The keys of our own files."""
    stored: list[AdmittedKey]
    """All admitted keys, and the broker whose files hold each."""
    table: KeyTable
    """The same, as a table for lookups."""
    mine: Mapping[str, str]
    """The keys of our own files that are replicated."""


class Publishing(Protocol):
    """A PUB socket that can be bound again."""

    def bind_anew(self) -> None: ...


class Curve:
    def __init__(self, context: zmq.Context[Socket], folder: KeyFolder) -> None:
        self.folder = folder
        self.own: CurveCertificate = folder.server()
        self.table: KeyTable = folder.table(read_now().wall)
        """The admitted keys: of our own files, and of trusted brokers."""
        self._read_last = KeysRead({}, self.table, [], self.table, {})
        self._known: KeysRead | None = None
        self._unwritten: set[str] = set()
        self._wrote = 0.0
        self._news = asyncio.Event()
        self._share: KeyReplication | None = None
        self._identity = ""
        self._gates = {door: Authenticator() for door in ROLES}
        self.zap = ZapAuthenticator(context, self._allows)
        self.keys = Keys(self.user_of, self.table)
        self.server_keys: ServerKeys = lambda _: ""
        """The keys that brokers announced; set by the process."""
        self.dialed_user: Callable[[bytes], str] = lambda _: ""
        """The user at a dialed endpoint; set by `PeerSockets`."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-keys")
        self._publishers: Sequence[Publishing] = ()
        self._take: Take = lambda _: None
        self._lose: Lose = lambda *_: None
        self._looked: Callable[[], object] = lambda: None
        self._tell_gates()

    # Sockets.

    def serve(self, socket: Socket, domain: str) -> None:
        """Require a key that is stored for this domain from every client of the socket."""
        if domain not in ROLES_OF:
            raise AssertionError(f"{domain} is no socket of a broker's")
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.own.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, domain.encode())
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def call(self, socket: Socket, server_key: str) -> None:
        """Connect this socket only to a broker that has this key."""
        set_client(socket, self.own, server_key)

    def gate(self, door: str) -> Authenticator:
        return self._gates[door]

    def candidates(self, endpoint: str) -> list[str]:
        """Possible keys of the broker at an endpoint: the one that it announced, or else all stored keys of peers."""
        peers = sorted(key for key in self.table.keys if key.role == PEER and not key.expires)
        stored, said = [key.public for key in peers], self.server_keys(endpoint)
        if said in stored:
            return [said]
        return [key.public for key in peers if key.endpoint == endpoint] or stored

    def peer_of(self, public: str) -> str:
        """The user of a peer's key; blank if it is not stored."""
        key = self.table.find(PEER, public)
        return key.user if key is not None else ""

    def user_of(self, door: str, routing_id: bytes) -> str:
        """The user of the message that is being handled."""
        gate = self._gates.get(door)
        if gate is not None:
            return gate.user
        return self.dialed_user(routing_id) if door == DIALED else ""

    # Changes.

    def attach(self, publishers: Sequence[Publishing], take: Take, lose: Lose, looked: Callable[[], object]) -> None:
        """Set the callbacks: `lose`, in a turn by `take`, gets users with a removed key; `looked` follows a check."""
        self._publishers, self._take, self._lose, self._looked = publishers, take, lose, looked

    def share(self, share: KeyReplication | None, identity: str) -> None:
        """Replicate keys with other brokers; None: stop, and discard their keys."""
        self._share, self._identity = share, identity
        told = read_told(self.folder.path)
        if share is None:
            write_told(self.folder.path, {}, told)
            return
        share.load(told)
        share.on_told = self._news.set

    async def watch(self) -> None:
        """Check the folder periodically, and after reports of other brokers; never returns."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
                await asyncio.sleep(GATHER_SECONDS)
            try:
                await self.look()
            except OSError as error:
                log.warning("the folder of keys cannot be read: %s", error, extra=about())

    async def look(self) -> None:
        """Check the folder in a thread."""
        self._news.clear()
        told = self._share.snapshot() if self._share is not None else NOTHING_TOLD
        loop = asyncio.get_running_loop()
        self.change(await loop.run_in_executor(self._thread, self._read, *told))
        # Removed keys take effect before the write to disk.
        await loop.run_in_executor(self._thread, self._write)

    def look_now(self) -> None:
        """Check the folder synchronously, at the start."""
        self.change(self._read(*(self._share.snapshot() if self._share is not None else NOTHING_TOLD)))

    async def enrol(self, ask: StoreKey) -> Refusal | None:
        """Consume a token and store a key; the key is admitted when this returns."""
        loop = asyncio.get_running_loop()
        stored = self._known.stored if self._known is not None else []
        elsewhere = clash(ask.role, ask.name, ask.public_key, stored)
        if elsewhere is not None:
            message = f"there is a key {elsewhere.key.name} in the files of {elsewhere.broker}: choose another name"
            return Refusal(codes.IN_USE, message)
        refusal = await loop.run_in_executor(self._thread, self.folder.enrol, ask, read_now().wall)
        await self.look()
        return refusal

    def change(self, read: KeysRead) -> None:
        """Apply the keys of our own files, and all admitted keys."""
        newer, known = read.table, self._known is read
        self._known = read
        if self._share is not None and not known:
            self._share.know(read.mine)
            self._share.keep(newer.brokers.values())
        if newer.keys != self.table.keys:
            lost = self.table.lost_users(newer)
            self.table = newer
            self.keys.know(newer)
            self._tell_gates()
            log.info("keys have changed: %d are let in, %d were taken away", len(newer.keys), len(lost), extra=about())
            if not all(map(is_guest, lost)):
                for publisher in self._publishers:
                    publisher.bind_anew()
            if lost:
                self._take(lambda now, effects: self._lose(lost, now, effects))
        self._looked()

    def close(self) -> None:
        self.zap.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, told: Snapshot, changed: frozenset[str]) -> KeysRead:
        """Runs in the thread only, once the broker serves."""
        self._unwritten |= changed
        known = set(self.folder.faults)
        own = self.folder.table(read_now().wall)
        for path, reason in self.folder.faults.items():
            if path not in known:
                log.warning("%s", reason, extra=about(file=str(path)))
        self.folder.sweep()
        last = self._read_last
        if told is not last.told or own.keys != last.own.keys:
            stored = let_in(own.keys, told, self._identity, self.own.public)
            mine = places_of(own.keys, self.folder.programs)
            self._read_last = KeysRead(told, own, stored, KeyTable(one.key for one in stored), mine)
        return self._read_last

    def _write(self) -> None:
        """Runs in the thread: store replicated keys for the next start, at most once in WRITE_SECONDS."""
        now = read_now().mono
        if self._unwritten and now - self._wrote >= WRITE_SECONDS:
            self._wrote = now
            try:
                write_told(self.folder.path, self._read_last.told, self._unwritten)
                self._unwritten = set()
            except OSError as error:
                # A full disk must not keep a removed key admitted.
                log.warning("what other brokers told of keys cannot be stored: %s", error, extra=about())

    def _tell_gates(self) -> None:
        for door, gate in self._gates.items():
            gate.know(self.table.users(door))

    def _allows(self, domain: str, public: str) -> bool:
        key = self.table.find(domain, public)
        return key is not None and (not key.expires or read_now().wall < key.expires)
