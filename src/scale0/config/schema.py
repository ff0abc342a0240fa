"""Every schema of configuration: a broker's file, the network document, a client's part, Helen's and an agent's file.

Lives here: what clients, Helen and agents read, and the one list of all schemas. Never here: the forms.
Invariant: values are frozen; a value that came through `parse` keeps every rule of its types.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from scale0.config.broker_file import AdminConfig, BrokerConfig, ExportConfig, HttpConfig, PeerShare
from scale0.config.monitoring import CheckDefinition, Downtime, Flapping, Reaction, Silence
from scale0.config.network import BrokerEntry, Endpoints, GroupConfig, NetworkDocument, ServicePolicy
from scale0.config.value_types import (
    DEFAULT_BACKEND_PORT,
    DEFAULT_HELEN_PORT,
    BrokerAddress,
    Command,
    Count,
    CountOrNone,
    Glob,
    HelenAddresses,
    Host,
    HostOrBlank,
    Identity,
    IdentityOrBlank,
    KeepDays,
    LabelName,
    Line,
    Port,
    Seconds,
    SegmentEvents,
    SegmentSeconds,
    SegmentsLocation,
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
    checks: tuple[CheckDefinition, ...] = ()
    handlers: tuple[Reaction, ...] = ()
    downtimes: tuple[Downtime, ...] = ()
    silences: tuple[Silence, ...] = ()


MIN_CHECKS: Final = 8
"""An agent runs at least so many checks at once: the protocol promises it."""
MAX_CHECKS: Final = 1_000
MAX_HEARTBEAT_SECONDS: Final = 3_600

HeartbeatSeconds = Annotated[int, Meta(ge=1, le=MAX_HEARTBEAT_SECONDS)]
"""Whole, as `accepted` says it."""
CheckSlots = Annotated[int, Meta(ge=MIN_CHECKS, le=MAX_CHECKS)]


class NoticeCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that handlers may name: never run through a shell."""

    name: Identity
    command: Command


class MailServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where e-mail of handlers goes out."""

    host: HostOrBlank = ""
    """Blank: there is none, and such notices fail."""
    port: Port = 587
    sender: Line = ""
    user: Line = ""
    password_file: Line = ""
    """A file, so that the password stands in no configuration that somebody prints."""
    tls: Literal["starttls", "tls", "off"] = "starttls"


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
    advertise: HostOrBlank = ""
    """Where agents reach her, if it is not `bind`."""
    max_agents: Count = 20_000
    heartbeat_seconds: HeartbeatSeconds = 30
    min_equus_version: IdentityOrBlank = ""
    """Agents whose software is older are told to reload, then refused; blank: none is too old."""
    commands: tuple[NoticeCommand, ...] = ()
    smtp: MailServer = MailServer()
    segments: SegmentsLocation = ""
    """Where the journal is written out to; blank: a folder in `data_dir`."""
    segment_seconds: SegmentSeconds = 60.0
    segment_events: SegmentEvents = 250_000
    segments_keep_days: KeepDays = 90
    """0: for ever."""

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
    spool_bytes: Count = 67_108_864
    spool_age: Seconds = 604_800.0
    max_checks: CheckSlots = 64
    log_paths: tuple[Glob, ...] = ("/var/log/*",)
    """Files that the check `log` may read, as globs, where `*` goes through folders, too."""
    plugin_user: IdentityOrBlank = ""
    """Who plugins and Lua checks run as where the agent is root; blank: nobody."""

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
    "AdminConfig",
    "AgentConfig",
    "BrokerConfig",
    "BrokerEntry",
    "CheckDefinition",
    "ClientConfig",
    "Downtime",
    "Endpoints",
    "ExportConfig",
    "Flapping",
    "GroupConfig",
    "HelenConfig",
    "HttpConfig",
    "MailServer",
    "NetworkDocument",
    "NoticeCommand",
    "PeerShare",
    "Plugin",
    "Reaction",
    "ServicePolicy",
    "Silence",
]
