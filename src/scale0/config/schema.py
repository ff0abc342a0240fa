"""The schemas of clients, Helen and agents, and the list of all schemas."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from scale0.config import value_types as types
from scale0.config.broker_file import BrokerConfig
from scale0.config.monitoring import CheckDefinition, Downtime, NotificationHandler, Silence
from scale0.config.network import GroupConfig, NetworkDocument
from scale0.config.value_types import DEFAULT_BACKEND_PORT, DEFAULT_HELEN_PORT, split_address


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's part of the network document, as CHECKCONFIG delivers it."""

    identity: types.IdentityOrBlank = ""
    services: tuple[types.ServiceName, ...] = ()
    group_config: tuple[GroupConfig, ...] = ()
    preferred_broker: types.IdentityOrBlank = ""
    heartbeat_interval: types.HeartbeatInterval = 1.0
    config_version: types.CountOrNone = 0
    checks: tuple[CheckDefinition, ...] = ()
    handlers: tuple[NotificationHandler, ...] = ()
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

    name: types.Identity
    command: types.Command


class MailServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The SMTP server for e-mails of handlers."""

    host: types.HostOrBlank = ""
    """Blank: there is none, and e-mail notices fail."""
    port: types.Port = 587
    sender: types.Line = ""
    user: types.Line = ""
    password_file: types.Line = ""
    """A file, so that no password is in a configuration that somebody prints."""
    tls: Literal["starttls", "tls", "off"] = "starttls"


class HelenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Helen's own file."""

    identity: types.Identity
    broker: types.BrokerAddress = f"tcp://127.0.0.1:{DEFAULT_BACKEND_PORT}"
    bind: types.Host = "127.0.0.1"
    helen_port: types.Port = DEFAULT_HELEN_PORT
    certificate: types.SomeLine
    private_key: types.SomeLine
    client_ca: types.SomeLine
    data_dir: types.SomeLine = "var"
    advertise: types.HostOrBlank = ""
    """The address for agents, if it is not `bind`."""
    max_agents: types.Count = 20_000
    heartbeat_seconds: HeartbeatSeconds = 30
    min_equus_version: types.IdentityOrBlank = ""
    """Agents with an older version are asked to reload, then refused; blank: no minimum."""
    commands: tuple[NoticeCommand, ...] = ()
    smtp: MailServer = MailServer()
    secrets_dir: types.Line = ""
    """Where `secret:NAME` of the network document is read; blank: `secrets` in `data_dir`."""
    segments: types.SegmentsLocation = ""
    """Where the journal is exported to; blank: a directory in `data_dir`."""
    segment_seconds: types.SegmentSeconds = 60.0
    segment_events: types.SegmentEvents = 250_000
    segments_keep_days: types.KeepDays = 90
    """0: no limit."""

    def broker_endpoint(self) -> str:
        """Where to connect, as an endpoint."""
        parts = split_address(self.broker, DEFAULT_BACKEND_PORT)
        return self.broker if parts is None else f"tcp://{parts[0]}:{parts[1]}"


class Plugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Nagios plugin that an agent may run; it never runs in a shell."""

    name: types.Identity
    command: types.Command


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's own file."""

    helen: types.HelenAddresses
    certificate: types.SomeLine
    private_key: types.SomeLine
    server_ca: types.SomeLine
    checks_dir: types.SomeLine = "checks"
    plugins: tuple[Plugin, ...] = ()
    check_timeout: types.CheckSeconds = 30.0
    data_dir: types.SomeLine = "var"
    labels: dict[types.LabelName, types.Line] = {}
    spool_bytes: types.Count = 67_108_864
    spool_age: types.Seconds = 604_800.0
    max_checks: CheckSlots = 64
    log_paths: tuple[types.Glob, ...] = ("/var/log/*",)
    """Globs of files that the check `log` may read; `*` also matches `/`."""
    plugin_user: types.IdentityOrBlank = ""
    """The user that runs plugins and Lua checks if the agent is root; blank: `nobody`."""
    secrets_dir: types.Line = ""
    """Where `secret:NAME` of the network document is read; blank: `secrets` in `data_dir`."""

    def helen_addresses(self) -> tuple[tuple[str, int], ...]:
        """Each Helen as (host, port), in order of preference."""
        parts = (split_address(text, DEFAULT_HELEN_PORT) for text in self.helen)
        return tuple(part for part in parts if part is not None)


SCHEMAS: Final = (BrokerConfig, NetworkDocument, ClientConfig, HelenConfig, AgentConfig)
"""The classes that `parse` and `render` support."""

OLD_SPELLINGS: Final = {"prefered_broker": "preferred_broker"}
"""Keys of the design notes that are accepted on input."""
