"""How an agent gets its certificate, and a new one before the old one ends.

Lives here: the agent's side of `enrol`, its key and its files. Never here: Helen's side. Invariants: the token is sent
to nobody but the authority that it names, and that is known before it is sent; a key is on disk for its owner alone and
never leaves it; a renewal changes one file, at once, so that a kill at any moment leaves a pair that fits.
"""

from __future__ import annotations

import _ssl
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from scale0.config import AgentConfig, parse
from scale0.config.edge.files import read_config
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import ConfigError, Scale0Error
from scale0.monitoring.pki import certificates
from scale0.monitoring.pki.tokens import EnrolmentToken
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode, in_one_line
from scale0.monitoring.protocol.parser import ParseFault, Parser
from scale0.storage.data_dir import DIRECTORY_MODE, sync_directory

CONFIG_FILE: Final = "agent.zpl"
CERTIFICATE_FILE: Final = "agent.pem"
KEY_FILE: Final = "agent-key.pem"
CA_FILE: Final = "ca.pem"

DEADLINE_SECONDS: Final = 30.0
"""For a whole conversation with one Helen."""
MAX_CHAIN_BYTES: Final = 65_536
CHUNK_BYTES: Final = 16_384


class EnrolError(Scale0Error):
    """No certificate came of it: what happened, and what to do next. Never anything secret."""

    def __init__(self, what: str, next_step: str = "", unreachable: bool = False) -> None:
        super().__init__(what)
        self.next_step = next_step
        self.unreachable = unreachable


class CertificateFiles(msgspec.Struct, frozen=True):
    """What enrolling wrote."""

    name: str
    config: Path
    certificate: Path
    key: Path
    ca: Path
    expires: float
    """Wall clock."""


class EnrolmentEndpoint(msgspec.Struct, frozen=True):
    """Where a Helen is."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.bare}]" if ":" in self.bare else self.host
        return f"{host}:{self.port}"

    @property
    def bare(self) -> str:
        """Without the brackets of an address."""
        return self.host.strip("[]")


def enrol(
    place: EnrolmentEndpoint, token: EnrolmentToken, name: str, folder: Path, replace: bool = False
) -> CertificateFiles:
    """Get a certificate for `name` from the Helen there, and write what an agent starts from. EnrolError if not."""
    try:
        certificates.check_name(name)
    except ValueError as error:
        raise EnrolError(f"{name!r} cannot be: {error}", "choose one with --name") from None
    config_text = _config_text(place, folder.absolute())
    _prepare(folder, replace)
    key = certificates.new_key()
    unsure = folder / f"{KEY_FILE}.new"
    try:
        _write(unsure, certificates.key_pem(key))  # before the token is used up: a full disk must not cost it
        ca = learn_authority(place, token.authority)
        body = {"token": token.text(), "csr": certificates.request_pem(key, name)}
        chain = _ask(place, _context(ca), body)
        leaf = _accept(chain, ca, key, name)
        _write(folder / CA_FILE, certificates.pem_of(ca))
        # The certificate alone: Helen knows who signed it, and would keep what else is sent for each connection.
        _write(folder / CERTIFICATE_FILE, certificates.pem_of(leaf))
        unsure.replace(folder / KEY_FILE)
    except OSError as error:
        raise EnrolError(f"cannot write to {folder}: {error.strerror}", "name another folder with --dir") from error
    finally:
        unsure.unlink(missing_ok=True)
    config = folder / CONFIG_FILE
    if not config.exists():
        _write(config, config_text)
        (folder / "checks").mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    paths = (config, folder / CERTIFICATE_FILE, folder / KEY_FILE, folder / CA_FILE)
    return CertificateFiles(name, *paths, certificates.wall(leaf.not_valid_after_utc))


def renewal_at(certificate: Path) -> float:
    """When to renew it: a third of its life is left. Wall clock; EnrolError if it cannot be read."""
    return certificates.renewal_at(_read(certificate, x509.load_pem_x509_certificate))


def renew(config: AgentConfig) -> float:
    """Ask each Helen of an agent's file in turn for a new certificate, with the same key; until when it holds."""
    certificate = Path(config.certificate)
    old = _read(certificate, x509.load_pem_x509_certificate)
    key = _read(Path(config.private_key), certificates.read_key)
    ca = _read(Path(config.server_ca), x509.load_pem_x509_certificate)
    name = certificates.name_of(old)
    body = {"csr": certificates.request_pem(key, name)}
    failed: EnrolError | None = None
    for host, port in config.helen_addresses():
        try:
            chain = _ask(EnrolmentEndpoint(host, port), _context(ca, config), body)
            leaf = _accept(chain, ca, key, name)
            if leaf.not_valid_after_utc < old.not_valid_after_utc:
                raise EnrolError("what Helen sent ends sooner than what we have", "look at the clock of her machine")
        except EnrolError as error:
            failed = error
            continue
        _write(certificate, certificates.pem_of(leaf))
        return certificates.wall(leaf.not_valid_after_utc)
    raise failed or EnrolError("the agent's file names no Helen", "add `helen = HOST` to it")


