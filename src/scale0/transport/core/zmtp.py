"""ZMTP 3 (ZeroMQ RFC 23 and 37): one connection, at either end, without I/O.

Bytes in, messages and bytes out. The routing id that a peer announces is ignored: a connection is known by the number
that its server gives it. Invariants: an error ends the connection and nothing else; a peer that has not authenticated
holds at most `MAX_HANDSHAKE_BYTES`, and afterwards at most twice `max_bytes`; each byte is copied a bounded
number of times, however it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from scale0.transport.core.buffer_account import CHUNK_BYTES

SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
VERSION: Final = b"\x03\x01"
GREETING_BYTES: Final = 64
MECHANISM_BYTES: Final = 20
MAX_HANDSHAKE_BYTES: Final = 8_192
"""The largest frame before the connection is ready: keys, a socket type and a few properties."""
EXCESS: Final = 16
"""How many times the parts of the longest message are read of one message."""
MAX_PING_CONTEXT: Final = 16

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
KNOWN_FLAGS: Final = MORE | LONG | COMMAND

ROUTER: Final = b"ROUTER"
DEALER: Final = b"DEALER"
XPUB: Final = b"XPUB"
SUB: Final = b"SUB"
ACCEPTED_TYPES: Final = {
    ROUTER: frozenset({b"REQ", b"DEALER", b"ROUTER"}),
    DEALER: frozenset({b"REP", b"DEALER", b"ROUTER"}),
    XPUB: frozenset({b"SUB", b"XSUB"}),
    SUB: frozenset({b"PUB", b"XPUB"}),
}
"""By the type of our socket: the types of peers."""

_LAST_HEADS: Final = tuple(bytes((0, size)) for size in range(256))
_MORE_HEADS: Final = tuple(bytes((MORE, size)) for size in range(256))


class ZmtpError(Exception):
    """The peer broke the protocol, or is not accepted."""


class MechanismError(ZmtpError):
    """The peer uses another security mechanism."""


class PeerRefusedError(ZmtpError):
    """The peer ended the handshake with an ERROR: it does not accept our key."""


class Cipher(Protocol):
    """How frames are encrypted after the handshake."""

    def decode(self, flags: int, body: bytes) -> tuple[int, bytes]:
        """The flags and content of a received frame. Raises ZmtpError."""
        ...

    def encode(self, frames: Sequence[bytes]) -> list[bytes]: ...
    def encode_command(self, body: bytes) -> bytes: ...


class Mechanism(Protocol):
    """A security mechanism: the handshake of one end."""

    name: bytes
    ready: bool
    properties: Mapping[bytes, bytes]
    """The peer's metadata, once `ready`."""

    @property
    def cipher(self) -> Cipher | None:
        """Once `ready`; None: frames are not encrypted."""
        ...

    def begin(self) -> bytes:
        """The first command of a client; empty at a server, which waits for it."""
        ...

    def answer(self, command: bytes, body: bytes) -> bytes:
        """Handle a command of the handshake; returns the command to send, or an empty one. Raises ZmtpError."""
        ...


