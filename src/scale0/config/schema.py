"""The schemas of clients, Helen and agents, and the list of all schemas."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from scale0.config.broker_file import BrokerConfig
from scale0.config.monitoring import CheckDefinition, Downtime, Reaction, Silence
from scale0.config.network import GroupConfig, NetworkDocument
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
"""The protocol guarantees that an agent runs at least this many checks concurrently."""
MAX_CHECKS: Final = 1_000
MAX_HEARTBEAT_SECONDS: Final = 3_600

HeartbeatSeconds = Annotated[int, Meta(ge=1, le=MAX_HEARTBEAT_SECONDS)]
"""A whole number, as in the message `accepted`."""
CheckSlots = Annotated[int, Meta(ge=MIN_CHECKS, le=MAX_CHECKS)]


class NoticeCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that handlers may name; it never runs in a shell."""

    name: Identity
    command: Command


class MailServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The SMTP server for e-mails of handlers."""

    host: HostOrBlank = ""
    """Blank: there is none, and e-mail notices fail."""
    port: Port = 587
    sender: Line = ""
    user: Line = ""
    password_file: Line = ""
    """A file, so that no password is in a configuration that somebody prints."""
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
    """The address for agents, if it is not `bind`."""
    max_agents: Count = 20_000
    heartbeat_seconds: HeartbeatSeconds = 30
    min_equus_version: IdentityOrBlank = ""
    """Agents with an older version are asked to reload, then refused; blank: no minimum."""
    commands: tuple[NoticeCommand, ...] = ()
    smtp: MailServer = MailServer()
    segments: SegmentsLocation = ""
    """Where the journal is exported to; blank: a directory in `data_dir`."""
    segment_seconds: SegmentSeconds = 60.0
    segment_events: SegmentEvents = 250_000
    segments_keep_days: KeepDays = 90
    """0: no limit."""

    def broker_endpoint(self) -> str:
        """Where to connect, as an endpoint."""
        parts = split_address(self.broker, DEFAULT_BACKEND_PORT)
        return self.broker if parts is None else f"tcp://{parts[0]}:{parts[1]}"


class Plugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Nagios plugin that an agent may run; it never runs in a shell."""

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
    """Globs of files that the check `log` may read; `*` also matches `/`."""
    plugin_user: IdentityOrBlank = ""
    """The user that runs plugins and Lua checks if the agent is root; blank: `nobody`."""

    def helen_addresses(self) -> tuple[tuple[str, int], ...]:
        """Each Helen as (host, port), in order of preference."""
        parts = (split_address(text, DEFAULT_HELEN_PORT) for text in self.helen)
        return tuple(part for part in parts if part is not None)


SCHEMAS: Final = (BrokerConfig, NetworkDocument, ClientConfig, HelenConfig, AgentConfig)
"""The classes that `parse` and `render` support."""

OLD_SPELLINGS: Final = {"prefered_broker": "preferred_broker"}
"""Keys of the design notes that are accepted on input."""
