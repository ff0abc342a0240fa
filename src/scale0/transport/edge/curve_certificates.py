"""CURVE certificates in the file format of ZeroMQ's own tools.

Invariants: a file with a secret key is readable by its owner only, from the first byte on; a secret key appears in no
`repr` and in no error.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

import msgspec
from nacl.bindings import crypto_scalarmult_base

from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import ConfigError
from scale0.transport.core import z85
from scale0.transport.core.zmtp import DEALER
from scale0.transport.core.zmtp_curve import KEY_BYTES, CurveClient

KEYS_FOLDER: Final = "keys"
"""In the `data_dir` of a broker, and in a user's configuration folder."""
LOCAL: Final = "local"
"""A subfolder with keys for processes on the broker's own machine."""
SERVER: Final = "server"
"""A subfolder with the broker's own pair, two while it is replaced."""
PROGRAM: Final = "program"
"""The metadata of a pair that a broker made for programs on its own machine."""
PUBLIC_ENDING: Final = ".key"
SECRET_ENDING: Final = ".key_secret"
MAX_FILE_BYTES: Final = 16_384
"""Larger than any certificate."""
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_SECTION: Final = re.compile(r"[a-z]+", re.ASCII)
_VALUE: Final = re.compile(r'[ \t]+([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"([^"]*)"|(\S.*?))[ \t]*')
_PLAIN: Final = re.compile(r"[ !#-~]*", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}", re.ASCII)

HEADER: Final = """#   ZeroMQ CURVE {kind} Certificate
#   {advice}
"""
PUBLIC_ADVICE: Final = "It may be public. A broker that stores it grants access to its owner."
SECRET_ADVICE: Final = "DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions."


class CurveCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A key in Z85, with its metadata."""

    public: str
    secret: str = ""
    metadata: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Certificate({self.public})"  # keeps the secret out of logs

    @property
    def name(self) -> str:
        """The name that the key is stored under, if known."""
        return self.metadata.get("name", "")


def is_key(text: str) -> bool:
    """True for 32 bytes in Z85."""
    if _KEY.fullmatch(text) is None:
        return False
    try:
        return len(z85.decode(text)) == KEY_BYTES
    except ValueError:
        return False


def new_certificate(**metadata: str) -> CurveCertificate:
    secret = z85.encode(os.urandom(KEY_BYTES))
    return CurveCertificate(public=public_of(secret), secret=secret, metadata=metadata)


def public_of(secret: str) -> str:
    return z85.encode(crypto_scalarmult_base(z85.decode(secret)))


def text_of(certificate: CurveCertificate, *, with_secret: bool) -> str:
    kind, advice = ("Secret", SECRET_ADVICE) if with_secret else ("Public", PUBLIC_ADVICE)
    lines = [HEADER.format(kind=kind, advice=advice), "metadata"]
    for key, value in certificate.metadata.items():
        if _PLAIN.fullmatch(value) is None:
            raise ValueError(f"{key}: a certificate's metadata is one line of plain text")
        lines.append(f'    {key} = "{value}"')
    lines += ["curve", f'    public-key = "{certificate.public}"']
    if with_secret:
        lines.append(f'    secret-key = "{certificate.secret}"')
    return "\n".join(lines) + "\n"


def write_public(path: Path, certificate: CurveCertificate) -> None:
    """Write the public half. The file is private: a user who can change it can grant access."""
    write_secret(path, text_of(certificate, with_secret=False))


def write_pair(path: Path, certificate: CurveCertificate) -> None:
    write_secret(path, text_of(certificate, with_secret=True))


def read_certificate(path: Path) -> CurveCertificate:
    """Read a certificate; ConfigError names the file, and never a secret."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        return parse_certificate(data.decode("ascii"))
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except ValueError as error:
        reason = "it is not plain text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ConfigError([f"{path}: {reason}"]) from None


def parse_certificate(text: str) -> CurveCertificate:
    """Parse a certificate; ValueError does not repeat the text."""
    if len(text) > MAX_FILE_BYTES:
        raise ValueError("it is too long for a certificate")
    section, values = "", dict[tuple[str, str], str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if _SECTION.fullmatch(line.rstrip()):
            section = line.rstrip()
            continue
        found = _VALUE.fullmatch(line)
        if found is None or not section or (section, found[1]) in values:
            raise ValueError(f"line {number} is not valid in a certificate")
        values[section, found[1]] = found[2] if found[2] is not None else found[3]
    public, secret = values.get(("curve", "public-key"), ""), values.get(("curve", "secret-key"), "")
    if not is_key(public):
        raise ValueError("it has no public key")
    if secret and (not is_key(secret) or public_of(secret) != public):
        raise ValueError("the public key and the secret key do not match")
    metadata = {key: value for (where, key), value in values.items() if where == "metadata"}
    return CurveCertificate(public=public, secret=secret, metadata=metadata)


def read_pair(path: Path) -> CurveCertificate:
    """Read a certificate with its secret key, from a file that only its owner can read."""
    check_private(path)
    certificate = read_certificate(path)
    if not certificate.secret:
        raise ConfigError([f"{path}: it has no secret key; name the file that ends in {SECRET_ENDING}"])
    return certificate


def read_public(given: str) -> str:
    """A public key: `given` is the key itself, or a file that holds it."""
    if is_key(given):
        return given
    return read_certificate(Path(given)).public


def check_private(path: Path) -> None:
    """ConfigError, with the chmod to run, if other users can access this file or folder."""
    faults = private_faults(path)
    if faults:
        raise ConfigError(faults)


def private_faults(path: Path, forbidden: int = OTHERS) -> list[str]:
    """What is wrong with the permissions of a file or folder; nothing if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    if not found.st_mode & forbidden:
        return []
    wanted = "700" if stat.S_ISDIR(found.st_mode) else "600"
    return [f"{path}: others have access to it (mode {stat.S_IMODE(found.st_mode):o}): chmod {wanted} {path}"]


def client_mechanism(own: CurveCertificate, server_key: str, socket_type: bytes = DEALER) -> CurveClient:
    """The mechanism of a connection to a server that must have this key."""
    public, secret, expected = map(z85.decode, (own.public, own.secret, server_key))
    return CurveClient(public, secret, expected, socket_type, os.urandom)