class ZmtpSession:
    """One connection."""

    __slots__ = (
        *("_chunks", "_cipher", "_frames", "_greeted", "_have", "_max_bytes", "_max_parts", "_message_bytes"),
        *("_parts", "_socket_type", "_wanted", "commands", "mechanism", "minor", "outgoing"),
    )

    def __init__(
        self, socket_type: bytes, mechanism: Mechanism, max_bytes: int, max_parts: int, as_server: bool = True
    ) -> None:
        """A frame of more than `max_bytes` ends the connection. Of a message with more bytes or parts, the frames up to
        the limit are delivered, so that the owner can refuse it; EXCESS times as many parts end the connection."""
        self.mechanism = mechanism
        self.minor = 0
        """The minor version of the peer's protocol."""
        self.outgoing: list[bytes] = [greeting(mechanism.name, as_server)]
        """Bytes to send; the owner takes them after each call."""
        self._socket_type = socket_type
        self._max_bytes = max_bytes
        self._max_parts = max_parts
        self._cipher: Cipher | None = None
        self._greeted = False
        self._chunks: list[bytes] = []
        self._have = 0
        self._wanted = GREETING_BYTES
        """How many bytes must have arrived before parsing continues."""
        self._frames: list[bytes] = []
        """The first frames of a message whose last one has not arrived."""
        self._message_bytes = 0
        self._parts = 0
        """Frames of this message, those that were dropped included."""
        self.commands = 0
        """Commands after the handshake that are no messages; the owner resets it."""

    @property
    def ready(self) -> bool:
        return self.mechanism.ready

    @property
    def unfinished(self) -> int:
        """The memory of a message that has not arrived completely."""
        pieces = len(self._chunks) + len(self._frames)
        return self._have + self._message_bytes + CHUNK_BYTES * pieces if pieces else 0

    def clear(self) -> None:
        """The connection ended: forget the incomplete message."""
        self._chunks, self._frames = [], []
        self._have = self._message_bytes = 0

    def receive(self, data: bytes) -> list[list[bytes]]:
        """Handle received bytes; returns the complete messages. Raises ZmtpError."""
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._wanted:
                if not self._greeted:
                    check_signature(b"".join(self._chunks))
                return []
            data = b"".join(self._chunks)
            self._chunks = []
        start = 0
        if not self._greeted:
            start = self._greet(data)
            if not start:
                return []
        return self._parse(data, start)

    def encode(self, frames: Sequence[bytes]) -> list[bytes]:
        """The bytes of one message, in pieces."""
        return encode_plain(frames) if self._cipher is None else self._cipher.encode(frames)

    def ping(self) -> bytes:
        """A PING without a context: a live peer answers it. RFC 37 has it since version 3.1."""
        return self._encode_command(b"\x04PING\x00\x00")

    def _encode_command(self, body: bytes) -> bytes:
        return frame(COMMAND, body) if self._cipher is None else self._cipher.encode_command(body)

    def _greet(self, data: bytes) -> int:
        check_signature(data)
        if len(data) < GREETING_BYTES:
            self._keep(data, 0, GREETING_BYTES)
            return 0
        if data[10] < 3:
            raise ZmtpError(f"the peer uses version {data[10]} of ZMTP; this server accepts version 3")
        self.minor = data[11] if data[10] == 3 else 1
        mechanism = data[12 : 12 + MECHANISM_BYTES].rstrip(b"\0")
        if mechanism != self.mechanism.name:
            raise MechanismError(
                f"the peer uses the security mechanism {mechanism.decode('ascii', 'replace')},"
                f" and this end {self.mechanism.name.decode()}"
            )
        self._greeted = True
        first = self.mechanism.begin()
        if first:
            self.outgoing.append(frame(COMMAND, first))
        return GREETING_BYTES

    def _keep(self, data: bytes, start: int, wanted: int) -> None:
        """Wait for more bytes: `wanted` of them from `start` on."""
        rest = data[start:] if start else data
        self._wanted = wanted
        self._have = len(rest)
        self._chunks = [rest] if rest else []

    def _parse(self, data: bytes, position: int) -> list[list[bytes]]:
        end = len(data)
        messages: list[list[bytes]] = []
        frames = self._frames
        max_bytes, max_parts = self._max_bytes, self._max_parts
        while end - position >= 2:
            flags, size, head = data[position], data[position + 1], 2
            if flags & LONG:
                if end - position < 9:
                    self._keep(data, position, 9)
                    return messages
                size, head = int.from_bytes(data[position + 1 : position + 9], "big"), 9
            if size > max_bytes or not self.mechanism.ready:
                self._check_size(size)
            stop = position + head + size
            if stop > end:
                self._keep(data, position, head + size)
                return messages
            body = data[position + head : stop]
            position = stop
            if not self.mechanism.ready:
                self._shake_hands(flags, body)
                continue
            if self._cipher is not None:
                flags, body = self._cipher.decode(flags, body)
            if flags & COMMAND:
                message = self._command(body)
                if message is not None:
                    messages.append(message)
                continue
            if len(frames) < max_parts and self._message_bytes <= max_bytes:
                frames.append(body)
                self._message_bytes += len(body)
            if not flags & MORE:
                messages.append(frames)
                self._frames = frames = []
                self._message_bytes = self._parts = 0
                continue
            self._parts += 1
            if self._parts > EXCESS * max_parts:
                raise ZmtpError(f"a message has more than {EXCESS * max_parts} parts")
        self._keep(data, position, 2)
        return messages

    def _check_size(self, size: int) -> None:
        most = self._max_bytes if self.mechanism.ready else MAX_HANDSHAKE_BYTES
        if size > most:
            raise ZmtpError(f"a frame has {size} bytes; at most {most} are accepted")

    def _shake_hands(self, flags: int, body: bytes) -> None:
        if not flags & COMMAND:
            raise ZmtpError("a message arrived before the handshake was complete")
        name, rest = split_command(body)
        if name == b"ERROR":
            raise PeerRefusedError("the peer reports an error during the handshake")
        reply = self.mechanism.answer(name, rest)
        if reply:
            self.outgoing.append(frame(COMMAND, reply))
        if self.mechanism.ready:
            self._cipher = self.mechanism.cipher
            found = self.mechanism.properties.get(b"socket-type", b"")
            if found not in ACCEPTED_TYPES[self._socket_type]:
                raise ZmtpError(
                    f"a {found.decode('ascii', 'replace') or 'nameless'} socket cannot connect to a"
                    f" {self._socket_type.decode()} socket"
                )

    def _command(self, body: bytes) -> list[bytes] | None:
        """Handle a command after the handshake; a subscription becomes a message."""
        self.commands += 1
        name, rest = split_command(body)
        match name:
            case b"PING":
                if len(rest) < 2 or len(rest) > 2 + MAX_PING_CONTEXT:
                    raise ZmtpError("a PING has the wrong length")
                self.outgoing.append(self._encode_command(b"\x04PONG" + rest[2:]))
            case b"SUBSCRIBE" | b"CANCEL":
                self.commands -= 1
                return [(b"\x01" if name == b"SUBSCRIBE" else b"\x00") + rest]
            case b"ERROR":
                raise ZmtpError("the peer reports an error")
            case _:
                pass
        return None


