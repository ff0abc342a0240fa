"""The frames of RFC 7 and RFC 18, and of one dialect. Invariant: for any frames, the readers return values or raise
`Refusal`.

The socket layer handles the routing id and one empty frame before the header: RFC 7 has that frame in every message,
RFC 18 in none, and the broker replies in the form of the request.

The dialect is that of the package `majortomo`. Its clients differ from RFC 18 in three ways: an empty frame comes
before the header, commands have the workers' numbers (REQUEST 02, PARTIAL 03, FINAL 04), and replies do not name the
service. Its requests identify it: `MDPC02` after an empty frame *and* with the command 02. RFC 18 has neither: its
clients send 01, and only a broker sends 02. Workers of the dialect differ only in the empty frame, and may omit a
reply's body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_service_name


class ClientForm(msgspec.Struct, frozen=True):
    """The frames of one version of MDP/Client. An empty command means that this version has no such frame."""

    header: bytes
    request: bytes
    partial: bytes
    final: bytes
    lead: bool = False
    """The handler itself puts the empty frame first."""
    names_service: bool = True
    """Replies repeat the service."""


class WorkerForm(msgspec.Struct, frozen=True):
    """The frames of one version of MDP/Worker. An empty command means that this version does not have it."""

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
    """Returns the service and at least one body frame of a client's REQUEST."""
    rest = frames[1:]
    if form.request:
        if not rest or rest[0] != form.request:
            raise Refusal(codes.UNKNOWN_COMMAND, "a client may send only REQUEST")
        rest = rest[1:]
    if len(rest) < 2:
        raise Refusal(codes.MALFORMED, "REQUEST needs a service and a body")
    return read_service(rest[0], limit_bytes), rest[1:]


def read_service(frame: bytes, limit_bytes: int) -> str:
    try:
        name = frame.decode()
    except UnicodeDecodeError:
        name = ""
    if not is_service_name(name, limit_bytes):
        raise Refusal(codes.MALFORMED, f"a service's name is 1 to {limit_bytes} printable bytes")
    return name


def read_answer(frames: Sequence[bytes], bodiless: bool) -> tuple[str, Sequence[bytes]]:
    """Returns the client's address, which is the broker's own request id, and the body of a PARTIAL, FINAL or REPLY."""
    if len(frames) < (4 if bodiless else 5) or frames[3]:
        raise Refusal(codes.MALFORMED, "REPLY needs an address, an empty frame and a body")
    # An address that is not ASCII is no request id; the replacement must only differ from all of them.
    return frames[2].decode("ascii", "replace"), frames[4:]


def write_reply(form: ClientForm, final: bool, service: str, bodies: Sequence[bytes]) -> list[bytes]:
    """Encodes REPLY, PARTIAL or FINAL; an empty body becomes one empty frame, because the RFCs require one."""
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
    return [form.header, form.request, address.encode(), b"", *(bodies or (b"",))]
