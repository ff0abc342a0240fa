"""The security mechanism CURVE of ZMTP (ZeroMQ RFC 26), both ends: one connection, without I/O.

Invariants: a server knows the client's public key before the connection is ready, and `why_not` has accepted it; a
client sends nothing before the server has proved its key; every frame has a nonce that is greater than the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nacl._sodium import ffi, lib  # type: ignore[import-not-found]
from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_open_easy_afternm,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

from scale0.transport.core.zmtp import COMMAND, LONG, MORE, ZmtpError, long_head, own_properties, read_properties

HELLO_BYTES: Final = 194
COOKIE_BYTES: Final = 96
BOX_BYTES: Final = 16
KEY_BYTES: Final = 32
CURVE_VERSION: Final = b"\x01\x00"
BYTES: Final = ffi.typeof("unsigned char[]")
INNER_MORE: Final = 1
INNER_COMMAND: Final = 2
WELCOME_BYTES: Final = 16 + BOX_BYTES + KEY_BYTES + COOKIE_BYTES
MESSAGE: Final = b"\x07MESSAGE"
FROM_CLIENT: Final = b"CurveZMQMESSAGEC"
FROM_SERVER: Final = b"CurveZMQMESSAGES"
MESSAGE_HEAD: Final = len(MESSAGE) + 8
REFUSED: Final = b"\x05ERROR\x03400"
"""What libzmq sends when its authenticator refuses a key: a client then does not try again at once."""

WhyNot = Callable[[bytes, bytes], str]
"""By the public keys of the client and of the server: why the client may not connect; blank if it may."""
RandomBytes = Callable[[int], bytes]


class KeyRefusedError(ZmtpError):
    """The key of the client is not accepted; it may be told so."""


class CurveServer:
    """The mechanism of the end that listens."""

    __slots__ = (
        *("_client_transient", "_cookie", "_random", "_secret", "_secrets", "_socket_type", "_transient_public"),
        *("_transient_secret", "_why_not", "cipher", "properties", "public_key", "ready"),
        "server_key",
    )

    name = b"CURVE"

    def __init__(self, secrets: Sequence[bytes], socket_type: bytes, why_not: WhyNot, random: RandomBytes) -> None:
        """`secrets`: the server's keys; the client chooses one of them."""
        self.ready = False
        self.properties: Mapping[bytes, bytes] = {}
        self.public_key = b""
        """The client's long-term key, once it has proved that it holds it."""
        self.server_key = b""
        """The public key of the server that the client expects, once it is known."""
        self._secrets = secrets
        self._secret = b""
        self._socket_type = socket_type
        self._why_not = why_not
        self._random = random
        self._cookie = b""
        self._transient_public = b""
        self._transient_secret = b""
        self._client_transient = b""
        self.cipher: CurveCipher | None = None

    def begin(self) -> bytes:
        return b""

    def answer(self, command: bytes, body: bytes) -> bytes:
        if command == b"HELLO" and not self._cookie:
            return self._welcome(body)
        if command == b"INITIATE" and self._cookie:
            return self._initiate(body)
        raise ZmtpError("a command of the CURVE handshake arrived out of order")

    def _welcome(self, body: bytes) -> bytes:
        if len(body) != HELLO_BYTES or body[:2] != CURVE_VERSION:
            raise ZmtpError("HELLO has the wrong length or version")
        client, nonce, box = body[74:106], body[106:114], body[114:]
        key = self._choose(client, b"CurveZMQHELLO---" + nonce, box)
        self._client_transient = client
        self._transient_secret = self._random(KEY_BYTES)
        self._transient_public = crypto_scalarmult_base(self._transient_secret)
        # The client returns it as it is; we keep the transient key ourselves, so it has no content.
        self._cookie = self._random(COOKIE_BYTES)
        long_nonce = self._random(16)
        box = crypto_box_easy_afternm(self._transient_public + self._cookie, b"WELCOME-" + long_nonce, key)
        return b"\x07WELCOME" + long_nonce + box

    def _choose(self, client: bytes, nonce: bytes, box: bytes) -> bytes:
        """Find the key that HELLO was made for; return what it has in common with the client's."""
        for secret in self._secrets:
            key = precomputed(client, secret)
            try:
                if crypto_box_open_easy_afternm(box, nonce, key) == bytes(64):
                    self._secret, self.server_key = secret, crypto_scalarmult_base(secret)
                    return key
            except (CryptoError, ValueError):
                continue
        raise ZmtpError("HELLO cannot be decrypted: the client expects another server key")

    def _initiate(self, body: bytes) -> bytes:
        least = COOKIE_BYTES + 8 + BOX_BYTES + KEY_BYTES + 96
        if len(body) < least or body[:COOKIE_BYTES] != self._cookie:
            raise ZmtpError("INITIATE has the wrong length or cookie")
        shared = precomputed(self._client_transient, self._transient_secret)
        nonce, box = body[COOKIE_BYTES : COOKIE_BYTES + 8], body[COOKIE_BYTES + 8 :]
        content = opened(shared, b"CurveZMQINITIATE" + nonce, box)
        client, vouch_nonce, vouch = content[:KEY_BYTES], content[32:48], content[48:128]
        proof = opened(precomputed(client, self._transient_secret), b"VOUCH---" + vouch_nonce, vouch)
        if proof != self._client_transient + self.server_key:
            raise ZmtpError("INITIATE does not prove that the client holds its key")
        properties = read_properties(content[128:])
        self.public_key = client
        reason = self._why_not(client, self.server_key)
        if reason:
            raise KeyRefusedError(reason)
        self.properties, self.ready = properties, True
        self.cipher = CurveCipher(shared, FROM_SERVER, 1, FROM_CLIENT, int.from_bytes(nonce, "big"))
        short = (1).to_bytes(8, "big")
        box = crypto_box_easy_afternm(own_properties(self._socket_type), b"CurveZMQREADY---" + short, shared)
        return b"\x05READY" + short + box


