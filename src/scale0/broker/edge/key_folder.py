"""The folder `keys` of a broker: its own certificate, and the keys that it admits.

    keys/server/server.key_secret   the broker's own pair; server.key next to it is for others
    keys/frontends/NAME.key         and backends/, peers/: the admitted public keys, by role
    keys/tokens/ID.key              keys of unused tokens
    keys/local/NAME.key_secret      pairs for programs on this machine
    keys/told/BROKER.json           replicated keys of other brokers (`replicated_key_folder`)
    keys/reserved.json              names that no key may have: those of the broker's administrators

Invariants: a key's name is its file's name; only their owner can read secrets; of several attempts to use a token
exactly one succeeds, because a rename is atomic; a folder or file that cannot be read is an error, and revokes nothing;
nor does a file that became damaged, or the loss of many files at once (`accepted_keys`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.broker.core.enrolment import KEY_IN_USE, LearnPeerKey, StoreKey
from scale0.broker.core.keys import MAX_EXPIRES, Key, KeyTable, is_name
from scale0.broker.core.permissions import NO_RULES, KeyRules, read_rules, rules_error
from scale0.broker.edge.accepted_keys import AcceptedKeys, accepted_file, is_mass, read_accepted, write_accepted
from scale0.broker.edge.replicated_key_folder import REPLICATED
from scale0.kernel import codes
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import ConfigError, Refusal
from scale0.storage.data_dir import sync_directory
from scale0.transport.core.sockets import BACKEND, HELEN, PEER, ROLES
from scale0.transport.edge.curve_certificates import (
    KEYS_FOLDER,
    LOCAL,
    OTHERS_WRITE,
    PROGRAM,
    PUBLIC_ENDING,
    SECRET_ENDING,
    SERVER,
    CurveCertificate,
    is_key,
    new_certificate,
    private_faults,
    read_certificate,
    read_pair,
    write_pair,
    write_public,
)

TOKENS: Final = "tokens"
PLACES: Final = "places.json"
"""Next to the broker's own pair: its endpoints."""
RESERVED: Final = "reserved.json"
REVOKED: Final = ".revoked"
"""The ending of a key that `revoke` removed, so that it is known to be removed on purpose, until it is stored again."""
CONFIRMED: Final = ".forget-missing"
"""The file with which an operator confirms that missing keys are revoked."""
MAX_KEYS: Final = 100_000
"""Files of one folder that are read; the limit of a broker's clients."""

ALLOW: Final = "allow"
DENY: Final = "deny"
"""The metadata of a key's file that hold its permissions."""
EXPIRES: Final = "expires"
"""The metadata that holds when a key or a token expires, in seconds since the epoch."""
PREVIOUS: Final = "previous-key"
"""The metadata that holds the previous public key of a broker that rotates its key."""
HELENS: Final = "helen"
"""The metadata of a token whose key is stored in both roles of a Helen."""
KEY_SECONDS: Final = "key-seconds"
"""The metadata of a token that holds how long the key that it admits is valid."""

KEPT: Final = (
    "; the key that was read from it before is still accepted: restore the file, or `scale0 keys revoke {role} {name}`"
)
Signature = tuple[int, int, int]
"""Of a file: inode, size and time of the last change."""


class KeyTakenError(ValueError):
    """The name belongs to another key."""


class StoredKey(NamedTuple):
    signature: Signature
    key: Key | None


NOT_READ: Final[Signature] = (0, 0, 0)
"""Of a key that is known from the list of accepted keys only."""


def folder_of(role: str) -> str:
    return f"{role}s"


