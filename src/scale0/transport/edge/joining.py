"""Join a network with a token: the text form of a token, and ENROL from the client's side (PROTOCOL 11).

Invariants: the token's secret goes only to the broker whose key the token names; the client's own secret key never
leaves this machine; an error repeats neither.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import select
import socket
import struct
import time
from pathlib import Path
from typing import Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Scale0Error
from scale0.kernel.limits import Limits
from scale0.transport.core import codec, messages, z85
from scale0.transport.core.sockets import HELEN, ROLES
from scale0.transport.edge.curve_certificates import (
    SECRET_ENDING,
    CurveCertificate,
    client_mechanism,
    new_certificate,
    public_of,
    read_pair,
    write_pair,
)
from scale0.transport.edge.local_keys import config_folder
from scale0.transport.edge.zmtp_client import ConnectionEnd, ZmtpClient

PREFIX: Final = "s0join."
TOKEN_ROLES: Final = (*ROLES, HELEN)
"""The roles of tokens; their places here are in the text."""
ANSWER_SECONDS: Final = 10.0
"""How long a broker may take to answer."""
TOKEN_VISIBLE_SECONDS: Final = 2.0
"""A broker knows a new token within this time."""
RETRY_SECONDS: Final = 0.25
_PACKED: Final = struct.Struct(">B32s32sQ")
_TOKEN: Final = re.compile(r"s0join\.([A-Za-z0-9_-]{98})", re.ASCII)


class JoinError(Scale0Error):
    """Joining failed; `code` is one of `kernel.codes`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class UnknownTokenError(JoinError):
    """The broker rejects the token's key."""

    def __init__(self) -> None:
        message = "the broker rejects this token: it was used, has expired, or is for another role"
        super().__init__(codes.NOT_ALLOWED, message)


class KeyNamedError(JoinError):
    """The user has a key for this broker already, under another name."""

    def __init__(self, path: Path, known: str, name: str) -> None:
        super().__init__(codes.IN_USE, f"{path} is a key for this broker already, and its name is {known}, not {name}")
        self.path, self.name = path, name


class JoinToken(msgspec.Struct, frozen=True):
    role: str
    server_key: str
    secret: str
    expires: int
    """Wall clock."""

    def __repr__(self) -> str:
        return "JoinToken(…)"  # keeps the secret out of logs

    def text(self) -> str:
        keys = (z85.decode(self.server_key), z85.decode(self.secret))
        packed = _PACKED.pack(TOKEN_ROLES.index(self.role), *keys, self.expires)
        return PREFIX + base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def read_join_token(text: str) -> JoinToken | None:
    """Parse a token; None if the text is not a token."""
    found = _TOKEN.fullmatch(text.strip())
    if found is None:
        return None
    role, server_key, secret, expires = _PACKED.unpack(base64.urlsafe_b64decode(found[1] + "=="))
    if role >= len(TOKEN_ROLES):
        return None
    public, secret_key = map(z85.encode, (server_key, secret))
    return JoinToken(TOKEN_ROLES[role], public, secret_key, expires)


def key_path(endpoint: str, role: str) -> Path:
    """The user's key file for a broker's socket."""
    host = endpoint.removeprefix("tcp://").strip("[]").replace(":", "-").replace("]", "")
    return config_folder(os.environ) / f"{role}-{host}{SECRET_ENDING}"


def join_client(endpoint: str, token: JoinToken, name: str | None, default: str) -> tuple[Path, str, bool]:
    """Obtain a certificate for a broker's socket: the file, its name, and whether it is new. A token is needed only
    once. `name`: the name that the key must have; None: `default` for a new one."""
    path = key_path(endpoint, token.role)
    if path.exists() and (known := read_pair(path)).metadata.get("server-key") == token.server_key:
        if name is not None and known.name != name:
            raise KeyNamedError(path, known.name, name)
        return path, known.name, False
    name = name or default
    metadata = {"name": name, "role": token.role, "endpoint": endpoint, "server-key": token.server_key}
    pair = new_certificate(**metadata)
    write_pair(path, pair)
    try:
        enrol(endpoint, token, name, pair.public)
    except JoinError as error:
        if error.code != codes.NO_ANSWER:  # the broker may have stored it
            path.unlink(missing_ok=True)
        raise
    return path, name, True


def enrol(endpoint: str, token: JoinToken, name: str, public_key: str) -> messages.Enrolled:
    """Send ENROL, and return the answer; JoinError if it is rejected."""
    if token.expires <= time.time():
        raise JoinError(codes.NOT_ALLOWED, "the token has expired")
    end = time.monotonic() + TOKEN_VISIBLE_SECONDS
    while True:
        try:
            return _enrol(endpoint, token, name, public_key)
        except UnknownTokenError:
            # The token may be new: a broker reads its token folder periodically.
            if time.monotonic() >= end:
                raise
        time.sleep(RETRY_SECONDS)


def _enrol(endpoint: str, token: JoinToken, name: str, public_key: str) -> messages.Enrolled:
    token_key = CurveCertificate(public=public_of(token.secret), secret=token.secret)
    poll, (woken, waker) = select.poll(), socket.socketpair()
    poll.register(woken, select.POLLIN)
    connection = None

    def wake() -> None:
        with contextlib.suppress(OSError):  # it was closed meanwhile
            waker.send(b"\0")

    try:
        mechanism = client_mechanism(token_key, token.server_key)
        connection = ZmtpClient(endpoint, mechanism, Limits(), time.monotonic(), wake)
        connection.send(codec.encode(("ENROL", {"name": name, "public_key": public_key})))
        return _wait_for_answer(connection, poll)
    except ValueError as error:
        raise JoinError(codes.UNREACHABLE, f"{endpoint}: {error}") from error
    finally:
        if connection is not None:
            connection.close()
        woken.close()
        waker.close()


def _wait_for_answer(connection: ZmtpClient, poll: select.poll) -> messages.Enrolled:
    end, watched = time.monotonic() + ANSWER_SECONDS, -1
    while (left := end - time.monotonic()) > 0:
        found = connection.receive(time.monotonic())
        if found:
            return _read_answer(found[0])
        if connection.end is not None:
            raise _failure(connection.end)
        if watched >= 0:
            poll.unregister(watched)
        watched = connection.descriptor
        if watched >= 0:
            poll.register(watched, select.POLLIN | (select.POLLOUT if connection.wants_write else 0))
        poll.poll(left * 1_000)
    raise JoinError(codes.NO_ANSWER, "the broker does not answer")


def _failure(end: ConnectionEnd) -> JoinError:
    match end.cause:
        case "refused":
            return UnknownTokenError()
        case "mechanism":
            return JoinError(codes.NOT_ALLOWED, "the server at this address is unencrypted")
        case "handshake":
            return JoinError(codes.NOT_ALLOWED, "the server at this address is not the broker that issued this token")
        case _:
            return JoinError(codes.UNREACHABLE, "no broker answers at this address")


def _read_answer(frames: list[bytes]) -> messages.Enrolled:
    try:
        if frames[1] == b"ENROLLED":
            return msgspec.json.decode(frames[2], type=messages.Enrolled)
        error = msgspec.json.decode(frames[2], type=messages.DisconnectError)
    except (IndexError, msgspec.DecodeError):
        raise JoinError(codes.MALFORMED, "the broker sent an invalid answer") from None
    raise JoinError(error.code, error.message)
