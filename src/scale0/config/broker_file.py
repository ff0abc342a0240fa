"""The configuration file of a broker, and the errors that keep a broker with it from starting.

Every limit of `kernel.limits` is a key here, with the same name and default.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Literal

import msgspec

from scale0.config import value_types as types
from scale0.config.network import Endpoints, GroupConfig
from scale0.config.tree import duplicates
from scale0.config.value_types import split_address
from scale0.kernel.limits import Limits

_LIMITS: Final = Limits()
_HASH: Final = "$argon2"
"""The prefix of a hash: a plain password would be a secret in a file, and would not work."""
WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", "[::]"})
"""Addresses that mean every interface of this machine."""


class ExportConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of pushed metrics."""

    kind: Literal["otlp", "graphite", "statsd"]
    address: types.SomeLine
    """HOST:PORT, or for otlp a URL."""
    interval: types.Seconds = 10.0
    prefix: types.Identity = "scale0"
    headers_file: types.Line = ""
    """For otlp: a file with `name: value` lines, so that no key is in a configuration that somebody prints."""


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP server."""

    enabled: bool = False
    bind: types.Host = "127.0.0.1"
    port: types.Port = 5780
    certificate: types.Line = ""
    private_key: types.Line = ""
    """Both are files; required unless `bind` is loopback."""
    hosts: tuple[types.Host, ...] = ()
    """Host names that browsers may use, besides `bind` and localhost."""
    metrics_open: bool = False
    openapi_open: bool = False
    """`/metrics` needs no token."""
    exports: tuple[ExportConfig, ...] = ()


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user who may send admin commands."""

    auth_id: types.Identity
    password_hash: types.Secret
    role: Literal["admin", "operator", "viewer"] = "viewer"


class PeerShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How heartbeats are shared with one peer, if it differs from `heartbeat_share`."""

    peer: types.Endpoint
    heartbeat_share: types.HeartbeatShare


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key of a broker's file. Times in seconds, sizes in bytes."""

    identity: types.IdentityOrBlank = ""
    """Blank: generated at the first start and stored in `data_dir`."""
    network: types.Identity = "scale0"
    bind: types.Host = "127.0.0.1"
    advertise: types.HostOrBlank = ""
    """The address under which others reach this broker; blank: `bind`."""
    frontend_port: types.Port = 5700
    backend_port: types.Port = 5701
    peer_port: types.Port = 5702
    config_pub_port: types.Port = 5703
    task_pub_port: types.Port = 5704
    config_sub_ports: tuple[types.Endpoint, ...] = ()
    peers: tuple[types.Endpoint, ...] = ()
    heartbeat_share: types.HeartbeatShare = "push"
    peer_shares: tuple[PeerShare, ...] = ()
    state: Literal["joining", "active", "disabled"] = "joining"
    standby_for: types.IdentityOrBlank = ""
    """The broker whose clients it serves while that one is down; blank: it is no standby."""
    services: types.Services = "all"
    group: types.IdentityOrBlank = ""
    fallback_groups: tuple[types.Identity, ...] = ()
    group_config: tuple[GroupConfig, ...] = ()
    config_service: bool = False
    default_heartbeat_interval: types.HeartbeatInterval = 1.0
    heartbeat_liveness: types.Liveness = 3
    data_dir: types.SomeLine = "var"
    store: types.Store = "sqlite"
    segments: types.SegmentsLocation = ""
    """Where the journal is exported to; blank: a directory in `data_dir`."""
    segment_seconds: types.SegmentSeconds = 60.0
    segment_events: types.SegmentEvents = 250_000
    segments_keep_days: types.KeepDays = 90
    """0: no limit."""
    curve: bool | None = None
    """Whether clients need keys. Unset: they do, unless `insecure` is set, or `data_dir` was used without keys."""
    share_keys: bool = True
    """With `curve`: replicate the authorized keys of this broker to its peers, and accept theirs."""
    insecure: bool = False
    management: HttpConfig = HttpConfig()
    admins: tuple[AdminConfig, ...] = ()

    max_clock_skew: types.Seconds = _LIMITS.max_clock_skew
    max_message_bytes: types.Count = _LIMITS.max_message_bytes
    max_options_bytes: types.Count = _LIMITS.max_options_bytes
    max_batch_messages: types.Count = _LIMITS.max_batch_messages
    max_parts: types.Count = _LIMITS.max_parts
    max_services: types.Count = _LIMITS.max_services
    max_service_bytes: types.Count = _LIMITS.max_service_bytes
    max_clients: types.Count = _LIMITS.max_clients
    max_key_connections: types.Count = _LIMITS.max_key_connections
    max_client_bytes: types.Count = _LIMITS.max_client_bytes
    max_buffered_bytes: types.Count = _LIMITS.max_buffered_bytes
    max_key_buffered_bytes: types.CountOrNone = _LIMITS.max_key_buffered_bytes
    max_waiting_bytes: types.Count = _LIMITS.max_waiting_bytes
    max_key_waiting_bytes: types.CountOrNone = _LIMITS.max_key_waiting_bytes
    max_wait_bytes: types.Count = _LIMITS.max_wait_bytes
    max_key_wait_bytes: types.CountOrNone = _LIMITS.max_key_wait_bytes
    max_offer_bytes: types.Count = _LIMITS.max_offer_bytes
    max_key_offer_bytes: types.CountOrNone = _LIMITS.max_key_offer_bytes
    max_json_depth: types.JsonDepth = _LIMITS.max_json_depth
    max_slots: types.Count = _LIMITS.max_slots
    request_queue_limit: types.Count = _LIMITS.request_queue_limit
    task_queue_limit: types.Count = _LIMITS.task_queue_limit
    task_queue_bytes: types.Count = _LIMITS.task_queue_bytes
    delayed_task_limit: types.Count = _LIMITS.delayed_task_limit
    max_key_tasks: types.CountOrNone = _LIMITS.max_key_tasks
    max_key_task_bytes: types.CountOrNone = _LIMITS.max_key_task_bytes
    max_key_delayed: types.CountOrNone = _LIMITS.max_key_delayed
    kept_bytes: types.Count = _LIMITS.kept_bytes
    max_key_kept_bytes: types.CountOrNone = _LIMITS.max_key_kept_bytes
    task_client_limit: types.Count = _LIMITS.task_client_limit
    max_key_task_clients: types.CountOrNone = _LIMITS.max_key_task_clients
    request_timeout: types.Seconds = _LIMITS.request_timeout
    max_request_timeout: types.Seconds = _LIMITS.max_request_timeout
    max_outstanding: types.Count = _LIMITS.max_outstanding
    max_hops: types.CountOrNone = _LIMITS.max_hops
    error_client_limit: types.CountOrNone = _LIMITS.error_client_limit
    error_client_window: types.Seconds = _LIMITS.error_client_window
    error_client_ban: types.Seconds = _LIMITS.error_client_ban
    max_heartbeats_per_second: types.Rate = _LIMITS.max_heartbeats_per_second
    max_control_per_second: types.Count = _LIMITS.max_control_per_second
    max_service_changes_per_second: types.Count = _LIMITS.max_service_changes_per_second
    max_requests_per_second: types.Count = _LIMITS.max_requests_per_second
    frontend_idle: types.Seconds = _LIMITS.frontend_idle
    min_free_bytes: types.CountOrNone = _LIMITS.min_free_bytes
    mdp_heartbeat_interval: types.HeartbeatInterval = _LIMITS.mdp_heartbeat_interval

    def limits(self) -> Limits:
        """The limits of this broker."""
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})

    def share_with(self, peer: str) -> types.HeartbeatShare:
        """How heartbeats are shared with the peer at this endpoint."""
        for row in self.peer_shares:
            if row.peer == peer:
                return row.heartbeat_share
        return self.heartbeat_share

    def endpoints(self) -> Endpoints:
        """Where others connect, as far as the file determines it: blank for port 0 and a wildcard address."""
        host = self.advertise or self.bind
        if host in WILDCARDS:
            return Endpoints()
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"

        def at(port: int) -> str:
            return f"tcp://{host}:{port}" if port else ""

        return Endpoints(
            frontend=at(self.frontend_port),
            backend=at(self.backend_port),
            config_pub=at(self.config_pub_port),
            task_pub=at(self.task_pub_port),
            peer=at(self.peer_port),
        )