class KeyFolder:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.path = data_dir / KEYS_FOLDER
        self._read: dict[Path, StoredKey] = {}
        self._missing: set[Path] = set()
        """Files of accepted keys that vanished or became invalid together, until an operator confirms it."""
        self._written = AcceptedKeys()
        self.programs: set[str] = set()
        """Public keys of programs on this machine; they are not replicated."""
        self.reserved: frozenset[str] = frozenset()
        """Names of administrators: no key with one is accepted, except for programs on this machine."""
        self.faults: dict[Path, str] = {}
        """Invalid files, and why."""

    # The broker's own pair.

    def was_used(self) -> bool:
        """True if anything shows that this broker had keys. The folder of its own pair does not: a first start that was
        killed may have left a part of it."""
        folders = [folder for folder in self.path.glob("*") if folder.name != SERVER]
        files = (path for folder in folders for path in folder.glob("*"))
        return self.server_file.exists() or accepted_file(self.data_dir).exists() or any(files)

    def recall(self, had_keys: bool = False) -> None:
        """Called at the start, before `init`: know the keys that were accepted last. Raises ConfigError if they cannot
        be read, or the broker's own pair is gone. `had_keys`: the store says so."""
        if not self.server_file.exists() and (had_keys or self.was_used()):
            reason = (
                f"{self.server_file} is missing, but this broker had keys: restore {self.path}, or make a new key with"
            )
            raise ConfigError(
                [f"{reason} `scale0 keys init --data-dir {self.data_dir}`, which no client knows (--insecure: no keys)"]
            )
        accepted = read_accepted(self.data_dir)
        if accepted is None:
            return
        self._written = accepted
        self._read = {self.file_of(key.role, key.name): StoredKey(NOT_READ, key) for key in accepted.keys}
        gone = {path.parent for path in self._read if not path.parent.is_dir()}
        missing = {self.file_of(role, name) for role, name in accepted.missing}
        self._missing = {path for path in self._read if path.parent in gone or path in missing}

    def write_accepted(self) -> None:
        """Write the list of accepted keys, if it changed."""
        keys = {path: one.key for path, one in self._read.items() if one.key is not None and not one.key.is_token}
        missing = tuple((key.role, key.name) for path, key in sorted(keys.items()) if path in self._missing)
        accepted = AcceptedKeys(tuple(sorted(keys.values())), missing)
        if accepted != self._written:
            write_accepted(self.data_dir, accepted)
            self._written = accepted

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
            accepted = read_accepted(self.data_dir) or AcceptedKeys()
            if (role, name) not in accepted.missing or revoked_file(path).exists():
                return False
            revoked_file(path).touch(mode=0o600)  # its file vanished with others, and it is accepted nevertheless
        sync_directory(path.parent)
        return True

    def set_rules(self, role: str, name: str, rules: KeyRules) -> KeyRules | None:
        """Set what a stored key may do; return the rules before, or None if there is no such key. Raises ValueError."""
        fault = rules_error(role, rules)
        if fault:
            raise ValueError(fault)
        before = self._set_metadata(role, name, (ALLOW, DENY), rules_metadata(rules))
        if before is None:
            return None
        return KeyRules(*(tuple(before.get(each, "").split()) for each in (ALLOW, DENY)))

    def set_expiry(self, role: str, name: str, expires: float) -> bool:
        """Set when a stored key expires (0: never); False if there is no such key."""
        return self._set_metadata(role, name, (EXPIRES,), expiry_metadata(expires)) is not None

    def learn_key(self, ask: LearnPeerKey) -> bool:
        """Store the key that a peer announced as its own, beside the previous one as long as it is accepted there;
        False if nothing changed. A second change before the first is finished is not believed."""
        path = self.file_of(PEER, ask.name)
        try:
            stored = read_certificate(path)
        except ConfigError:
            return False
        previous = stored.metadata.get(PREVIOUS, "")
        metadata = {each: value for each, value in stored.metadata.items() if each != PREVIOUS}
        if stored.public == ask.known and ask.server_key != stored.public and not previous and is_key(ask.server_key):
            metadata[PREVIOUS] = stored.public
        elif stored.public != ask.server_key or not previous or ask.previous_key == previous:
            return False
        write_public(path, CurveCertificate(public=ask.server_key, metadata=metadata))
        sync_directory(path.parent)
        return True

    def _set_metadata(
        self, role: str, name: str, names: Iterable[str], values: dict[str, str]
    ) -> dict[str, str] | None:
        """Replace these entries of a key's file; return all entries before, or None if there is no such key."""
        path = self.file_of(role, name)
        try:
            certificate = read_certificate(path)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        others = {each: value for each, value in certificate.metadata.items() if each not in names}
        write_public(path, CurveCertificate(public=certificate.public, metadata={**others, **values}))
        sync_directory(path.parent)
        return certificate.metadata

    def confirm_missing(self) -> None:
        """Let the broker revoke keys whose files vanished together."""
        write_secret(self.path / CONFIRMED, "")

    def table(self, wall: float) -> KeyTable:
        """All stored keys; of tokens, those that are valid at this time. Unchanged files are not read again. Raises
        OSError if the folder cannot be read; then the last table remains valid."""
        seen: dict[Path, StoredKey] = {}
        self.faults = {}
        for path, role, signature in self._files():
            known = self._read.get(path)
            if known is None or known.signature != signature:
                known = self._load(path, role, signature, known.key if known is not None else None)
            seen[path] = known
        self._keep_missing(seen)
        self._read = seen
        valid = {path: one.key for path, one in seen.items() if one.key is not None}
        return KeyTable(
            key._replace(is_program=True) if key.public in self.programs else key
            for path, key in valid.items()
            if (not key.is_token or wall < key.expires) and not self._is_reserved(path, key)
        )

    def _is_reserved(self, path: Path, key: Key) -> bool:
        """True for a key whose name the audit log would take for an administrator."""
        if key.is_token or key.name not in self.reserved or key.public in self.programs:
            return False
        self.faults[path] = (
            f"{path}: {reserved_text(key.name)}; the key is not accepted: `scale0 keys revoke {key.role} {key.name}`,"
            " and store it by another name"
        )
        return True

    def write_reserved(self) -> None:
        """Write the reserved names, if they changed, for the commands that store keys."""
        if self.read_reserved() != self.reserved:
            write_secret(self.path / RESERVED, msgspec.json.encode(sorted(self.reserved)))

    def read_reserved(self) -> frozenset[str]:
        """The reserved names at the broker's last start or reload; empty if it never started."""
        try:
            return frozenset(msgspec.json.decode((self.path / RESERVED).read_bytes(), type=list[str]))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return frozenset()

    def _files(self) -> Iterator[tuple[Path, str, Signature]]:
        for folder, role in (*((folder_of(role), role) for role in ROLES), (TOKENS, "")):
            with os.scandir(self.path / folder) as found:
                entries = list(found)
            markers = {entry.name for entry in entries if entry.name.endswith(REVOKED)}
            for entry in [entry for entry in entries if entry.name.endswith(PUBLIC_ENDING)][:MAX_KEYS]:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # removed just now
                path = Path(entry.path)
                if revoked_file(path).name in markers:
                    remove_old_marker(path)
                yield path, role, (status.st_ino, status.st_size, status.st_mtime_ns)

    def _keep_missing(self, seen: dict[Path, StoredKey]) -> None:
        """Add the keys whose files vanished or became invalid together, and were not revoked."""
        if not self._read:
            return
        confirmed = self._is_confirmed()
        stored = {path: one.key for path, one in self._read.items() if one.key is not None and not one.key.is_token}
        lost = {
            path: key
            for path, key in stored.items()
            if (path not in seen or seen[path].key is None) and not revoked_file(path).exists()
        }
        self._missing &= lost.keys()
        if confirmed or not (self._missing or is_mass(lost.values(), stored.values())):
            self._missing = set()
            return
        self._missing = set(lost)
        for path, key in lost.items():
            seen[path] = StoredKey(NOT_READ, key)
        first = min(lost)
        self.faults[self.path] = (
            f"{len(lost)} of {len(stored)} keys are missing or invalid at once, {first} among them; they are still"
            " accepted. Restore the files, or revoke the keys with `scale0 keys forget-missing`"
        )

    def _is_confirmed(self) -> bool:
        """Consume the operator's confirmation."""
        try:
            (self.path / CONFIRMED).unlink()
        except FileNotFoundError:
            return False
        return True

    def _load(self, path: Path, role: str, signature: Signature, known: Key | None) -> StoredKey:
        """Read a file that is new or changed. A damaged one still has the key that is known of it; one that was written
        with invalid values has none."""
        name = path.name.removesuffix(PUBLIC_ENDING)
        try:
            certificate = read_certificate(path)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                raise OSError(error.__cause__.errno, str(error)) from error
            kept = "" if known is None else KEPT.format(role=role, name=name)
            self.faults[path] = f"{error}{kept}"
            return StoredKey(signature, known)
        try:
            metadata, is_token = certificate.metadata, not role
            role = role or metadata.get("role", "")
            expires = float(metadata.get(EXPIRES, "nan" if is_token else "0"))
            if not is_name(name) or role not in ROLES or not 0 <= expires <= MAX_EXPIRES:
                raise ConfigError([f"{path}: its name, its role or the time when it expires is not valid"])
            rules = read_rules(role, metadata.get(ALLOW, ""), metadata.get(DENY, ""))
        except (ConfigError, ValueError) as error:
            self.faults[path] = str(error) if isinstance(error, ConfigError) else f"{path}: {error}"
            return StoredKey(signature, None)
        previous = metadata.get(PREVIOUS, "") if role == PEER and is_key(metadata.get(PREVIOUS, "")) else ""
        key = Key(
            *(certificate.public, role, name, expires, metadata.get("endpoint", ""), rules),
            is_token=is_token,
            previous=previous,
            is_helens=is_token and HELENS in metadata,
        )
        return StoredKey(signature, key)

    # Tokens.

    def new_token(
        self, role: str, name: str, expires: float, rules: KeyRules = NO_RULES, key_seconds: float = 0.0
    ) -> CurveCertificate:
        """Create the one-time pair of a token; only its public half is stored. `name` restricts it to one name; the key
        that it admits gets its `rules`, and is valid for `key_seconds` (0: for ever). The token of a Helen is exchanged
        on the backend socket."""
        id_ = secrets.token_hex(8)
        lifetime = {KEY_SECONDS: f"{key_seconds:.0f}"} if key_seconds else {}
        whose = {"role": BACKEND, HELENS: "yes"} if role == HELEN else {"role": role}
        pair = new_certificate(**whose, name=name, **expiry_metadata(expires), **rules_metadata(rules), **lifetime)
        path = self.path / TOKENS / f"{id_}{PUBLIC_ENDING}"
        write_public(path, pair)
        sync_directory(path.parent)
        return pair

    def enrol(self, ask: StoreKey, wall: float) -> Refusal | None:
        """Consume a token and store a key for its role; return a refusal if that fails."""
        try:
            metadata = read_certificate(self.path / TOKENS / f"{ask.token}{PUBLIC_ENDING}").metadata
            if float(metadata.get(EXPIRES, "0")) <= wall:
                raise ConfigError([])
        except (ConfigError, ValueError):
            return Refusal(codes.NOT_ALLOWED, "this token was used or has expired: make a new one")
        if metadata.get("name") not in ("", None, ask.name):
            return Refusal(codes.NOT_ALLOWED, f"this token is for {metadata['name']}")
        if not is_key(ask.public_key):
            return Refusal(codes.MALFORMED, "public_key must be a CURVE public key in Z85")
        if (HELENS in metadata) != ask.is_helens:
            return Refusal(codes.NOT_ALLOWED, "this token is for another role")
        accepted = self.table(wall).keys
        # A key may be accepted although its file is missing.
        names = {(key.role, key.name) for key in accepted if not key.is_token}
        if any((role, ask.name) in names or self.file_of(role, ask.name).exists() for role in ask.roles):
            return Refusal(codes.IN_USE, f"there is a key {ask.name} already: choose another name")
        if any(ask.public_key in key.publics for key in accepted):
            return Refusal(codes.IN_USE, KEY_IN_USE)
        if self.use_token(ask.token) is None:
            return Refusal(codes.NOT_ALLOWED, "this token was used or has expired: make a new one")
        granted: dict[str, str] = {each: metadata[each] for each in (ALLOW, DENY) if each in metadata}
        if KEY_SECONDS in metadata:
            granted |= expiry_metadata(wall + float(metadata[KEY_SECONDS]))
        for role in ask.roles:
            self.store(role, ask.name, CurveCertificate(public=ask.public_key, metadata={"name": ask.name, **granted}))
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

    def sweep(self, time: float) -> None:
        """Delete expired tokens. `time` is confirmed: a jump of the wall clock only refuses them."""
        for path, stored in list(self._read.items()):
            if stored.key is not None and stored.key.is_token and stored.key.expires <= time:
                path.unlink(missing_ok=True)

    # Programs on this machine.

    def local(self, file: str, role: str, name: str, endpoints: list[str], server: CurveCertificate) -> Path:
        """A pair for programs on this machine. Its public key is stored under its role only when the pair is created,
        so that an administrator can revoke it.
        """
        path = self.path / LOCAL / f"{file}{SECRET_ENDING}"
        known = path.exists()
        pair = read_pair(path) if known else new_certificate()
        # Without the name: programs on this machine choose their identities freely.
        metadata = {"role": role, "endpoint": " ".join(endpoints), "server-key": server.public, PROGRAM: "yes"}
        if pair.metadata != metadata:
            pair = CurveCertificate(public=pair.public, secret=pair.secret, metadata=metadata)
            write_pair(path, pair)
        self.programs.add(pair.public)
        if not known:
            self.file_of(role, name).unlink(missing_ok=True)
            self.store(role, name, CurveCertificate(public=pair.public, metadata={"name": name}))
        return path


def rules_metadata(rules: KeyRules) -> dict[str, str]:
    """The rules of a key as lines of its file; a key without rules has none."""
    return {name: " ".join(some) for name, some in ((ALLOW, rules.allow), (DENY, rules.deny)) if some}


def expiry_metadata(expires: float) -> dict[str, str]:
    """The expiry of a key as a line of its file; a key that never expires has none."""
    return {EXPIRES: f"{expires:.0f}"} if expires else {}


def reserved_text(name: str) -> str:
    return f"{name} is the name of an administrator"


def revoked_file(path: Path) -> Path:
    return path.with_name(f".{path.name}{REVOKED}")


def remove_old_marker(path: Path) -> None:
    """The file was stored again after its key was revoked: if it vanishes now, that is no revocation. The marker is put
    aside first, so that a revocation at this moment is not lost."""
    marker = revoked_file(path)
    aside = marker.with_name(f"{marker.name}.old")
    with contextlib.suppress(OSError):
        marker.rename(aside)
        if path.exists():
            aside.unlink()
        else:
            aside.rename(marker)