class CurveClient:
    """The mechanism of the end that connects."""

    __slots__ = (
        *("_cookie", "_public", "_random", "_secret", "_server_key", "_server_transient", "_socket_type"),
        *("_transient_public", "_transient_secret", "cipher", "properties", "ready"),
    )

    name = b"CURVE"

    def __init__(
        self, public: bytes, secret: bytes, server_key: bytes, socket_type: bytes, random: RandomBytes
    ) -> None:
        """Our long-term keys, and the public key that the server must prove."""
        self.ready = False
        self.properties: Mapping[bytes, bytes] = {}
        self.cipher: CurveCipher | None = None
        self._public, self._secret = public, secret
        self._server_key = server_key
        self._socket_type = socket_type
        self._random = random
        self._transient_secret = random(KEY_BYTES)
        self._transient_public = crypto_scalarmult_base(self._transient_secret)
        self._server_transient = self._cookie = b""

    def begin(self) -> bytes:
        shared = precomputed(self._server_key, self._transient_secret)
        short = (1).to_bytes(8, "big")
        box = crypto_box_easy_afternm(bytes(64), b"CurveZMQHELLO---" + short, shared)
        return b"\x05HELLO" + CURVE_VERSION + bytes(72) + self._transient_public + short + box

    def answer(self, command: bytes, body: bytes) -> bytes:
        if command == b"WELCOME" and not self._cookie:
            return self._initiate(body)
        if command == b"READY" and self._cookie:
            self._finish(body)
            return b""
        raise ZmtpError("a command of the CURVE handshake arrived out of order")

    def _initiate(self, body: bytes) -> bytes:
        if len(body) != WELCOME_BYTES:
            raise ZmtpError("WELCOME has the wrong length")
        content = opened(precomputed(self._server_key, self._transient_secret), b"WELCOME-" + body[:16], body[16:])
        self._server_transient, self._cookie = content[:KEY_BYTES], content[KEY_BYTES:]
        vouch_nonce = self._random(16)
        vouch = crypto_box_easy_afternm(
            self._transient_public + self._server_key,
            b"VOUCH---" + vouch_nonce,
            precomputed(self._server_transient, self._secret),
        )
        short = (2).to_bytes(8, "big")
        box = crypto_box_easy_afternm(
            self._public + vouch_nonce + vouch + own_properties(self._socket_type),
            b"CurveZMQINITIATE" + short,
            precomputed(self._server_transient, self._transient_secret),
        )
        return b"\x08INITIATE" + self._cookie + short + box

    def _finish(self, body: bytes) -> None:
        if len(body) < 8 + BOX_BYTES:
            raise ZmtpError("READY has the wrong length")
        shared = precomputed(self._server_transient, self._transient_secret)
        self.properties = read_properties(opened(shared, b"CurveZMQREADY---" + body[:8], body[8:]))
        self.cipher = CurveCipher(shared, FROM_CLIENT, 2, FROM_SERVER, int.from_bytes(body[:8], "big"))
        self.ready = True


