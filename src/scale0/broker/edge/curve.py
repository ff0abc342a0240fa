"""CURVE on a broker's sockets: who is let in, whom it dials, and what happens when a key comes or goes.

Lives here: the join between the folder of keys, what other brokers told, the ZAP desk, the gates of the ROUTERs and the
machines. Never here: a rule about a key (`broker.core.keys`, `broker.cluster.replicated_keys`), or a file
(`key_folder`). Invariants: a key that is taken away is let in nowhere, heard nowhere and hears nothing more, within
LOOK_SECONDS and a turn; the loop never waits for a file.
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
"""How often the folder is looked at."""
GATHER_SECONDS: Final = 0.05
"""How long news of other brokers is gathered."""
WRITE_SECONDS: Final = 1.0
"""How often what they told is stored at most: their files hold it, too."""

Socket = zmq.Socket[bytes]
Take = Callable[[Callable[[Now, Effects], None]], None]
Lose = Callable[[Collection[str], Now, Effects], None]
ServerKeys = Callable[[str], str]
"""By endpoint: the public key that a broker said it has there; blank: nobody said."""


NOTHING_TOLD: Final[tuple[Snapshot, frozenset[str]]] = ({}, frozenset())


class KeysRead(NamedTuple):
    """What one look at the files found."""

    told: Snapshot
    own: KeyTable
    """By our own files alone."""
    stored: list[AdmittedKey]
    """All who are let in, and by whose files."""
    table: KeyTable
    """The same, to be asked."""
    mine: Mapping[str, str]
    """Those of our own files that others are told of."""


class Publishing(Protocol):
    """A PUB socket that can be bound anew."""

    def bind_anew(self) -> None: ...


class Curve:
    """One broker's keys, while it serves."""

    def __init__(self, context: zmq.Context[Socket], folder: KeyFolder) -> None:
        self.folder = folder
        self.own: CurveCertificate = folder.server()
        self.table: KeyTable = folder.table(read_now().wall)
        """Who is let in: by our own files, and by those of brokers whom we believe."""
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
        """What brokers said of themselves; the process says who knows."""
        self.dialed_user: Callable[[bytes], str] = lambda _: ""
        """Who is at an endpoint that was dialed; the dialer says."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-keys")
        self._publishers: Sequence[Publishing] = ()
        self._take: Take = lambda _: None
        self._lose: Lose = lambda *_: None
        self._looked: Callable[[], object] = lambda: None
        self._tell_gates()

    # Sockets.

    def serve(self, socket: Socket, domain: str) -> None:
        """Whoever connects to this socket needs a key that is stored for it."""
        if domain not in ROLES_OF:
            raise AssertionError(f"{domain} is no socket of a broker's")
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.own.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, domain.encode())
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def call(self, socket: Socket, server_key: str) -> None:
        """This socket goes to a broker that must have this key."""
        set_client(socket, self.own, server_key)

    def gate(self, door: str) -> Authenticator:
        """Whoever speaks at this ROUTER passes here."""
        return self._gates[door]

    def candidates(self, endpoint: str) -> list[str]:
        """Keys that the broker at an endpoint may have: the one that it said, else any that is stored for a peer."""
        peers = sorted(key for key in self.table.keys if key.role == PEER and not key.expires)
        stored, said = [key.public for key in peers], self.server_keys(endpoint)
        if said in stored:
            return [said]
        return [key.public for key in peers if key.endpoint == endpoint] or stored

    def peer_of(self, public: str) -> str:
        """The user of a peer's key; blank: it is not stored."""
        key = self.table.find(PEER, public)
        return key.user if key is not None else ""

    def user_of(self, door: str, routing_id: bytes) -> str:
        """Who sent the message that is being looked at."""
        gate = self._gates.get(door)
        if gate is not None:
            return gate.user
        return self.dialed_user(routing_id) if door == DIALED else ""

    # Changes.

    def attach(self, publishers: Sequence[Publishing], take: Take, lose: Lose, looked: Callable[[], object]) -> None:
        """Who hears of changes: `lose`, in a turn by `take`, of users who are such no more; `looked`, of every look."""
        self._publishers, self._take, self._lose, self._looked = publishers, take, lose, looked

    def share(self, share: KeyReplication | None, identity: str) -> None:
        """Tell and believe other brokers; None: do neither, and forget what was told."""
        self._share, self._identity = share, identity
        told = read_told(self.folder.path)
        if share is None:
            write_told(self.folder.path, {}, told)
            return
        share.load(told)
        share.on_told = self._news.set

    async def watch(self) -> None:
        """Look at the folder now and then, and when other brokers told something; for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
                await asyncio.sleep(GATHER_SECONDS)
            try:
                await self.look()
            except OSError as error:
                log.warning("the folder of keys cannot be read: %s", error, extra=about())

    async def look(self) -> None:
        """Look at the folder; the loop goes on meanwhile."""
        self._news.clear()
        told = self._share.snapshot() if self._share is not None else NOTHING_TOLD
        loop = asyncio.get_running_loop()
        self.change(await loop.run_in_executor(self._thread, self._read, *told))
        # That a key is gone does not wait for a disk.
        await loop.run_in_executor(self._thread, self._write)

    def look_now(self) -> None:
        """The same at once, for a start."""
        self.change(self._read(*(self._share.snapshot() if self._share is not None else NOTHING_TOLD)))

    async def enrol(self, ask: StoreKey) -> Refusal | None:
        """Use up a token and store a key; whoever has it may connect when this returns."""
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
        """These are the keys of our own files, and those of all who are let in, from now on."""
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
        """Nobody is let in any more."""
        self.zap.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, told: Snapshot, changed: frozenset[str]) -> KeysRead:
        """In the thread, and nowhere else once the broker serves."""
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
        """In the thread: keep what was told last, over restarts; not for each change of many."""
        now = read_now().mono
        if self._unwritten and now - self._wrote >= WRITE_SECONDS:
            self._wrote = now
            try:
                write_told(self.folder.path, self._read_last.told, self._unwritten)
                self._unwritten = set()
            except OSError as error:
                # A full disk must keep nobody in whose key is gone.
                log.warning("what other brokers told of keys cannot be stored: %s", error, extra=about())

    def _tell_gates(self) -> None:
        for door, gate in self._gates.items():
            gate.know(self.table.users(door))

    def _allows(self, domain: str, public: str) -> bool:
        key = self.table.find(domain, public)
        return key is not None and (not key.expires or read_now().wall < key.expires)
