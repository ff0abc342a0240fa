"""The folder `keys` of a broker: its own certificate, and the keys that it admits.

    keys/server/server.key_secret   the broker's own pair; server.key next to it is for others
    keys/frontends/NAME.key         and backends/, peers/: the admitted public keys, by role
    keys/tokens/ID.key              keys of unused tokens
    keys/local/NAME.key_secret      pairs for programs on this machine
    keys/told/BROKER.json           replicated keys of other brokers (`replicated_key_folder`)

Invariants: a key's name is its file's name; only their owner can read secrets; of several attempts to use a token
exactly one succeeds, because a rename is atomic; a folder or file that cannot be read is an error, and revokes nothing.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.broker.core.enrolment import StoreKey
from scale0.broker.core.keys import Key, KeyTable, is_name
from scale0.broker.edge.replicated_key_folder import REPLICATED
from scale0.kernel import codes
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import ConfigError, Refusal
from scale0.storage.data_dir import sync_directory
from scale0.transport.core.sockets import ROLES
from scale0.transport.edge.curve_certificates import (
    KEYS_FOLDER,
    LOCAL,
    OTHERS_WRITE,
    PUBLIC_ENDING,
    SECRET_ENDING,
    CurveCertificate,
    is_key,
    new_certificate,
    private_faults,
    read_certificate,
    read_pair,
    write_pair,
    write_public,
)

SERVER: Final = "server"
TOKENS: Final = "tokens"
PLACES: Final = "places.json"
"""Next to the broker's own pair: its endpoints."""
REVOKED: Final = ".revoked"
"""The ending of a key that `revoke` removed, so that it is known to be removed on purpose."""
CONFIRMED: Final = ".forget-missing"
"""The file with which an operator confirms that missing keys are revoked."""
MASS_KEYS: Final = 4
"""If at least so many keys, and more than half, vanish at once without `revoke`, an operator must confirm it."""
MAX_KEYS: Final = 100_000
"""Files of one folder that are read; the limit of a broker's clients."""

Signature = tuple[int, int, int]
"""Of a file: inode, size and time of the last change."""


class KeyTakenError(ValueError):
    """The name belongs to another key."""


class KeysMissingError(OSError):
    """Most files vanished at once: a lost directory or mount is more likely than a decision."""


class StoredKey(NamedTuple):
    signature: Signature
    key: Key | None


def folder_of(role: str) -> str:
    return f"{role}s"


