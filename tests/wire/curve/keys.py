"""Brokers that require keys: raw sockets with CURVE, networks joined by token, and programs enrolled at one broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

import scale0
from scale0.broker.edge.join_tokens import join_peer, new_join_token
from scale0.broker.edge.key_folder import KeyFolder
from scale0.transport.edge.curve_certificates import new_certificate, write_pair
from scale0.transport.edge.joining import enrol
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.scale0.conftest import quiet_broker
from tests.wire.scale0.raw import Raw

SHAKEN = zmq.EVENT_HANDSHAKE_SUCCEEDED
ROUTERS = ("frontend", "backend", "peer")
PUBLISHERS = ("config_pub", "task_pub")
ROLES = ROUTERS
FOLDERS = {"frontend": "frontends", "backend": "backends", "peer": "peers"}


class Pair(NamedTuple):
    """Both halves of a key, in Z85."""

    public: bytes
    secret: bytes


def new_pair() -> Pair:
    return Pair(*zmq.curve_keypair())


class Lock:
    """A broker that wants keys, and its folder."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.folder = Path(broker.config["data_dir"]) / "keys"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._made: list[Any] = []

    @property
    def server_key(self) -> bytes:
        """As others read it: with pyzmq's own reader of certificates."""
        from zmq.auth import load_certificate

        return load_certificate(self.folder / "server" / "server.key")[0]

    def store(self, role: str, name: str, pair: Pair, allow: str = "") -> Path:
        """Let a key in, as an administrator with an editor would."""
        rules = f'    allow = "{allow}"\n' if allow else ""
        path = self.folder / FOLDERS[role] / f"{name}.key"
        partial = path.with_suffix(".partial")
        public = pair.public.decode()
        partial.write_text(f'metadata\n    name = "{name}"\n{rules}curve\n    public-key = "{public}"\n')
        partial.chmod(0o600)
        partial.rename(path)
        return path

    def new(self, role: str, name: str) -> Pair:
        """A key that is let in."""
        pair = new_pair()
        self.store(role, name, pair)
        self.admitted(role, pair)
        return pair

    def admitted(self, role: str, pair: Pair) -> None:
        """Wait until the broker has looked at its folder: libzmq does not try a key again that was refused once."""
        until(lambda: self._shakes(role, pair), "the key is let in")

    def refused(self, role: str, pair: Pair) -> None:
        """Wait until a key that was taken away is let in no more."""
        until(lambda: not self._shakes(role, pair), "the key is let in no more")

    def _shakes(self, role: str, pair: Pair) -> bool:
        socket = self.suited(zmq.DEALER, pair)
        monitor = socket.get_monitor_socket(SHAKEN | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        socket.connect(self.broker.endpoints[role])
        assert monitor.poll(round(PATIENCE_SECONDS * 1000)), "the handshake never ended"
        event = recv_monitor_message(monitor)["event"]
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)
        return bool(event == SHAKEN)

    def suited(self, kind: int, pair: Pair | None, server_key: bytes | None = None) -> zmq.Socket[bytes]:
        """A socket with a key, or with none; not connected."""
        socket = self.context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RECONNECT_IVL, 50)
        if pair is not None:
            socket.set(zmq.CURVE_SECRETKEY, pair.secret)
            socket.set(zmq.CURVE_PUBLICKEY, pair.public)
            socket.set(zmq.CURVE_SERVERKEY, server_key or self.server_key)
        self._made.append(socket)
        return socket

    def raw(self, socket_name: str, pair: Pair | None, routing_id: bytes = b"", server_key: bytes | None = None) -> Raw:
        """A connection that types frames."""
        raw = Raw.__new__(Raw)
        raw.adopt(self.suited(zmq.DEALER, pair, server_key))
        if routing_id:
            raw.socket.set(zmq.ROUTING_ID, routing_id)
        raw.socket.connect(self.broker.endpoints[socket_name])
        return raw

    def subscriber(self, socket_name: str, pair: Pair | None) -> zmq.Socket[bytes]:
        """A SUB socket that hears everything."""
        socket = self.suited(zmq.SUB, pair)
        socket.set(zmq.SUBSCRIBE, b"")
        socket.connect(self.broker.endpoints[socket_name])
        return socket

    def close(self) -> None:
        for socket in self._made:
            socket.close(linger=0)
        self.context.term()


@contextmanager
def locked(folder: Path, **config: Any) -> Iterator[Lock]:
    """A broker that wants keys."""
    with quiet_broker(folder, **{"curve": True, "default_heartbeat_interval": 60, **config}) as running:
        lock = Lock(running)
        try:
            yield lock
        finally:
            lock.close()


TOGETHER = {"group": "east", "default_heartbeat_interval": 0.5}


@contextmanager
def network(folder: Path, *names: str, **more: dict[str, Any]) -> Iterator[list[Lock]]:
    """The first one is there; each of the others joins the one before it, by token. `more`: for one of them."""
    with ExitStack() as stack:
        locks: list[Lock] = []
        for name in names:
            own: dict[str, Any] = {"identity": name, **TOGETHER, **more.get(name.replace("-", "_"), {})}
            if locks:
                at = locks[-1]
                token = new_join_token(KeyFolder(at.folder.parent), "peer", name, 60.0)
                assert join_peer(at.broker.endpoints["peer"], token, name, KeyFolder(folder / name / "data"))
                own |= {"state": "joining", "peers": [at.broker.endpoints["peer"]]}
            else:
                own["config_service"] = True
            locks.append(stack.enter_context(locked(folder / name, **own)))
        until(lambda: all(knows_all(lock, names) for lock in locks))
        yield locks


def knows_all(lock: Lock, names: tuple[str, ...]) -> bool:
    with client_of(lock) as client:
        states = {row["broker"]: row["state"] for row in client.brokers()}
    return all(states.get(name) in ("active", "standby") for name in names)


def client_of(lock: Lock, key: Path | None = None, **more: Any) -> scale0.Client:
    """A client at one broker, by the key of programs there or by one of its own."""
    return scale0.Client(
        lock.broker.endpoints["frontend"], key=key or lock.folder / "local" / "frontend.key_secret", **more
    )


def enrolled(lock: Lock, role: str, name: str) -> Path:
    """A program's pair, that one broker let in by token."""
    token = new_join_token(KeyFolder(lock.folder.parent), role, name, 60.0)
    pair = new_certificate(name=name, role=role, **{"server-key": token.server_key})
    path = lock.folder.parent.parent / f"{name}.key_secret"
    write_pair(path, pair)
    enrol(lock.broker.endpoints[role], token, name, pair.public)
    return path


def pair_in(file: Path) -> Pair:
    """Both halves, for a raw socket."""
    from zmq.auth import load_certificate

    public, secret = load_certificate(file)
    assert secret is not None
    return Pair(public, secret)
