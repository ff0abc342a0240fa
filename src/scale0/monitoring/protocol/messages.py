"""The words of the line protocol between Helen and her agents: every message as a class, and every limit.

Lives here: frozen messages and numbers. Never here: bytes (`parser` and `encoder`), or what a message means to either
end. Invariant: one class per command; version 1 is HELLO to ERROR, everything below them is version 2.
"""

from __future__ import annotations

from typing import Final

import msgspec

VERSION_1: Final = 1
"""Exactly what the first note has: hello, check, result, reload, error."""
VERSION_2: Final = 2
"""What our own agents and Helens speak."""

MAX_INT: Final = 2**31 - 1
"""An `<int>` is an int32 without a sign."""
MAX_LINE_BYTES: Final = 8_192
"""Bytes of a line before its end of line."""
MAX_BLOB_BYTES: Final = 1_048_576
"""Bytes of a blob; exactly so many pass."""
MAX_DATA_BYTES: Final = 16_384
"""Bytes of a terminal's `data`."""


class Hello(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen, first."""

    version: int
    software: str


class Check(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: run this now."""

    name: str
    message_id: int
    args: bytes


class Result(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen: what a check found."""

    message_id: int
    name: str
    body: bytes


class Reload(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: begin again with fresh checks."""


class Error(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: you did something wrong; the connection ends."""

    message: str


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: version 2 is spoken; how often to be heard."""

    heartbeat_seconds: int


class Redirect(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: go there, `host:port`."""

    place: str


class Ping(msgspec.Struct, frozen=True, gc=False):
    """Both ways."""

    message_id: int


class Pong(msgspec.Struct, frozen=True, gc=False):
    """Both ways: the answer to a ping."""

    message_id: int


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: run these checks by yourself."""

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
    """agent → Helen: give me this file."""

    message_id: int
    name: str


class File(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: here it is; empty: there is none."""

    message_id: int
    name: str
    body: bytes


class Upgrade(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: there is another version of you."""

    message_id: int
    body: bytes


class Open(msgspec.Struct, frozen=True, gc=False):
    """Both ways: a terminal begins."""

    message_id: int
    body: bytes


class Data(msgspec.Struct, frozen=True, gc=False):
    """Both ways: bytes of a terminal."""

    message_id: int
    body: bytes


class Resize(msgspec.Struct, frozen=True, gc=False):
    """Both ways: a terminal has another size."""

    message_id: int
    columns: int
    rows: int


class Close(msgspec.Struct, frozen=True, gc=False):
    """Both ways: a terminal ends."""

    message_id: int
    exit_status: int


class Enrol(msgspec.Struct, frozen=True, gc=False):
    """agent → Helen, in place of hello: JSON `token` and `csr`; with a certificate it renews, and needs no token."""

    body: bytes


class Enrolled(msgspec.Struct, frozen=True, gc=False):
    """Helen → agent: the certificate chain, PEM; then the connection ends."""

    body: bytes


class UnknownMessage(msgspec.Struct, frozen=True, gc=False):
    """To an agent: a line whose command it does not know; it is logged, and work goes on."""

    line: str


ToHelen = Hello | Result | Ping | Pong | Report | Fetch | Open | Data | Resize | Close | Enrol
"""What an agent may say."""

ToAgent = (
    Check
    | Reload
    | Error
    | Accepted
    | Redirect
    | Ping
    | Pong
    | Schedule
    | Ack
    | File
    | Upgrade
    | Open
    | Data
    | Resize
    | Close
    | Enrolled
    | UnknownMessage
)
"""What Helen may say."""

Word = ToHelen | ToAgent
