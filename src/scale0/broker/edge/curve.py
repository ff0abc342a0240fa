"""CURVE on a broker's sockets: connects the key folder and replicated keys with the sockets and the broker core.

Invariants: within KEY_POLL_SECONDS and one turn, a revoked or expired key is admitted nowhere, its messages are
dropped and nothing more is sent to it; the loop never waits for a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from scale0.broker.cluster.key_replication import KeyReplication, SharedKey, Snapshot, places_of
from scale0.broker.cluster.replicated_keys import AdmittedKey, admitted_keys, clash, other_use
from scale0.broker.core.enrolment import KEY_IN_USE, LearnPeerKey, StoreKey
from scale0.broker.core.key_expiry import DailyReport, extend_command
from scale0.broker.core.keys import ROLES_OF, Keys, KeyTable, table_at
from scale0.broker.edge.key_folder import KeyFolder, reserved_text
from scale0.broker.edge.replicated_key_folder import read_replicated_keys, write_replicated_keys
from scale0.broker.edge.server_rotation import (
    PreviousKeyUsage,
    ServerPairs,
    UsageOfPrevious,
    read_server_pairs,
    read_usage,
    write_usage,
)
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.confirmed_clock import ConfirmedClock
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import ConfigError, Refusal
from scale0.kernel.log_context import about
from scale0.transport.core import z85
from scale0.transport.core.sockets import DIALED, PEER
from scale0.transport.core.zmtp_curve import CurveServer
from scale0.transport.edge.curve_certificates import CurveCertificate

log = logging.getLogger("scale0.keys")

KEY_POLL_SECONDS: Final = 0.5
"""How often the files of keys are read again."""
GATHER_SECONDS: Final = 0.05
WRITE_SECONDS: Final = 1.0
"""The shortest time between two writes of replicated keys; their owners have them on disk as well."""

Take = Callable[[Callable[[Now, Effects], None]], None]
Lose = Callable[[Collection[str], Now, Effects], None]
RecordExpired = Callable[[str, str, Now, Effects], None]
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
    mine: Mapping[str, SharedKey]
    """The keys of our own files that are replicated."""


class KeyedServer(Protocol):
    """A socket that accepts messages of known keys."""

    name: str
    users: Mapping[str, str] | None
    programs: Container[str]
    sender: str

    def disconnect_keys(self, public_keys: Container[str]) -> None: ...
    def users_of(self, server_key: bytes) -> dict[str, int]: ...


def previous_of(pairs: ServerPairs) -> str:
    return pairs.previous.public if pairs.previous is not None else ""


class Curve:
    def __init__(self, folder: KeyFolder, last_wall: float = 0.0, reserved: frozenset[str] = frozenset()) -> None:
        """`last_wall`: the time that counted before the start; 0: none is known. `reserved`: names of
        administrators."""
        self.folder = folder
        self.pairs = read_server_pairs(folder)
        """Our own pairs: the current one, and during a rotation the previous one."""
        self._usage = UsageOfPrevious(read_usage(folder, previous_of(self.pairs)))
        self._usage_written = 0.0
        now = read_now()
        self._clock = ConfirmedClock(now, last_wall)
        self._daily_report = DailyReport()
        folder.reserved = self._reserved = reserved
        self.reserved: Callable[[], frozenset[str]] = lambda: reserved
        """The names of administrators, which no key may have; set by the process."""
        own = folder.table(now.wall)
        self.table: KeyTable = table_at(own.keys, self._clock.read(now))
        """The admitted keys: of our own files, and of trusted brokers."""
        self._read_last = KeysRead({}, own, [], self.table, {})
        self._known: KeysRead | None = None
        self._unwritten: set[str] = set()
        self._wrote = 0.0
        self._changed_keys = asyncio.Event()
        self._key_replication: KeyReplication | None = None
        self._identity = ""
        self._servers: dict[str, KeyedServer] = {}
        self.keys = Keys(self.user_of, self.table)
        self.keys.server = (self.own.public, previous_of(self.pairs))
        self.server_keys: ServerKeys = lambda _: ""
        """The keys that brokers announced; set by the process."""
        self.dialed_user: Callable[[bytes], str] = lambda _: ""
        """The user at a dialed endpoint; set by `PeerSockets`."""
        self.clock_suspect: Callable[[], bool] = lambda: False
        """Whether clients contradict the wall clock; set by the process."""
        self._refused: set[tuple[str, str]] = set()
        """User and socket of refused handshakes that are not recorded yet."""
        self._logged: set[str] = set()
        """Users whose refusal was logged since the keys last changed."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-keys")
        self._take: Take = lambda _: None
        self._lose: Lose = lambda *_: None
        self._record_expired: RecordExpired = lambda *_: None
        self._after_read: Callable[[], object] = lambda: None
        self.on_rotation: Callable[[Now, Effects], None] = lambda *_: None
        """Called in a turn when our own key has changed; set by the process."""
        self.store_local: Callable[[], None] = lambda: None
        """Stores our own key in the files of programs on this machine, in the thread; set by the process."""

    @property
    def own(self) -> CurveCertificate:
        """The pair that we announce."""
        return self.pairs.current

    # Sockets.

    def mechanism(self, domain: str) -> Callable[[bytes], CurveServer]:
        """For connections of this socket: a key that is stored for it is required."""
        if domain not in ROLES_OF:
            raise AssertionError(f"{domain} is no socket of a broker's")

        def why_not(public: bytes, server_key: bytes) -> str:
            return self._why_not(domain, z85.encode(public), z85.encode(server_key))

        def make(socket_type: bytes) -> CurveServer:
            secrets = [z85.decode(pair.secret) for pair in self.pairs.all]
            return CurveServer(secrets, socket_type, why_not, os.urandom)

        return make

    def candidates(self, endpoint: str) -> list[str]:
        """Possible keys of the broker at an endpoint: the one that it announced, or else all stored keys of peers."""
        peers = sorted(key for key in self.table.keys if key.role == PEER and not key.is_token)
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
        record_expired: RecordExpired,
        after_read: Callable[[], object],
    ) -> None:
        """Set the sockets and callbacks: in a turn by `take`, `lose` gets users with a removed key, and
        `record_expired` those whose handshake was refused; `after_read` is called after each check."""
        self._servers = {server.name: server for server in servers}
        self._set_users()
        self._take, self._lose, self._record_expired, self._after_read = take, lose, record_expired, after_read

    def start_replication(self, key_replication: KeyReplication | None, identity: str) -> None:
        """Replicate keys with other brokers; None: stop, and discard their keys."""
        self._key_replication, self._identity = key_replication, identity
        replicated, _ = read_replicated_keys(self.folder.path)
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
                await asyncio.wait_for(self._changed_keys.wait(), KEY_POLL_SECONDS)
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
        pairs = await loop.run_in_executor(self._thread, self._read_pairs)
        self.rotate(pairs)
        self.change(await loop.run_in_executor(self._thread, self._read, *replicated))
        await self._report_usage()
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
        for role in ask.roles:
            elsewhere = clash(role, ask.name, ask.public_key, stored)
            if elsewhere is not None:
                message = f"there is a key {elsewhere.key.name} in the files of {elsewhere.broker}: choose another name"
                return Refusal(codes.IN_USE, message)
        if other_use([(role, ask.name) for role in ask.roles], ask.public_key, stored) is not None:
            return Refusal(codes.IN_USE, KEY_IN_USE)
        refusal = await loop.run_in_executor(self._thread, self.folder.enrol, ask, read_now().wall)
        await self.read_folder()
        return refusal

    async def learn_peer_key(self, ask: LearnPeerKey) -> None:
        """Store the key that a peer announced, if our own files hold the key by which it is connected."""
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._thread, self.folder.learn_key, ask):
            log.warning("the broker %s has the key %s", ask.name, ask.server_key, extra=about(peer=ask.name))
            await self.read_folder()

    def _read_pairs(self) -> ServerPairs:
        """Runs in the thread. A pair that cannot be read changes nothing."""
        try:
            return read_server_pairs(self.folder)
        except ConfigError as error:
            raise OSError(str(error)) from error

    def rotate(self, pairs: ServerPairs) -> None:
        """Accept and announce these pairs of our own; open connections stay."""
        if pairs == self.pairs:
            return
        is_new = pairs.current.public != self.own.public
        self.pairs = pairs
        self._usage = UsageOfPrevious(PreviousKeyUsage(previous=previous_of(pairs)))
        self._usage_written = 0.0
        self.keys.server = (self.own.public, previous_of(pairs))
        step = (
            f"the previous one, {previous_of(pairs)}, is accepted as well" if pairs.previous else "no other is accepted"
        )
        log.warning("the key of this broker is %s; %s", self.own.public, step, extra=about())
        if is_new:
            self._thread.submit(self.store_local)
        self._take(self.on_rotation)

    async def _report_usage(self) -> None:
        """During a rotation, write who uses the previous key, at most once in WRITE_SECONDS."""
        now = read_now()
        if self.pairs.previous is None or now.mono - self._usage_written < WRITE_SECONDS:
            return
        self._usage_written = now.mono
        key = z85.decode(self.pairs.previous.public)
        counts = [server.users_of(key) for server in self._servers.values()]
        accepted = (each.user for each in self.table.keys if not each.is_token and not each.is_program)
        usage = self._usage.seen(counts, accepted, now.wall)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, write_usage, self.folder, usage)

    def change(self, read: KeysRead) -> None:
        """Apply the keys of our own files, and all admitted keys."""
        newer, known = read.table, self._known is read
        self._known = read
        if self._key_replication is not None and not known:
            self._key_replication.set_own_keys(read.mine)
            self._key_replication.rename(newer.keys)
            self._key_replication.keep(newer.brokers.values())
        if (newer.keys, newer.expired) != (self.table.keys, self.table.expired):
            lost = self.table.lost_users(newer)
            # A token's key is removed when it is consumed: the answer to that must still leave.
            gone = {each for key in self.table.keys if not key.is_token for each in key.publics}
            gone -= {each for key in newer.keys for each in key.publics}
            self.table = newer
            self._logged.clear()
            self.keys.know(newer)
            self._set_users()
            log.info("keys changed: %d admitted, %d revoked or expired", len(newer.keys), len(lost), extra=about())
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
        now = read_now()
        self.folder.reserved = self.reserved()
        own, time = self.folder.table(now.wall), self._clock.read(now, self.clock_suspect())
        for path, reason in self.folder.faults.items():
            if path not in known:
                log.warning("%s", reason, extra=about(file=str(path)))
        self.folder.sweep(time)
        soon = self._daily_report.text(own.keys, time, now.mono)
        if soon:
            log.warning("keys expire soon: %s; extend them with scale0 keys expire", soon, extra=about())
        last = self._read_last
        is_same = replicated is last.replicated and self.folder.reserved == self._reserved
        if not is_same or own.keys != last.own.keys or last.table.changes_at(time):
            self._reserved = self.folder.reserved
            stored = self._without_reserved(admitted_keys(own.keys, replicated, self._identity, self.own.public, time))
            mine = places_of(own.keys, self.folder.programs)
            self._read_last = KeysRead(replicated, own, stored, table_at((one.key for one in stored), time), mine)
        return self._read_last

    def _without_reserved(self, stored: list[AdmittedKey]) -> list[AdmittedKey]:
        """Without keys that other brokers replicated with the name of an administrator of this one."""
        for key in [one.key for one in stored if one.broker and one.key.name in self._reserved]:
            log.warning("a replicated key is not accepted: %s", reserved_text(key.name), extra=about())
        return [one for one in stored if not one.broker or one.key.name not in self._reserved]

    def _write(self) -> None:
        """Runs in the thread: store the keys for the next start, at most once in WRITE_SECONDS."""
        now = read_now().mono
        if now - self._wrote < WRITE_SECONDS:
            return
        self._wrote = now
        try:
            self.folder.write_accepted()
            self.folder.write_reserved()
            if self._unwritten:
                write_replicated_keys(self.folder.path, self._read_last.replicated, self._unwritten)
                self._unwritten = set()
        except OSError as error:
            # A full disk must not keep a removed key admitted.
            log.warning("cannot store the accepted keys for the next start: %s", error, extra=about())

    def _set_users(self) -> None:
        for name, server in self._servers.items():
            server.users = self.table.users(name)
            server.programs = self.folder.programs

    def _why_not(self, domain: str, public: str, server_key: str) -> str:
        key = self.table.find(domain, public)
        if key is not None:
            if self.pairs.previous is not None and not key.is_token:
                if server_key == self.own.public:
                    self._usage.note_moved(key.user)
                else:
                    self._usage.note(key.user, read_now().wall)
            # The table has no expired keys, but a token ends exactly.
            is_over = key.is_token and key.is_expired(read_now().wall)
            return "its token has expired" if is_over else ""
        expired = self.table.find_expired(domain, public)
        if expired is None:
            return "its key is not stored for this socket"
        reason = f"the key of {expired.user} has expired; extend it with {extend_command(expired)}"
        if expired.user not in self._logged:
            self._logged.add(expired.user)
            log.warning("refused a connection on the %s socket: %s", domain, reason, extra=about(socket=domain))
        if not self._refused:
            asyncio.get_running_loop().call_soon(self._take, self._record_refused)
        self._refused.add((expired.user, domain))
        return reason

    def _record_refused(self, now: Now, effects: Effects) -> None:
        for user, socket in sorted(self._refused):
            self._record_expired(user, socket, now, effects)
        self._refused.clear()