def renew_if_due(config: AgentConfig, now: float) -> float | None:
    """Renew when a third of the life is left: until when the new one holds. None: it is not due."""
    return renew(config) if renewal_at(Path(config.certificate)) <= now else None


def learn_authority(place: EnrolmentEndpoint, wanted: bytes) -> x509.Certificate:
    """The authority that the Helen there shows, if it is the wanted one. Nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nobody is known yet: the hash in the token decides
    with _connect(place, context, time.monotonic() + DEADLINE_SECONDS) as connection:
        for der in _shown_chain(connection):
            if certificates.fingerprint(der) == wanted:
                return x509.load_der_x509_certificate(der)
    raise EnrolError(
        f"{place} is not the Helen that the token is for: her authority has another hash. Nothing was sent",
        "check the address, or make a token on that Helen's machine with `scale0 helen token`",
    )


# ---- the conversation


def _context(ca: x509.Certificate, config: AgentConfig | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=certificates.pem_of(ca))
    if config is not None:
        try:
            context.load_cert_chain(config.certificate, config.private_key, password=_no_password)
        except (OSError, ValueError) as error:
            raise EnrolError(
                "the agent's certificate and key do not fit each other", "enrol again with a new token"
            ) from error
    return context


def _no_password() -> str:
    raise ValueError("an agent's key must not be encrypted")


def _connect(place: EnrolmentEndpoint, context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
    try:
        plain = socket.create_connection((place.bare, place.port), timeout=_left(deadline, place))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such host"
        raise EnrolError(
            f"cannot connect to {place}: {reason}", "is Helen running there? see `scale0 helen --help`", True
        ) from error
    try:
        plain.settimeout(_left(deadline, place))
        return context.wrap_socket(plain, server_hostname=place.bare)
    except ssl.SSLCertVerificationError as error:
        raise EnrolError(
            f"the certificate of {place} does not hold: {error.verify_message}",
            "use a name that Helen's certificate has, or make one with `scale0 helen init DIR --name HOST`",
        ) from error
    except (OSError, ValueError) as error:
        raise EnrolError(f"{place} does not speak TLS 1.3 with us: {_reason(error)}", "check the port", True) from error
    finally:
        # wrap_socket takes the descriptor over; where it raised, this closes it.
        plain.close()


def _shown_chain(connection: ssl.SSLSocket) -> list[bytes]:
    """The certificates that the other end showed, unverified, as DER."""
    shown = getattr(connection, "get_unverified_chain", None)  # public from Python 3.13 on
    if shown is not None:
        return [bytes(each) for each in shown()]
    inner: Any = getattr(connection, "_sslobj", None)
    return [each.public_bytes(_ssl.ENCODING_DER) for each in inner.get_unverified_chain() or ()]


def _ask(place: EnrolmentEndpoint, context: ssl.SSLContext, body: dict[str, str]) -> str:
    """Say `enrol`, and hear the chain."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    with _connect(place, context, deadline) as connection:
        try:
            connection.sendall(encode(messages.Enrol(msgspec.json.encode(body))))
            return _hear(place, connection, deadline)
        except TimeoutError as error:
            raise EnrolError(f"{place} does not answer", "look at Helen's log", True) from error
        except OSError as error:
            raise EnrolError(
                f"{place} ended the connection: {_reason(error)}", "is the certificate revoked? see Helen's log"
            ) from error