class CurveCipher:
    """The frames of one connection after the handshake.

    It calls libsodium through PyNaCl's own interface: the checks and copies of `nacl.bindings` take as long as the
    encryption of a small frame."""

    __slots__ = ("_nonce", "_received", "_receives", "_sends", "_shared")

    def __init__(self, shared: bytes, sends: bytes, nonce: int, receives: bytes, received: int) -> None:
        """`sends` and `receives`: the prefix of the nonces in each direction; `nonce`, `received`: the last ones."""
        if len(shared) != KEY_BYTES:
            raise ValueError("a shared key has 32 bytes")
        self._shared = shared
        self._sends, self._nonce = sends, nonce
        self._receives, self._received = receives, received

    def decode(self, flags: int, body: bytes) -> tuple[int, bytes]:
        del flags  # those that count are encrypted
        size = len(body) - MESSAGE_HEAD - BOX_BYTES
        if size < 1 or body[:8] != MESSAGE:
            raise ZmtpError("a frame is not encrypted")
        short = body[8:16]
        nonce = int.from_bytes(short, "big")
        if nonce <= self._received:
            raise ZmtpError("a frame was repeated")
        self._received = nonce
        target = ffi.new(BYTES, size)
        source = ffi.from_buffer(body) + MESSAGE_HEAD
        if lib.crypto_box_open_easy_afternm(target, source, size + BOX_BYTES, self._receives + short, self._shared):
            raise ZmtpError("a frame cannot be decrypted")
        inner = target[0]
        return (COMMAND if inner & INNER_COMMAND else inner & MORE), ffi.buffer(target, size)[1:]

    def encode(self, frames: Sequence[bytes]) -> list[bytes]:
        last = len(frames) - 1
        return [self._seal(b"\x01" if number < last else b"\x00", body) for number, body in enumerate(frames)]

    def encode_command(self, body: bytes) -> bytes:
        return self._seal(b"\x02", body)

    def _seal(self, inner: bytes, body: bytes) -> bytes:
        self._nonce += 1
        short = self._nonce.to_bytes(8, "big")
        plain = inner + body
        sealed = len(plain) + BOX_BYTES
        target = ffi.new(BYTES, sealed)
        lib.crypto_box_easy_afternm(target, plain, len(plain), self._sends + short, self._shared)
        size = MESSAGE_HEAD + sealed
        head = bytes((0, size)) if size <= 255 else long_head(LONG, size)
        return b"".join((head, MESSAGE, short, ffi.buffer(target, sealed)))


def precomputed(public: bytes, secret: bytes) -> bytes:
    try:
        return crypto_box_beforenm(public, secret)
    except (CryptoError, RuntimeError) as error:
        raise ZmtpError("a public key is invalid") from error


def opened(key: bytes, nonce: bytes, box: bytes) -> bytes:
    try:
        return crypto_box_open_easy_afternm(box, nonce, key)
    except (CryptoError, ValueError) as error:
        raise ZmtpError("a command of the handshake cannot be decrypted") from error
