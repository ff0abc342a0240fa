"""A TLS 1.3 client that writes its own records after the handshake, and so sends as many KeyUpdates as it wants."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

ALERT = b"\x15"
HANDSHAKE = b"\x16"
APPLICATION_DATA = b"\x17"


class RecordWriter:
    """What this client sends, encrypted with keys that it derives from a key log."""

    def __init__(self, key_log: Path, cipher: str) -> None:
        lines = [line.split() for line in key_log.read_text().splitlines()]
        [secret] = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._secret = bytes.fromhex(secret)
        self._hash: hashes.HashAlgorithm = hashes.SHA384() if cipher.endswith("SHA384") else hashes.SHA256()
        self._aead = ChaCha20Poly1305 if "CHACHA20" in cipher else AESGCM
        self._key_bytes = 16 if "128" in cipher else 32
        self._derive()

    def data(self, content: bytes) -> bytes:
        return self._record(content, APPLICATION_DATA)

    def close_notify(self) -> bytes:
        return self._record(b"\x01\x00", ALERT)

    def key_updates(self, number: int) -> bytes:
        return b"".join(self._key_update() for _ in range(number))

    def _key_update(self) -> bytes:
        record = self._record(b"\x18\x00\x00\x01\x00", HANDSHAKE)
        self._secret = self._expand(b"traffic upd", self._hash.digest_size)
        self._derive()
        return record

    def _derive(self) -> None:
        self._cipher = self._aead(self._expand(b"key", self._key_bytes))
        self._iv = int.from_bytes(self._expand(b"iv", 12), "big")
        self._sequence = 0

    def _expand(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label (RFC 8446, 7.1), without a context."""
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)

    def _record(self, content: bytes, kind: bytes) -> bytes:
        nonce = (self._iv ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        header = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        return header + self._cipher.encrypt(nonce, content + kind, header)


def take_over(agent: ssl.SSLSocket) -> tuple[socket.socket, RecordWriter]:
    """The plain socket of an agent that has sent nothing since its handshake, and the writer of its records."""
    cipher = agent.cipher()
    assert cipher is not None
    writer = RecordWriter(Path(agent.context.keylog_filename), cipher[0])
    raw = socket.socket(fileno=agent.detach())
    raw.settimeout(10)
    return raw, writer