def _hear(place: EnrolmentEndpoint, connection: ssl.SSLSocket, deadline: float) -> str:
    parser = Parser(to_helen=False)
    heard_bytes = 0
    while heard_bytes <= MAX_CHAIN_BYTES:
        connection.settimeout(_left(deadline, place))
        data = connection.recv(CHUNK_BYTES)
        if not data:
            raise EnrolError(f"{place} ended the connection without an answer", "look at Helen's log", True)
        heard_bytes += len(data)
        for word in parser.feed(data):
            match word:
                case messages.Enrolled(chain):
                    return chain.decode("ascii", "replace")
                case messages.Error(message):
                    raise EnrolError(f"Helen refuses: {in_one_line(message)}")
                case ParseFault(reason):
                    raise EnrolError(f"{place} does not speak as Helen does: {reason}", "check the port")
                case _:
                    pass
    raise EnrolError(f"{place} says more than a certificate needs", "check the port")


def _left(deadline: float, place: EnrolmentEndpoint) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise EnrolError(f"{place} does not answer within {DEADLINE_SECONDS:.0f} s", "look at Helen's log", True)
    return left


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or "it was cut"


# ---- what came, and the files


def _accept(chain: str, ca: x509.Certificate, key: certificates.PrivateKey, name: str) -> x509.Certificate:
    """The leaf of a chain, if it is ours in every respect: what does not fit must not take the old one's place."""
    try:
        leaf, *others = x509.load_pem_x509_certificates(chain.encode())
        signed = leaf
        for signer in (*(each for each in others if each != ca), ca):
            signed.verify_directly_issued_by(signer)
            signed = signer
    except (ValueError, TypeError, InvalidSignature) as error:
        raise EnrolError("what Helen sent is no certificate of her authority", "look at Helen's log") from error
    if leaf.public_key() != key.public_key() or certificates.name_of(leaf) != name:
        raise EnrolError("Helen sent a certificate for another key or name", "look at Helen's log")
    return leaf


def _prepare(folder: Path, replace: bool) -> None:
    found = [each for each in (KEY_FILE, CERTIFICATE_FILE) if (folder / each).exists()]
    if found and not replace:
        raise EnrolError(
            f"{folder} has {found[0]} already, and nothing was changed",
            "name another folder with --dir, or take its place with --force",
        )
    try:
        folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise EnrolError(f"cannot make {folder}: {error.strerror}", "name another folder with --dir") from error


def _config_text(place: EnrolmentEndpoint, folder: Path) -> str:
    lines = (
        "# An agent: `scale0 agent --config` runs it. Every key is in docs/configuration.md.",
        f"helen = {_quoted(str(place))}",
        f"certificate = {_quoted(str(folder / CERTIFICATE_FILE))}",
        f"private_key = {_quoted(str(folder / KEY_FILE))}",
        f"server_ca = {_quoted(str(folder / CA_FILE))}",
        f"checks_dir = {_quoted(str(folder / 'checks'))}",
        f"data_dir = {_quoted(str(folder / 'var'))}",
        "# labels",
        "#     role = web",
        "# plugins",
        "#     name = disk",
        "#     command = check_disk -w 10% -c 5% -p /",
    )
    text = "".join(f"{line}\n" for line in lines)
    try:
        parse(text.encode("utf-8", "surrogateescape"), "zpl", AgentConfig)
    except ConfigError as error:
        raise EnrolError(f"{folder} cannot stand in a file: {error.reasons[0]}", "choose another --dir") from error
    return text


def _quoted(text: str) -> str:
    quote = '"' if "'" in text else "'"
    return f"{quote}{text}{quote}"


def _write(path: Path, text: str) -> None:
    write_secret(path, text)
    sync_directory(path.parent)


def _read(path: Path, reader: Callable[[bytes], Any]) -> Any:
    try:
        return reader(path.read_bytes())
    except OSError as error:
        raise EnrolError(f"cannot read {path}: {error.strerror}", "enrol again with a new token") from error
    except ValueError as error:
        raise EnrolError(f"{path} is not in PEM, or of an unknown kind", "enrol again with a new token") from error


def main() -> int:
    """`python -m scale0.monitoring.pki.enrolment FILE`: renew if due, outside the agent, so that it stays small."""
    try:
        config = read_config(Path(sys.argv[1]), AgentConfig)
        until = renew_if_due(config, time.time())
    except (Scale0Error, OSError) as error:
        sys.stderr.write(f"the certificate was not renewed: {error}\n")
        return 1
    sys.stdout.write("not due\n" if until is None else f"renewed until {until:.0f}\n")
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