class NullMechanism:
    """The mechanism NULL: no key, no encryption."""

    __slots__ = ("_is_client", "properties", "ready", "socket_type")

    name = b"NULL"
    cipher = None

    def __init__(self, socket_type: bytes, is_client: bool = False) -> None:
        self.socket_type = socket_type
        self._is_client = is_client
        self.ready = False
        self.properties: Mapping[bytes, bytes] = {}

    def begin(self) -> bytes:
        return self._own_ready() if self._is_client else b""

    def answer(self, command: bytes, body: bytes) -> bytes:
        if command != b"READY":
            raise ZmtpError("the handshake of NULL has one command, READY")
        self.properties = read_properties(body)
        self.ready = True
        return b"" if self._is_client else self._own_ready()

    def _own_ready(self) -> bytes:
        return b"\x05READY" + own_properties(self.socket_type)


def encode_plain(frames: Sequence[bytes]) -> list[bytes]:
    pieces: list[bytes] = []
    last = len(frames) - 1
    for number, body in enumerate(frames):
        size = len(body)
        if size > 255:
            pieces.append(long_head(LONG | MORE if number < last else LONG, size))
        else:
            pieces.append((_MORE_HEADS if number < last else _LAST_HEADS)[size])
        pieces.append(body)
    return pieces


def greeting(mechanism: bytes, as_server: bool) -> bytes:
    return SIGNATURE + VERSION + mechanism.ljust(MECHANISM_BYTES, b"\0") + bytes([as_server]) + bytes(31)


def check_signature(data: bytes) -> None:
    """Refuse other protocols as soon as their first bytes show it; ZMTP 1 and an HTTP request among them."""
    if data[:1] not in (b"", b"\xff") or (len(data) > 9 and data[9] != 0x7F):
        raise ZmtpError("the peer does not speak ZMTP 3")


def long_head(flags: int, size: int) -> bytes:
    return bytes((flags,)) + size.to_bytes(8, "big")


def frame(flags: int, body: bytes) -> bytes:
    size = len(body)
    return (bytes((flags, size)) if size <= 255 else long_head(flags | LONG, size)) + body


def split_command(body: bytes) -> tuple[bytes, bytes]:
    """The name of a command, and its content."""
    if not body or len(body) < 1 + body[0]:
        raise ZmtpError("a command has no name")
    return body[1 : 1 + body[0]], body[1 + body[0] :]


def own_properties(socket_type: bytes) -> bytes:
    return b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type


def read_properties(body: bytes) -> Mapping[bytes, bytes]:
    """The metadata of a handshake; names in lower case, because their case does not count."""
    found: dict[bytes, bytes] = {}
    position, end = 0, len(body)
    while position < end:
        name_end = position + 1 + body[position]
        value_at = name_end + 4
        if value_at > end:
            raise ZmtpError("the metadata of the handshake is cut off")
        value_end = value_at + int.from_bytes(body[name_end:value_at], "big")
        if value_end > end:
            raise ZmtpError("the metadata of the handshake is cut off")
        found[body[position + 1 : name_end].lower()] = body[value_at:value_end]
        position = value_end
    return found
