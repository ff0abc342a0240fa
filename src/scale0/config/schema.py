"""Every schema of configuration: a broker's file, the network document, a client's part, Helen's and an agent's file.

Lives here: what clients, Helen and agents read, and the one list of all schemas. Never here: the forms.
Invariant: values are frozen; a value that came through `parse` keeps every rule of its types.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.config.broker_file import Admin, BrokerConfig, Management, PeerShare
from scale0.config.network import BrokerEntry, Endpoints, GroupConfig, NetworkDocument, ServicePolicy
from scale0.config.values import (
    DEFAULT_BACKEND_PORT,
    DEFAULT_HELEN_PORT,
    BrokerAddress,
    Command,
    CountOrNone,
    HelenAddresses,
    Host,
    Identity,
    IdentityOrBlank,
    LabelName,
    Line,
    Named,
    Port,
    Seconds,
    ServiceName,
    SomeLine,
    split_address,
)


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's part of the network document, as CHECKCONFIG delivers it."""

    identity: IdentityOrBlank = ""
    services: tuple[ServiceName, ...] = ()
    group_config: tuple[GroupConfig, ...] = ()
    preferred_broker: IdentityOrBlank = ""
    heartbeat_interval: Seconds = 1.0
    config_version: CountOrNone = 0
    checks: tuple[Named, ...] = ()
    handlers: tuple[Named, ...] = ()
    downtimes: tuple[Named, ...] = ()
    silences: tuple[Named, ...] = ()


class HelenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Helen's own file."""

    identity: Identity
    broker: BrokerAddress = f"tcp://127.0.0.1:{DEFAULT_BACKEND_PORT}"
    bind: Host = "127.0.0.1"
    helen_port: Port = DEFAULT_HELEN_PORT
    certificate: SomeLine
    private_key: SomeLine
    client_ca: SomeLine
    data_dir: SomeLine = "var"

    def broker_endpoint(self) -> str:
        """Where to connect, as an endpoint."""
        parts = split_address(self.broker, DEFAULT_BACKEND_PORT)
        return self.broker if parts is None else f"tcp://{parts[0]}:{parts[1]}"


class Plugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Nagios plugin that an agent may run: never through a shell."""

    name: Identity
    command: Command


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's own file."""

    helen: HelenAddresses
    certificate: SomeLine
    private_key: SomeLine
    server_ca: SomeLine
    checks_dir: SomeLine = "checks"
    plugins: tuple[Plugin, ...] = ()
    check_timeout: Seconds = 30.0
    data_dir: SomeLine = "var"
    labels: dict[LabelName, Line] = {}

    def helen_addresses(self) -> tuple[tuple[str, int], ...]:
        """Each Helen as (host, port), in order of preference."""
        parts = (split_address(text, DEFAULT_HELEN_PORT) for text in self.helen)
        return tuple(part for part in parts if part is not None)


SCHEMAS: Final = (BrokerConfig, NetworkDocument, ClientConfig, HelenConfig, AgentConfig)
"""What `parse` and `render` are for."""

OLD_SPELLINGS: Final = {"prefered_broker": "preferred_broker"}
"""Keys of the design notes that are accepted on input."""

__all__ = [
    "OLD_SPELLINGS",
    "SCHEMAS",
    "Admin",
    "AgentConfig",
    "BrokerConfig",
    "BrokerEntry",
    "ClientConfig",
    "Endpoints",
    "GroupConfig",
    "HelenConfig",
    "Management",
    "NetworkDocument",
    "PeerShare",
    "Plugin",
    "ServicePolicy",
]