class KeyFolder:
    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / KEYS_FOLDER
        self._read: dict[Path, StoredKey] = {}
        self.programs: set[str] = set()
        """Public keys of programs on this machine; they are not replicated."""
        self.faults: dict[Path, str] = {}
        """Invalid files, and why."""

    # The broker's own pair.

    def init(self) -> bool:
        """Create all folders and the broker's own pair; True if the pair is new."""
        for name in ("", SERVER, TOKENS, LOCAL, REPLICATED, *map(folder_of, ROLES)):
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.server_file.exists():
            return False
        pair = new_certificate(name="server")
        write_public(self.server_file.with_suffix(PUBLIC_ENDING), pair)
        write_pair(self.server_file, pair)
        sync_directory(self.path / SERVER)
        return True

    @property
    def server_file(self) -> Path:
        return self.path / SERVER / f"server{SECRET_ENDING}"

    def server(self) -> CurveCertificate:
        return read_pair(self.server_file)

    def store_endpoints(self, endpoints: dict[str, str]) -> None:
        """Store the broker's endpoints, for commands that show them."""
        write_secret(self.path / SERVER / PLACES, msgspec.json.encode(endpoints).decode())

    def places(self) -> dict[str, str]:
        """The broker's endpoints at its last start, by socket; empty if it never started."""
        try:
            return msgspec.json.decode((self.path / SERVER / PLACES).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}

    def check(self) -> list[str]:
        """Wrong permissions, each with the command that fixes it."""
        out = private_faults(self.path)
        for name in (SERVER, TOKENS, LOCAL):
            out += private_faults(self.path / name)
            for path in sorted((self.path / name).glob(f"*{SECRET_ENDING}")):
                out += private_faults(path)
        for name in (*map(folder_of, ROLES), REPLICATED):
            folder = self.path / name
            out += private_faults(folder, OTHERS_WRITE)
            for path in sorted(folder.glob("*.*")):
                out += private_faults(path, OTHERS_WRITE)
        return out

    # Admitted keys.

    def file_of(self, role: str, name: str) -> Path:
        if not is_name(name):
            raise ValueError("a key's name is 1 to 64 characters of A-Z a-z 0-9 . _ : -, and begins with no dot")
        return self.path / folder_of(role) / f"{name}{PUBLIC_ENDING}"

    def store(self, role: str, name: str, certificate: CurveCertificate) -> None:
        """Admit this key; raises KeyTakenError if the name belongs to another."""
        path = self.file_of(role, name)
        if path.exists() and read_certificate(path).public != certificate.public:
            raise KeyTakenError(f"there is a key {name} among the {folder_of(role)} already")
        write_public(path, certificate)
        revoked_file(path).unlink(missing_ok=True)
        sync_directory(path.parent)

    def revoke(self, role: str, name: str) -> bool:
        """Remove the key; False if it was not there."""
        path = self.file_of(role, name)
        try:
            path.rename(revoked_file(path))
        except FileNotFoundError:
            return False
        sync_directory(path.parent)
        return True

    def confirm_missing(self) -> None:
        """Let the broker revoke keys whose files vanished together."""
        write_secret(self.path / CONFIRMED, "")

    def table(self, wall: float) -> KeyTable:
        """All stored keys. Unchanged files are not read again. Raises OSError if the folder cannot be read, or most
        keys are missing; then the last table remains valid."""
        seen: dict[Path, StoredKey] = {}
        self.faults = {}
        for path, role, signature in self._files():
            known = self._read.get(path)
            stored = known if known is not None and known.signature == signature else self._load(path, role, signature)
            seen[path] = stored
        self._check_missing(seen)
        self._read = seen
        return KeyTable(
            one.key for one in seen.values() if one.key is not None and (not one.key.expires or wall < one.key.expires)
        )

    def _files(self) -> Iterator[tuple[Path, str, Signature]]:
        for folder, role in (*((folder_of(role), role) for role in ROLES), (TOKENS, "")):
            with os.scandir(self.path / folder) as entries:
                names = [entry for entry in entries if entry.name.endswith(PUBLIC_ENDING)][:MAX_KEYS]
            for entry in names:
                try:
                    found = entry.stat()
                except FileNotFoundError:
                    continue  # removed just now
                yield Path(entry.path), role, (found.st_ino, found.st_size, found.st_mtime_ns)

    def _check_missing(self, seen: dict[Path, StoredKey]) -> None:
        if not self._read:
            return
        confirmed = self._is_confirmed()
        stored = [path for path, one in self._read.items() if one.key is not None and not one.key.expires]
        missing = [path for path in stored if path not in seen and not revoked_file(path).exists()]
        if len(missing) >= MASS_KEYS and 2 * len(missing) > len(stored) and not confirmed:
            raise KeysMissingError(
                f"{len(missing)} of {len(stored)} keys are missing at once, {missing[0].name} among them; they are"
                " still accepted. Restore the files, or revoke them with `scale0 keys forget-missing`"
            )

    def _is_confirmed(self) -> bool:
        """Consume the operator's confirmation."""
        try:
            (self.path / CONFIRMED).unlink()
        except FileNotFoundError:
            return False
        return True

    def _load(self, path: Path, role: str, signature: Signature) -> StoredKey:
        name = path.name.removesuffix(PUBLIC_ENDING)
        try:
            certificate = read_certificate(path)
            expires = 0.0
            if not role:
                role, expires = certificate.metadata.get("role", ""), float(certificate.metadata.get("expires", "nan"))
            if not is_name(name) or role not in ROLES or expires != expires:
                raise ConfigError([f"{path}: that is no key's name or role"])
        except (ConfigError, ValueError) as error:
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                raise OSError(error.__cause__.errno, str(error)) from error
            self.faults[path] = str(error)
            return StoredKey(signature, None)
        return StoredKey(
            signature, Key(certificate.public, role, name, expires, certificate.metadata.get("endpoint", ""))
        )

    # Tokens.

    def new_token(self, role: str, name: str, expires: float) -> CurveCertificate:
        """Create the one-time pair of a token; only its public half is stored. `name` restricts it to one name."""
        id_ = secrets.token_hex(8)
        pair = new_certificate(role=role, name=name, expires=f"{expires:.0f}")
        path = self.path / TOKENS / f"{id_}{PUBLIC_ENDING}"
        write_public(path, pair)
        sync_directory(path.parent)
        return pair

    def enrol(self, ask: StoreKey, wall: float) -> Refusal | None:
        """Consume a token and store a key for its role; return a refusal if that fails."""
        try:
            metadata = read_certificate(self.path / TOKENS / f"{ask.token}{PUBLIC_ENDING}").metadata
            if float(metadata.get("expires", "0")) <= wall:
                raise ConfigError([])
        except (ConfigError, ValueError):
            return Refusal(codes.NOT_ALLOWED, "this token was used or has expired: make a new one")
        if metadata.get("name") not in ("", None, ask.name):
            return Refusal(codes.NOT_ALLOWED, f"this token is for {metadata['name']}")
        if not is_key(ask.public_key):
            return Refusal(codes.MALFORMED, "public_key must be a CURVE public key in Z85")
        if self.file_of(ask.role, ask.name).exists():
            return Refusal(codes.IN_USE, f"there is a key {ask.name} already: choose another name")
        if any(key.public == ask.public_key for key in self.table(wall).keys):
            return Refusal(codes.IN_USE, "this public key is stored already: make a new key pair")
        if self.use_token(ask.token) is None:
            return Refusal(codes.NOT_ALLOWED, "this token was used or has expired: make a new one")
        self.store(ask.role, ask.name, CurveCertificate(public=ask.public_key, metadata={"name": ask.name}))
        return None

    def use_token(self, id_: str) -> CurveCertificate | None:
        """Consume a token: exactly one caller gets it, and that survives a power loss."""
        path = self.path / TOKENS / f"{id_}{PUBLIC_ENDING}"
        used = path.with_name(f".{id_}.used-{secrets.token_hex(4)}")
        try:
            path.rename(used)
        except FileNotFoundError:
            return None
        sync_directory(path.parent)
        try:
            return read_certificate(used)
        finally:
            used.unlink(missing_ok=True)

    def sweep(self) -> None:
        now = time.time()
        for path, stored in list(self._read.items()):
            if stored.key is not None and stored.key.expires and stored.key.expires <= now:
                path.unlink(missing_ok=True)

    # Programs on this machine.

    def local(self, file: str, role: str, name: str, endpoints: list[str], server: CurveCertificate) -> Path:
        """A pair for programs on this machine. Its public key is stored under its role only when the pair is created,
        so that an administrator can revoke it.
        """
        path = self.path / LOCAL / f"{file}{SECRET_ENDING}"
        known = path.exists()
        pair = read_pair(path) if known else new_certificate()
        metadata = {"name": name, "role": role, "endpoint": " ".join(endpoints), "server-key": server.public}
        if pair.metadata != metadata:
            pair = CurveCertificate(public=pair.public, secret=pair.secret, metadata=metadata)
            write_pair(path, pair)
        self.programs.add(pair.public)
        if not known:
            self.file_of(role, name).unlink(missing_ok=True)
            self.store(role, name, CurveCertificate(public=pair.public, metadata={"name": name}))
        return path


def revoked_file(path: Path) -> Path:
    return path.with_name(f".{path.name}{REVOKED}")
