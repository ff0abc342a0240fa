"""CURVE on a broker's sockets: connects the key folder and replicated keys with the sockets and the broker core.

Invariants: within LOOK_SECONDS and one turn, a revoked key is admitted nowhere, its messages are dropped and nothing
more is sent to it; the loop never waits for a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

import zmq
import zmq.utils.z85

from scale0.broker.cluster.key_replication import KeyReplication, Snapshot, places_of
from scale0.broker.cluster.replicated_keys import AdmittedKey, admitted_keys, clash
from scale0.broker.core.enrolment import StoreKey
from scale0.broker.core.keys import ROLES_OF, Keys, KeyTable
from scale0.broker.edge.key_folder import KeyFolder
from scale0.broker.edge.replicated_key_folder import read_replicated_keys, write_replicated_keys
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.log_context import about
from scale0.transport.core.sockets import DIALED, PEER
from scale0.transport.core.zmtp_curve import CurveServer
from scale0.transport.edge.curve_certificates import CurveCertificate, set_client

log = logging.getLogger("scale0.keys")

POLL_SECONDS: Final = 0.5
GATHER_SECONDS: Final = 0.05
WRITE_SECONDS: Final = 1.0
"""The shortest time between two writes of replicated keys; their owners have them on disk as well."""

Socket = zmq.Socket[bytes]
Take = Callable[[Callable[[Now, Effects], None]], None]
Lose = Callable[[Collection[str], Now, Effects], None]
ServerKeys = Callable[[str], str]
"""By endpoint: the public key that a broker there announced; blank if none did."""


NO_REPLICATED_KEYS: Final[tuple[Snapshot, frozenset[str]]] = ({}, frozenset())


class KeysRead(NamedTuple):
    replicated: Snapshot
    own: KeyTable
    """The keys of our own files."""
    stored: list[AdmittedKey]
    """All admitted keys, and the broker whose files hold each."""
    table: KeyTable
    """The same, as a table for lookups."""
    mine: Mapping[str, str]
    """The keys of our own files that are replicated."""


class KeyedServer(Protocol):
    """A socket that accepts messages of known keys."""

    name: str
    users: Mapping[str, str] | None
    sender: str

    def disconnect_keys(self, public_keys: Container[str]) -> None: ...


class Curve:
    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self.own: CurveCertificate = folder.server()
        self.table: KeyTable = folder.table(read_now().wall)
        """The admitted keys: of our own files, and of trusted brokers."""
        self._read_last = KeysRead({}, self.table, [], self.table, {})
        self._known: KeysRead | None = None
        self._unwritten: set[str] = set()
        self._wrote = 0.0
        self._changed_keys = asyncio.Event()
        self._key_replication: KeyReplication | None = None
        self._identity = ""
        self._servers: dict[str, KeyedServer] = {}
        self.keys = Keys(self.user_of, self.table)
        self.server_keys: ServerKeys = lambda _: ""
        """The keys that brokers announced; set by the process."""
        self.dialed_user: Callable[[bytes], str] = lambda _: ""
        """The user at a dialed endpoint; set by `PeerSockets`."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-keys")
        self._take: Take = lambda _: None
        self._lose: Lose = lambda *_: None
        self._after_read: Callable[[], object] = lambda: None

    # Sockets.

    def mechanism(self, domain: str) -> Callable[[bytes], CurveServer]:
        """For connections of this socket: a key that is stored for it is required."""
        if domain not in ROLES_OF:
            raise AssertionError(f"{domain} is no socket of a broker's")
        secret = zmq.utils.z85.decode(self.own.secret)

        def admits(public: bytes) -> bool:
            return self._allows(domain, zmq.utils.z85.encode(public).decode())

        return lambda socket_type: CurveServer(secret, socket_type, admits, os.urandom)

    def call(self, socket: Socket, server_key: str) -> None:
        """Connect this socket only to a broker that has this key."""
        set_client(socket, self.own, server_key)

    def candidates(self, endpoint: str) -> list[str]:
        """Possible keys of the broker at an endpoint: the one that it announced, or else all stored keys of peers."""
        peers = sorted(key for key in self.table.keys if key.role == PEER and not key.expires)
        stored, announced = [key.public for key in peers], self.server_keys(endpoint)
        if announced in stored:
            return [announced]
        return [key.public for key in peers if key.endpoint == endpoint] or stored

    def peer_of(self, public: str) -> str:
        """The user of a peer's key; blank if it is not stored."""
        key = self.table.find(PEER, public)
        return key.user if key is not None else ""

    def user_of(self, socket: str, routing_id: bytes) -> str:
        """The user of the message that is being handled."""
        server = self._servers.get(socket)
        if server is not None:
            return server.sender
        return self.dialed_user(routing_id) if socket == DIALED else ""

    # Changes.

    def attach(
        self,
        servers: Sequence[KeyedServer],
        take: Take,
        lose: Lose,
        after_read: Callable[[], object],
    ) -> None:
        """Set the sockets and callbacks: `lose`, in a turn by `take`, gets users with a removed key; `after_read` is
        called after each check."""
        self._servers = {server.name: server for server in servers}
        self._set_users()
        self._take, self._lose, self._after_read = take, lose, after_read

    def start_replication(self, key_replication: KeyReplication | None, identity: str) -> None:
        """Replicate keys with other brokers; None: stop, and discard their keys."""
        self._key_replication, self._identity = key_replication, identity
        replicated = read_replicated_keys(self.folder.path)
        if key_replication is None:
            write_replicated_keys(self.folder.path, {}, replicated)
            return
        key_replication.load(replicated)
        key_replication.on_change = self._changed_keys.set

    async def watch(self) -> None:
        """Check the folder periodically, and after reports of other brokers; never returns."""
        fault = ""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed_keys.wait(), POLL_SECONDS)
                await asyncio.sleep(GATHER_SECONDS)
            try:
                await self.read_folder()
                fault = ""
            except OSError as error:
                if str(error) != fault:
                    log.error("the keys are not read again: %s", error, extra=about())
                fault = str(error)

    async def read_folder(self) -> None:
        """Check the folder in a thread."""
        self._changed_keys.clear()
        replicated = self._key_replication.snapshot() if self._key_replication is not None else NO_REPLICATED_KEYS
        loop = asyncio.get_running_loop()
        self.change(await loop.run_in_executor(self._thread, self._read, *replicated))
        # Removed keys take effect before the write to disk.
        await loop.run_in_executor(self._thread, self._write)

    def read_now_blocking(self) -> None:
        """Check the folder synchronously, at the start."""
        self.change(
            self._read(*(self._key_replication.snapshot() if self._key_replication is not None else NO_REPLICATED_KEYS))
        )

    async def enrol(self, ask: StoreKey) -> Refusal | None:
        """Consume a token and store a key; the key is admitted when this returns."""
        loop = asyncio.get_running_loop()
        stored = self._known.stored if self._known is not None else []
        elsewhere = clash(ask.role, ask.name, ask.public_key, stored)
        if elsewhere is not None:
            message = f"there is a key {elsewhere.key.name} in the files of {elsewhere.broker}: choose another name"
            return Refusal(codes.IN_USE, message)
        refusal = await loop.run_in_executor(self._thread, self.folder.enrol, ask, read_now().wall)
        await self.read_folder()
        return refusal

    def change(self, read: KeysRead) -> None:
        """Apply the keys of our own files, and all admitted keys."""
        newer, known = read.table, self._known is read
        self._known = read
        if self._key_replication is not None and not known:
            self._key_replication.set_own_keys(read.mine)
            self._key_replication.keep(newer.brokers.values())
        if newer.keys != self.table.keys:
            lost = self.table.lost_users(newer)
            # A token's key is removed when it is consumed: the answer to that must still leave.
            gone = {key.public for key in self.table.keys if not key.expires} - {key.public for key in newer.keys}
            self.table = newer
            self.keys.know(newer)
            self._set_users()
            log.info("keys changed: %d admitted, %d revoked", len(newer.keys), len(lost), extra=about())
            self._take(lambda now, effects: self._lose(lost, now, effects))
            for server in self._servers.values():
                server.disconnect_keys(gone)
        self._after_read()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, replicated: Snapshot, changed: frozenset[str]) -> KeysRead:
        """Runs in the thread only, once the broker serves."""
        self._unwritten |= changed
        known = set(self.folder.faults)
        own = self.folder.table(read_now().wall)
        for path, reason in self.folder.faults.items():
            if path not in known:
                log.warning("%s", reason, extra=about(file=str(path)))
        self.folder.sweep()
        last = self._read_last
        if replicated is not last.replicated or own.keys != last.own.keys:
            stored = admitted_keys(own.keys, replicated, self._identity, self.own.public)
            mine = places_of(own.keys, self.folder.programs)
            self._read_last = KeysRead(replicated, own, stored, KeyTable(one.key for one in stored), mine)
        return self._read_last

    def _write(self) -> None:
        """Runs in the thread: store replicated keys for the next start, at most once in WRITE_SECONDS."""
        now = read_now().mono
        if self._unwritten and now - self._wrote >= WRITE_SECONDS:
            self._wrote = now
            try:
                write_replicated_keys(self.folder.path, self._read_last.replicated, self._unwritten)
                self._unwritten = set()
            except OSError as error:
                # A full disk must not keep a removed key admitted.
                log.warning("cannot store the replicated keys of other brokers: %s", error, extra=about())

    def _set_users(self) -> None:
        for name, server in self._servers.items():
            server.users = self.table.users(name)

    def _allows(self, domain: str, public: str) -> bool:
        key = self.table.find(domain, public)
        return key is not None and (not key.expires or read_now().wall < key.expires)
