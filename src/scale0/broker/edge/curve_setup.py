"""Set-up of a broker's keys: checks the folder, creates the broker's own pair, and admits programs on its machine.

Invariant: an existing pair is never overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from scale0.broker.core.broker import Broker
from scale0.broker.edge.curve import Curve
from scale0.broker.edge.key_folder import KeyFolder
from scale0.broker.edge.peer_sockets import PeerSockets
from scale0.broker.edge.replicated_key_folder import read_replicated_keys
from scale0.broker.edge.subscriber_socket import SubscriberSocket
from scale0.config import WILDCARDS, BrokerConfig, is_loopback
from scale0.kernel.clock import Now
from scale0.kernel.edge.runner import Runner
from scale0.kernel.effects import Effects
from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.transport.core.sockets import BACKEND, FRONTEND
from scale0.transport.edge import local_keys
from scale0.transport.edge.curve_certificates import LOCAL, SECRET_ENDING
from scale0.transport.edge.zmtp_publisher import ZmtpPublisher
from scale0.transport.edge.zmtp_server import ZmtpServer

log = logging.getLogger("scale0.keys")

LOOPBACK: Final = "127.0.0.1"
LOCAL_NAME: Final = "local"
MANAGEMENT: Final = "management"


def open_curve(config: BrokerConfig, last_wall: float = 0.0, had_keys: bool = False) -> Curve | None:
    """Open the keys if the configuration uses them; called before any socket is bound. `last_wall`: the time that
    counted before the start; `had_keys`: the store was used with keys. Raises ConfigError if keys that were accepted
    before cannot be read, or are gone."""
    folder = KeyFolder(Path(config.data_dir))
    if config.curve is None and not had_keys:
        log.warning(
            "%s was used without keys before, so every user of this machine can connect: --curve (or curve = true)"
            " makes keys for local programs, and requires tokens from others",
            folder.data_dir,
            extra=about(file=str(folder.data_dir)),
        )
    if not config.curve and not (config.curve is None and had_keys):
        return None
    folder.recall(had_keys)
    if config.share_keys:
        _, faults = read_replicated_keys(folder.path)
        if faults:
            raise ConfigError(faults)
    if folder.init():
        log.info("created a key for this broker: %s", folder.server_file, extra=about(file=str(folder.server_file)))
    return Curve(folder, last_wall, admin_names(config))


def admin_names(config: BrokerConfig) -> frozenset[str]:
    return frozenset(admin.auth_id for admin in config.admins)


def start_curve(
    curve: Curve | None, broker: Broker, sockets: Iterable[Any], publishers: Iterable[ZmtpPublisher], runner: Runner
) -> None:
    """Called when the sockets are bound: create keys for local programs, and connect the callbacks."""
    if curve is None:
        return
    curve.store_local = lambda: store_local(curve, broker)
    curve.store_local()
    curve.folder.store_endpoints(broker.state.endpoints)
    servers = [socket for socket in sockets if isinstance(socket, ZmtpServer)]
    servers += [publisher.server for publisher in publishers]
    callers = [socket for socket in sockets if isinstance(socket, PeerSockets | SubscriberSocket)]

    def after_read() -> None:
        for caller in callers:
            if isinstance(caller, PeerSockets):
                caller.review()
            else:
                caller.connect()

    curve.server_keys = broker.peers.server_key

    def on_rotation(now: Now, effects: Effects) -> None:
        broker.rotate_server_key(curve.own.public, now, effects)

    curve.on_rotation = on_rotation
    curve.reserved = lambda: admin_names(broker.state.config)
    curve.clock_suspect = lambda: broker.state.clock_suspect
    curve.attach(servers, runner.take, broker.lose_users, broker.permission_check.refuse_expired, after_read)
    curve.start_replication(broker.key_replication, broker.state.identity)
    curve.read_now_blocking()
    runner.take(curve.on_rotation)


def store_local(curve: Curve, broker: Broker) -> None:
    """Store keys for programs on this machine, with our own public key."""
    for role in (FRONTEND, BACKEND):
        places = local_places(broker.state.config, broker.state.endpoints[role])
        curve.folder.local(role, role, LOCAL_NAME, places, curve.own)
    curve.folder.local(MANAGEMENT, FRONTEND, MANAGEMENT, [], curve.own)


def link_keys(curve: Curve | None, endpoints: Mapping[str, str]) -> None:
    """Let programs of this user find the keys of this broker by its ports."""
    if curve is None:
        local_keys.forget(endpoints)
    else:
        local_keys.announce(curve.folder.path, endpoints)


def unlink_keys(curve: Curve | None, endpoints: Mapping[str, str]) -> None:
    if curve is not None:
        local_keys.withdraw(curve.folder.path, endpoints)


def management_key(config: BrokerConfig) -> Path:
    return KeyFolder(Path(config.data_dir)).path / LOCAL / f"{MANAGEMENT}{SECRET_ENDING}"


def local_places(config: BrokerConfig, endpoint: str) -> list[str]:
    """The endpoints by which programs on this machine reach a socket."""
    port = endpoint.rpartition(":")[2]
    hosts = [LOOPBACK] if config.bind in WILDCARDS or is_loopback(config.bind) else [config.bind]
    shown = [f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}" for host in hosts]
    if is_loopback(config.bind) and config.bind not in hosts:
        shown.append(f"tcp://{config.bind}:{port}")
    return list(dict.fromkeys([*shown, endpoint, *([f"tcp://localhost:{port}"] if LOOPBACK in hosts else [])]))
