"""Operations on network documents: encoding, the first version, a client's part, and consistency checks.

The bytes of a document depend only on its content, so that equal documents have equal hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from scale0.config.broker_file import BrokerConfig
from scale0.config.monitoring import check_monitoring
from scale0.config.network import BrokerEntry, Endpoints, GroupConfig, NetworkDocument
from scale0.config.schema import ClientConfig
from scale0.config.tree import duplicates
from scale0.kernel.errors import ConfigError

HELEN_SERVICE: Final = "helen.check"
"""A client that offers it is a Helen, and gets the monitoring sections."""
MAX_VERSION: Final = 2**53 - 1
"""The largest version of a document: the largest integer that programs in every language read exactly from JSON."""

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def document_bytes(document: NetworkDocument) -> bytes:
    """The exact JSON that is published: compact, with keys as declared, and sorted keys in open objects."""
    return _ENCODER.encode(document)


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def _own_entry(config: BrokerConfig, written: BrokerEntry | None, endpoints: Endpoints) -> BrokerEntry:
    if written is None:
        return BrokerEntry(identity=config.identity, services=config.services, endpoints=endpoints)
    if written.endpoints == Endpoints():
        return msgspec.structs.replace(written, endpoints=endpoints)
    known = msgspec.structs.replace(written.endpoints, server_key=written.endpoints.server_key or endpoints.server_key)
    return msgspec.structs.replace(written, endpoints=known)


def _own_group(config: BrokerConfig, written: GroupConfig | None, endpoints: Endpoints) -> GroupConfig:
    group = written or GroupConfig(name=config.group)
    brokers = {broker.identity: broker for broker in group.brokers}
    brokers[config.identity] = _own_entry(config, brokers.get(config.identity), endpoints)
    fallback = group.fallback_groups or config.fallback_groups
    return msgspec.structs.replace(group, fallback_groups=fallback, brokers=tuple(brokers.values()))


def first_document(config: BrokerConfig, endpoints: Endpoints | None = None) -> NetworkDocument:
    """Version 1, from a broker's file. `endpoints`: where it really listens, if a port is 0."""
    if not config.identity:
        raise ConfigError(["identity: a broker needs one before it makes the network document"])
    groups = {group.name: group for group in config.group_config}
    own = _own_group(config, groups.get(config.group), endpoints or config.endpoints())
    groups[config.group] = own
    for group in list(groups.values()):
        for name in group.fallback_groups:
            # A file may name a fallback group without its brokers: these register when they join.
            groups.setdefault(name, GroupConfig(name=name))
    document = NetworkDocument(
        network=config.network,
        default_heartbeat_interval=config.default_heartbeat_interval,
        heartbeat_liveness=config.heartbeat_liveness,
        group_config=tuple(groups.values()),
    )
    errors = check_document(document)
    if errors:
        raise ConfigError(errors)
    return document


def client_config(
    document: NetworkDocument,
    identity: str,
    services: Sequence[str],
    group: str,
    preferred_broker: str,
    heartbeat_interval: float,
) -> ClientConfig:
    """The part for one client: its group and the fallback groups in order; for a Helen also the monitoring sections."""
    groups = {entry.name: entry for entry in document.group_config}
    own = groups.get(group)
    names = () if own is None else dict.fromkeys((group, *own.fallback_groups))
    part = ClientConfig(
        identity=identity,
        services=tuple(services),
        group_config=tuple(groups[name] for name in names if name in groups),
        preferred_broker=preferred_broker,
        heartbeat_interval=heartbeat_interval,
        config_version=document.version,
    )
    if HELEN_SERVICE not in services:
        return part
    return msgspec.structs.replace(
        part,
        checks=document.checks,
        handlers=document.handlers,
        downtimes=document.downtimes,
        silences=document.silences,
    )


def differ_only_in_version(one: ClientConfig, other: ClientConfig) -> bool:
    """True if nothing but the version differs, so that the client need not be notified."""
    return msgspec.structs.replace(one, config_version=other.config_version) == other


def _group_errors(group: GroupConfig, known: set[str]) -> list[str]:
    key = f"group_config.{group.name}.fallback_groups"
    out = [f"{key}: there is no group {name}" for name in group.fallback_groups if name not in known]
    if group.name in group.fallback_groups:
        out.append(f"{key}: a group cannot be its own fallback")
    return out + duplicates(key, group.fallback_groups)


def check_document(document: NetworkDocument) -> list[str]:
    """The errors of a document as a whole, though each key by itself is valid."""
    groups = document.group_config
    known = {group.name for group in groups}
    out = duplicates("group_config", (group.name for group in groups))
    out += duplicates("brokers", (broker.identity for group in groups for broker in group.brokers))
    for group in groups:
        out += _group_errors(group, known)
        for broker in group.brokers:
            if broker.services != "all":
                out += duplicates(f"group_config.{group.name}.brokers.{broker.identity}.services", broker.services)
    out += duplicates("services", (policy.name for policy in document.services))
    out += check_monitoring(document.checks, document.handlers, document.downtimes, document.silences)
    if document.version == 1 and document.parent:
        out.append("parent: version 1 has none")
    if document.version > MAX_VERSION:
        out.append(f"version: must be at most {MAX_VERSION}, not {document.version}")
    return out
