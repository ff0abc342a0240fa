"""The messages of the line protocol between Helen and her agents, one class for each command, and their limits.

Version 1 has hello, check, result, reload and error; all others are version 2.
"""

from __future__ import annotations

from typing import Final

import msgspec

VERSION_1: Final = 1
"""hello, check, result, reload and error."""
VERSION_2: Final = 2

MAX_INT: Final = 2**31 - 1
"""An `<int>` is a non-negative int32."""
MAX_LINE_BYTES: Final = 8_192
"""The length of a line without its end of line."""
MAX_BLOB_BYTES: Final = 1_048_576
"""The length of a blob, inclusive."""
MAX_DATA_BYTES: Final = 16_384
"""The length of a blob of `data`."""


class Hello(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen, first."""

    version: int
    software: str


class Check(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: run this check now."""

    name: str
    message_id: int
    args: bytes


class Result(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen: the result of a check."""

    message_id: int
    name: str
    body: bytes


class Reload(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: restart with fresh checks."""


class Error(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: the agent made a mistake; the connection ends."""

    message: str


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: the agent is accepted in version 2, with this heartbeat interval."""

    heartbeat_seconds: int


class Redirect(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: connect to this `host:port`."""

    endpoint: str


class Ping(msgspec.Struct, frozen=True, gc=False):
    """In both directions."""

    message_id: int


class Pong(msgspec.Struct, frozen=True, gc=False):
    """In both directions: the answer to a ping."""

    message_id: int


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: run these checks on their schedule."""

    message_id: int
    body: bytes


class Report(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen: the result of a scheduled check. `sequence` counts from 1 on each connection, in sending order."""

    sequence: int
    name: str
    body: bytes


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: all reports of this connection up to `sequence` are stored."""

    sequence: int


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen: send me this file."""

    message_id: int
    name: str


class File(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: the file; empty: there is none."""

    message_id: int
    name: str
    body: bytes


class Upgrade(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: a new version of the agent."""

    message_id: int
    body: bytes


class Open(msgspec.Struct, frozen=True, gc=False):
    """In both directions: open a terminal."""

    message_id: int
    body: bytes


class Data(msgspec.Struct, frozen=True, gc=False):
    """In both directions: bytes of a terminal."""

    message_id: int
    body: bytes


class Resize(msgspec.Struct, frozen=True, gc=False):
    """In both directions: the new size of a terminal."""

    message_id: int
    columns: int
    rows: int


class Close(msgspec.Struct, frozen=True, gc=False):
    """In both directions: close a terminal."""

    message_id: int
    exit_status: int


class Enrol(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen, in place of hello: JSON `token` and `csr`; a renewal needs no token."""

    body: bytes


class Enrolled(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: the certificate chain (PEM); then the connection ends."""

    body: bytes


class UnknownMessage(msgspec.Struct, frozen=True, gc=False):
    """A line with a command that the agent does not know; it is logged and ignored."""

    line: str


OfBoth = Ping | Pong | Open | Data | Resize | Close

ToHelen = Hello | Result | Report | Fetch | Enrol | OfBoth
"""What an agent may send."""

ToAgent = (
    Check | Reload | Error | Accepted | Redirect | Schedule | Ack | File | Upgrade | Enrolled | OfBoth | UnknownMessage
)
"""What Helen may send."""

AgentMessage = ToHelen | ToAgent
