"""Tokens that let one agent in, once.

Lives here: what a token says, and the folder in which Helen keeps those that nobody has used. Never here: what an agent
gets for one. Invariants: a token itself is on no disk of ours, only the SHA-256 of its secret; of all who use one, at
any moment and in any number of processes, exactly one succeeds, because a rename does.
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
    r"(?:/(?P<name>[A-Za-z0-9._:-]{1,64}))?(?:@(?P<place>[!-~]{1,300}))?",
    re.ASCII,
)


class EnrolmentToken(msgspec.Struct, frozen=True):
    """A token as it is given to an agent."""

    authority: bytes
    """SHA-256 of the authority's certificate: whom the agent may tell the secret."""
    secret: str
    name: str = ""
    """The only name that it is for; blank: any that is free."""
    place: str = ""
    """Where Helen is; blank: the agent must know."""

    def __repr__(self) -> str:
        return "Token(…)"  # a secret must not get into a log by chance

    def text(self) -> str:
        """One line, without blanks."""
        name = f"/{self.name}" if self.name else ""
        place = f"@{self.place}" if self.place else ""
        return f"s1.{_plain(self.authority)}.{self.secret}{name}{place}"


def new_token(authority: bytes, name: str, place: str) -> EnrolmentToken:
    """A token that nobody can guess."""
    return EnrolmentToken(authority, _plain(secrets.token_bytes(SECRET_BYTES)), name, place)


def read_token(text: str) -> EnrolmentToken | None:
    """A token from its line; None: it is none."""
    found = _TOKEN.fullmatch(text) if len(text) <= MAX_TOKEN_CHARS else None
    if found is None:
        return None
    place = found["place"] or ""
    if place and split_address(place, DEFAULT_HELEN_PORT) is None:
        return None
    authority = base64.urlsafe_b64decode(found["authority"] + "=")
    return EnrolmentToken(authority, found["secret"], found["name"] or "", place)


def _plain(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class StoredToken(msgspec.Struct, frozen=True):
    """What is remembered of a token."""

    name: str
    expires: float
    """Wall clock."""


class EnrolmentTokens:
    """The folder of tokens that nobody has used."""

    __slots__ = ("_folder",)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, token: EnrolmentToken, expires: float) -> None:
        """Let it be used until then."""
        path = self._path(token)
        write_secret(path, msgspec.json.encode(StoredToken(token.name, expires)).decode())
        sync_directory(self._folder)

    def find(self, token: EnrolmentToken) -> StoredToken | None:
        """What is remembered of it; None: it is unknown, or was used."""
        try:
            return msgspec.json.decode(self._path(token).read_bytes(), type=StoredToken)
        except (OSError, msgspec.DecodeError):
            return None

    def use(self, token: EnrolmentToken) -> bool:
        """Use it up. True for exactly one who tries, and it stays so after a loss of power."""
        path = self._path(token)
        used = path.with_suffix(f".used-{secrets.token_hex(4)}")
        try:
            path.rename(used)
        except FileNotFoundError:
            return False
        sync_directory(self._folder)
        used.unlink(missing_ok=True)
        return True

    def sweep(self, now: float) -> None:
        """Forget those whose time is over, and what a killed process left."""
        for path in self._folder.glob("*.*"):
            try:
                over = path.suffix != ".json" or msgspec.json.decode(path.read_bytes(), type=StoredToken).expires <= now
            except (OSError, msgspec.DecodeError):
                over = False
            if over and not path.name.startswith("."):
                path.unlink(missing_ok=True)

    def _path(self, token: EnrolmentToken) -> Path:
        return self._folder / f"{hashlib.sha256(token.secret.encode()).hexdigest()}.json"
