"""The frames of RFC 7 and RFC 18, and of one dialect: bytes to words and back.

Lives here: which byte means which command, and how long a message must be. Never here: when a word may be said.
Invariant: whatever the frames hold, reading them gives words or raises `Refusal`.

The routing id and one empty frame before the header are the door's business: RFC 7 has that frame in every message,
RFC 18 in none, and the broker answers as it was spoken to.

The dialect is what the package `majortomo` speaks. A client of it differs from RFC 18 in three ways: an empty frame
comes before the header, its commands have the numbers of the workers' (REQUEST 02, PARTIAL 03, FINAL 04), and replies
do not name the service. It is told apart by its requests: `MDPC02` after an empty frame *and* with the command 02.
RFC 18 has neither: its clients say 01, and 02 is a word that only a broker says. A worker of the dialect differs in the
empty frame only, and may leave out a reply's body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_service_name


class ClientForm(msgspec.Struct, frozen=True):
    """How one version of MDP/Client is written. An empty command is a frame that this version does not have."""

    header: bytes
    request: bytes
    partial: bytes
    final: bytes
    lead: bool = False
    """The speaker itself puts the empty frame first."""
    names_service: bool = True
    """Replies repeat the service."""


class WorkerForm(msgspec.Struct, frozen=True):
    """How one version of MDP/Worker is written. An empty command is one that this version does not have."""

    header: bytes
    ready: bytes
    request: bytes
    partial: bytes
    final: bytes
    """REPLY of 0.1, FINAL of 0.2."""
    heartbeat: bytes
    disconnect: bytes


CLIENT_01: Final = ClientForm(b"MDPC01", request=b"", partial=b"", final=b"")
CLIENT_02: Final = ClientForm(b"MDPC02", request=b"\x01", partial=b"\x02", final=b"\x03")
CLIENT_DIALECT: Final = ClientForm(
    b"MDPC02", request=b"\x02", partial=b"\x03", final=b"\x04", lead=True, names_service=False
)
WORKER_01: Final = WorkerForm(b"MDPW01", b"\x01", b"\x02", b"", b"\x03", b"\x04", b"\x05")
WORKER_02: Final = WorkerForm(b"MDPW02", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06")


def is_dialect(frames: Sequence[bytes], delimiter: bool) -> bool:
    """True for a request in the dialect; only for the header `MDPC02`."""
    return delimiter and len(frames) > 1 and frames[1] == CLIENT_DIALECT.request


def read_request(form: ClientForm, frames: Sequence[bytes], limit_bytes: int) -> tuple[str, Sequence[bytes]]:
    """A client's REQUEST: the service, and one body frame or more."""
    rest = frames[1:]
    if form.request:
        if not rest or rest[0] != form.request:
            raise Refusal(codes.UNKNOWN_COMMAND, "a client says nothing but REQUEST")
        rest = rest[1:]
    if len(rest) < 2:
        raise Refusal(codes.MALFORMED, "a REQUEST has a service and a body")
    return read_service(rest[0], limit_bytes), rest[1:]


def read_service(frame: bytes, limit_bytes: int) -> str:
    """A service's name: printable, not empty, not too long."""
    try:
        name = frame.decode()
    except UnicodeDecodeError:
        name = ""
    if not is_service_name(name, limit_bytes):
        raise Refusal(codes.MALFORMED, f"a service's name is 1 to {limit_bytes} printable bytes")
    return name


def read_answer(frames: Sequence[bytes], bodiless: bool) -> tuple[str, Sequence[bytes]]:
    """A worker's PARTIAL, FINAL or REPLY: the client's address, which is our own request id, and the body."""
    if len(frames) < (4 if bodiless else 5) or frames[3]:
        raise Refusal(codes.MALFORMED, "a reply has an address, an empty frame and a body")
    # An address that is not ASCII cannot be an id of ours; it must only stay different from all of them.
    return frames[2].decode("ascii", "replace"), frames[4:]


def write_reply(form: ClientForm, final: bool, service: str, bodies: Sequence[bytes]) -> list[bytes]:
    """REPLY, PARTIAL or FINAL to a client; a body that has no frame becomes one empty frame, as the RFCs want one."""
    out = [b"", form.header] if form.lead else [form.header]
    command = form.final if final else form.partial
    if command:
        out.append(command)
    if form.names_service:
        out.append(service.encode())
        out.extend(bodies or (b"",))
    else:
        out.extend(bodies)
    return out


def write_request(form: WorkerForm, address: str, bodies: Sequence[bytes]) -> list[bytes]:
    """REQUEST to a worker."""
    return [form.header, form.request, address.encode(), b"", *(bodies or (b"",))]
