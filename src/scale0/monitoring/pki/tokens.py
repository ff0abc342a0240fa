"""Enrolment tokens: each lets one agent enrol, once.

Invariants: only the SHA-256 of a token's secret is on disk, never the token; of all who use one token, in any number of
processes, exactly one succeeds, because a rename is atomic.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from scale0.config.value_types import DEFAULT_HELEN_PORT, split_address
from scale0.kernel.edge.secret_files import write_secret
from scale0.storage.data_dir import sync_directory

SECRET_BYTES: Final = 32
MAX_TOKEN_CHARS: Final = 1_000
_TOKEN: Final = re.compile(
    r"s1\.(?P<authority>[A-Za-z0-9_-]{43})\.(?P<secret>[A-Za-z0-9_-]{43})"
    r"(?:/(?P<name>[A-Za-z0-9._:-]{1,64}))?(?:@(?P<address>[!-~]{1,300}))?",
    re.ASCII,
)


class EnrolmentToken(msgspec.Struct, frozen=True):
    authority: bytes
    """SHA-256 of the CA certificate: the agent sends the secret only to this CA."""
    secret: str
    name: str = ""
    """The only name that it is valid for; blank: any name that is free."""
    address: str = ""
    """Helen's address; blank: the agent must know it."""

    def __repr__(self) -> str:
        return "Token(…)"  # a secret must not get into a log by accident

    def text(self) -> str:
        """The token as one word."""
        name = f"/{self.name}" if self.name else ""
        address = f"@{self.address}" if self.address else ""
        return f"s1.{_base64(self.authority)}.{self.secret}{name}{address}"


def new_token(authority: bytes, name: str, address: str) -> EnrolmentToken:
    return EnrolmentToken(authority, _base64(secrets.token_bytes(SECRET_BYTES)), name, address)


def read_token(text: str) -> EnrolmentToken | None:
    found = _TOKEN.fullmatch(text) if len(text) <= MAX_TOKEN_CHARS else None
    if found is None:
        return None
    address = found["address"] or ""
    if address and split_address(address, DEFAULT_HELEN_PORT) is None:
        return None
    authority = base64.urlsafe_b64decode(found["authority"] + "=")
    return EnrolmentToken(authority, found["secret"], found["name"] or "", address)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class StoredToken(msgspec.Struct, frozen=True):
    name: str
    expires: float
    """Wall clock."""


class EnrolmentTokens:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, token: EnrolmentToken, expires: float) -> None:
        path = self._path(token)
        write_secret(path, msgspec.json.encode(StoredToken(token.name, expires)).decode())
        sync_directory(self._folder)

    def find(self, token: EnrolmentToken) -> StoredToken | None:
        """What is stored of it; None: it is unknown, or was used."""
        try:
            return msgspec.json.decode(self._path(token).read_bytes(), type=StoredToken)
        except (OSError, msgspec.DecodeError):
            return None

    def use(self, token: EnrolmentToken) -> bool:
        """Consume it. True for exactly one caller, even after a power failure."""
        path = self._path(token)
        used = path.with_suffix(f".used-{secrets.token_hex(4)}")
        try:
            path.rename(used)
        except FileNotFoundError:
            return False
        sync_directory(self._folder)
        used.unlink(missing_ok=True)
        return True

    def remove_expired(self, now: float) -> None:
        """Delete expired tokens, and files that a killed process left."""
        for path in self._folder.glob("*.*"):
            try:
                expired = (
                    path.suffix != ".json" or msgspec.json.decode(path.read_bytes(), type=StoredToken).expires <= now
                )
            except (OSError, msgspec.DecodeError):
                expired = False
            if expired and not path.name.startswith("."):
                path.unlink(missing_ok=True)

    def _path(self, token: EnrolmentToken) -> Path:
        return self._folder / f"{hashlib.sha256(token.secret.encode()).hexdigest()}.json"
