"""Typed values between Helen's sockets and her machine: one event for each received message, one answer for each reply.

The sockets and the machine share a process, so nothing is encoded between them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.config import ClientConfig, parse_existing
from scale0.kernel.errors import ConfigError

AGENTS: Final = "agents"
"""The name of the TLS socket for agents."""
NETWORK: Final = "network"
"""The name of the socket for requests and tasks of the Scale0 network."""


class ConnectionOpened(msgspec.Struct, frozen=True, gc=False):
    """A TLS handshake is complete. `name` and `serial` are empty if the client showed no certificate."""

    name: str
    serial: str
    """Of the certificate, in hexadecimal."""
    issued: int
    """When the certificate was issued, in seconds since the Unix epoch; 0: unknown."""
    address: str


class BytesReceived(msgspec.Struct, frozen=True, gc=False):
    """Bytes of an agent, cut anywhere."""

    data: bytes


class ConnectionClosed(msgspec.Struct, frozen=True, gc=False):
    """A connection is gone."""

    reason: str
    orderly: bool = False
    """The agent closed the connection; False: the connection was lost."""


class NetworkRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for one of Helen's services."""

    service: str
    timeout: float
    """Seconds until the client stops waiting."""
    body: bytes


class NetworkTask(msgspec.Struct, frozen=True, gc=False):
    """A task that Helen's machine runs."""

    task_id: str
    method: str
    params: bytes


class ConfigReceived(msgspec.Struct, frozen=True, gc=False):
    """Helen's part of the network configuration."""

    config: ClientConfig


class ConfigRejected(msgspec.Struct, frozen=True, gc=False):
    """Helen's part of the network configuration cannot be used; the previous one stays in force."""

    error: str


AgentEvent = ConnectionOpened | BytesReceived | ConnectionClosed
NetworkEvent = NetworkRequest | NetworkTask | ConfigReceived | ConfigRejected


class RequestReply(msgspec.Struct, frozen=True, gc=False):
    """The result of a request or a task."""

    body: bytes


class RequestError(msgspec.Struct, frozen=True, gc=False):
    """A request or a task failed."""

    code: int
    message: str


def read_config(body: bytes) -> ConfigReceived | ConfigRejected:
    """Parse Helen's part of the network configuration, once for all who need it."""
    try:
        return ConfigReceived(parse_existing(body, ClientConfig))
    except ConfigError as error:
        return ConfigRejected(str(error))
