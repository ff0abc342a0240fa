"""The network document, which brokers replicate; ports, keys and admins are in each broker's own file."""

from __future__ import annotations

import msgspec

from scale0.config import value_types as types
from scale0.config.monitoring import CheckDefinition, Downtime, NotificationHandler, Silence


class Endpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a broker's sockets are reached; blank: not published."""

    frontend: types.EndpointOrBlank = ""
    backend: types.EndpointOrBlank = ""
    config_pub: types.EndpointOrBlank = ""
    task_pub: types.EndpointOrBlank = ""
    peer: types.EndpointOrBlank = ""
    server_key: types.CurveKeyOrBlank = ""
    """With CURVE: the public key of the broker on all of them."""


class BrokerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broker of a group."""

    identity: types.Identity
    services: types.Services = "all"
    endpoints: Endpoints = Endpoints()


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group. A blank name is the only group of a network without groups."""

    name: types.IdentityOrBlank
    fallback_groups: tuple[types.Identity, ...] = ()
    brokers: tuple[BrokerEntry, ...] = ()


class ServicePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one service, or of the tasks of one method; a missing key means the limit of the broker."""

    name: types.ServiceName
    request_queue_limit: types.Count | None = None
    timeout: types.Seconds | None = None
    retry: bool | None = None
    max_attempts: types.Count | None = None
    concurrency: types.Count | None = None


class NetworkDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PROTOCOL section 12. The order of the keys is the order in the published bytes."""

    network: types.Identity = "scale0"
    version: types.Count = 1
    default_heartbeat_interval: types.HeartbeatInterval = 1.0
    heartbeat_liveness: types.Liveness = 3
    group_config: tuple[GroupConfig, ...] = ()
    services: tuple[ServicePolicy, ...] = ()
    checks: tuple[CheckDefinition, ...] = ()
    handlers: tuple[NotificationHandler, ...] = ()
    downtimes: tuple[Downtime, ...] = ()
    silences: tuple[Silence, ...] = ()
    parent: types.HashOrBlank = ""
    """SHA-256 of the document that this one is based on; blank for the first."""