def is_loopback(host: str) -> bool:
    """True if nobody outside this machine can reach what is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _port_errors(config: BrokerConfig) -> list[str]:
    users: dict[int, list[str]] = {}
    names = ("frontend_port", "backend_port", "peer_port", "config_pub_port", "task_pub_port")
    for name in names:
        users.setdefault(getattr(config, name), []).append(name)
    if config.management.enabled:
        users.setdefault(config.management.port, []).append("management.port")
    return [f"{' and '.join(keys)} are both {port}" for port, keys in users.items() if port and len(keys) > 1]


def management_errors(management: HttpConfig) -> list[str]:
    """The errors that keep an HTTP server with these keys from starting."""
    out = []
    if bool(management.certificate) != bool(management.private_key):
        out.append("management: certificate and private_key go together")
    if management.enabled and not is_loopback(management.bind) and not management.certificate:
        out.append(f"management.bind: {management.bind} is not loopback: set certificate and private_key")
    if management.bind in WILDCARDS and management.enabled and not management.hosts:
        out.append("management.hosts: say by which names browsers reach it: it is bound to every address")
    for number, export in enumerate(management.exports):
        if export.headers_file and export.kind != "otlp":
            out.append(f"management.exports[{number}].headers_file: {export.kind} knows no headers")
        if export.kind == "otlp" and not export.address.startswith(("http://", "https://")):
            out.append(f"management.exports[{number}].address: otlp needs a URL, as http://127.0.0.1:4318/v1/metrics")
        if export.kind != "otlp" and split_address(export.address, 0) is None:
            out.append(f"management.exports[{number}].address: {export.kind} needs HOST:PORT")
    return out


def check_broker(config: BrokerConfig) -> list[str]:
    """The errors that keep a broker with this file from starting, though each key by itself is valid."""
    out = _port_errors(config)
    if not is_loopback(config.bind) and config.curve is False and not config.insecure:
        out.append(
            f"bind: {config.bind} is not loopback: set curve = true (or --curve), then let others in with"
            " `scale0 token frontend`, `scale0 token backend` or `scale0 token peer`;"
            " or set insecure = true (or --insecure) if the network is trusted"
        )
    if config.bind in WILDCARDS and config.config_service and not config.advertise:
        out.append(f"bind: nobody can connect to {config.bind}: set advertise to the address that others use")
    out += management_errors(config.management)
    if config.standby_for and config.standby_for == config.identity:
        out.append("standby_for: a broker cannot stand by for itself")
    if config.standby_for and not config.peers:
        out.append(f"standby_for: peers must have the address of {config.standby_for}: its peer_port")
    if config.group in config.fallback_groups:
        out.append(f"fallback_groups: {config.group} is the broker's own group")
    out += duplicates("fallback_groups", list(config.fallback_groups))
    out += duplicates("group_config", [group.name for group in config.group_config])
    out += duplicates("admins", [admin.auth_id for admin in config.admins])
    out += [
        f"admins[{number}].password_hash: not the hash of a password: `scale0 password` makes one for {admin.auth_id}"
        for number, admin in enumerate(config.admins)
        if not admin.password_hash.startswith(_HASH)
    ]
    out += duplicates("peers", list(config.peers))
    unknown = [row.peer for row in config.peer_shares if row.peer not in config.peers]
    out += [f"peer_shares: {peer} is not one of peers" for peer in unknown]
    if config.request_timeout > config.max_request_timeout:
        out.append("request_timeout: longer than max_request_timeout")
    return out
