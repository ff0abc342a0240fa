"""The network document, which brokers replicate; ports, keys and admins are in each broker's own file."""

from __future__ import annotations

import msgspec

from scale0.config.monitoring import CheckDefinition, Downtime, Reaction, Silence
from scale0.config.value_types import (
    Count,
    CurveKeyOrBlank,
    EndpointOrBlank,
    HashOrBlank,
    Identity,
    IdentityOrBlank,
    Seconds,
    ServiceName,
    Services,
)


class Endpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a broker's sockets are reached; blank: not published."""

    frontend: EndpointOrBlank = ""
    backend: EndpointOrBlank = ""
    config_pub: EndpointOrBlank = ""
    task_pub: EndpointOrBlank = ""
    peer: EndpointOrBlank = ""
    server_key: CurveKeyOrBlank = ""
    """With CURVE: the public key of the broker on all of them."""


class BrokerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broker of a group."""

    identity: Identity
    services: Services = "all"
    endpoints: Endpoints = Endpoints()


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group. A blank name is the only group of a network without groups."""

    name: IdentityOrBlank
    fallback_groups: tuple[Identity, ...] = ()
    brokers: tuple[BrokerEntry, ...] = ()


class ServicePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one service, or of the tasks of one method; a missing key means the limit of the broker."""

    name: ServiceName
    request_queue_limit: Count | None = None
    timeout: Seconds | None = None
    retry: bool | None = None
    max_attempts: Count | None = None
    concurrency: Count | None = None


class NetworkDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PROTOCOL section 12. The order of the keys is the order in the published bytes."""

    network: Identity = "scale0"
    version: Count = 1
    default_heartbeat_interval: Seconds = 1.0
    heartbeat_liveness: Count = 3
    group_config: tuple[GroupConfig, ...] = ()
    services: tuple[ServicePolicy, ...] = ()
    checks: tuple[CheckDefinition, ...] = ()
    handlers: tuple[Reaction, ...] = ()
    downtimes: tuple[Downtime, ...] = ()
    silences: tuple[Silence, ...] = ()
    parent: HashOrBlank = ""
    """SHA-256 of the document that this one is based on; blank for the first."""
