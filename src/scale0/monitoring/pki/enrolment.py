"""The agent's side of enrolment: how it gets its certificate, and renews it.

Invariants: the token is sent only to the CA that it names, which is verified before; a private key is on disk for its
owner alone and never leaves the machine; a renewal replaces one file atomically, so that certificate and key always
match.
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
"""For a whole request to one Helen."""
MAX_CHAIN_BYTES: Final = 65_536
CHUNK_BYTES: Final = 16_384


class EnrolError(Scale0Error):
    """Enrolment failed: the reason, and the next step. Never anything secret."""

    def __init__(self, what: str, next_step: str = "", unreachable: bool = False) -> None:
        super().__init__(what)
        self.next_step = next_step
        self.unreachable = unreachable


class CertificateFiles(msgspec.Struct, frozen=True):
    name: str
    config: Path
    certificate: Path
    key: Path
    ca: Path
    expires: float
    """Wall clock."""


class EnrolmentEndpoint(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.bare}]" if ":" in self.bare else self.host
        return f"{host}:{self.port}"

    @property
    def bare(self) -> str:
        """Without the brackets of an IPv6 address."""
        return self.host.strip("[]")


def enrol(
    endpoint: EnrolmentEndpoint, token: EnrolmentToken, name: str, folder: Path, replace: bool = False
) -> CertificateFiles:
    """Get a certificate for `name` from this Helen, and write the files of an agent. Raises EnrolError."""
    try:
        certificates.check_name(name)
    except ValueError as error:
        raise EnrolError(f"invalid name {name!r}: {error}", "choose one with --name") from None
    config_text = _config_text(endpoint, folder.absolute())
    _prepare(folder, replace)
    key = certificates.new_key()
    new_key_file = folder / f"{KEY_FILE}.new"
    try:
        _write(new_key_file, certificates.key_pem(key))  # before the token is consumed: a full disk must not waste it
        ca = fetch_ca(endpoint, token.authority)
        body = {"token": token.text(), "csr": certificates.request_pem(key, name)}
        chain = _request(endpoint, _context(ca), body)
        leaf = _accept(chain, ca, key, name)
        _write(folder / CA_FILE, certificates.pem_of(ca))
        # Only the leaf: Helen has the rest of the chain, and would keep what is sent for each connection.
        _write(folder / CERTIFICATE_FILE, certificates.pem_of(leaf))
        new_key_file.replace(folder / KEY_FILE)
    except OSError as error:
        raise EnrolError(f"cannot write to {folder}: {error.strerror}", "name another folder with --dir") from error
    finally:
        new_key_file.unlink(missing_ok=True)
    config = folder / CONFIG_FILE
    if not config.exists():
        _write(config, config_text)
        (folder / "checks").mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    paths = (config, folder / CERTIFICATE_FILE, folder / KEY_FILE, folder / CA_FILE)
    return CertificateFiles(name, *paths, leaf.not_valid_after_utc.timestamp())


def renewal_at(certificate: Path) -> float:
    """When to renew it: when a third of its validity is left. Wall clock. Raises EnrolError."""
    return certificates.renewal_at(_read(certificate, x509.load_pem_x509_certificate))


def renew(config: AgentConfig) -> float:
    """Renew the certificate, with the same key, at the first Helen that does it; returns the end of its validity."""
    certificate = Path(config.certificate)
    old = _read(certificate, x509.load_pem_x509_certificate)
    key = _read(Path(config.private_key), certificates.read_key)
    ca = _read(Path(config.server_ca), x509.load_pem_x509_certificate)
    name = certificates.common_name_of(old)
    body = {"csr": certificates.request_pem(key, name)}
    failed: EnrolError | None = None
    for host, port in config.helen_addresses():
        try:
            chain = _request(EnrolmentEndpoint(host, port), _context(ca, config), body)
            leaf = _accept(chain, ca, key, name)
            if leaf.not_valid_after_utc < old.not_valid_after_utc:
                raise EnrolError("the new certificate ends before the old one", "check the clock of Helen's machine")
        except EnrolError as error:
            failed = error
            continue
        _write(certificate, certificates.pem_of(leaf))
        return leaf.not_valid_after_utc.timestamp()
    raise failed or EnrolError("the agent's configuration names no Helen", "add `helen = HOST` to it")


def renew_if_due(config: AgentConfig, now: float) -> float | None:
    """Renew if a third of the validity is left: returns the end of the new one. None: it is not due."""
    return renew(config) if renewal_at(Path(config.certificate)) <= now else None


def fetch_ca(endpoint: EnrolmentEndpoint, wanted: bytes) -> x509.Certificate:
    """The CA certificate that this Helen presents, if it has the wanted fingerprint. Nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the CA is unknown yet: the fingerprint in the token decides
    with _connect(endpoint, context, time.monotonic() + DEADLINE_SECONDS) as connection:
        for der in _presented_chain(connection):
            if certificates.fingerprint(der) == wanted:
                return x509.load_der_x509_certificate(der)
    raise EnrolError(
        f"{endpoint} is not the Helen of this token: her CA has another fingerprint. Nothing was sent",
        "check the address, or create a token on that Helen's machine with `scale0 helen token`",
    )


# ---- the request


def _context(ca: x509.Certificate, config: AgentConfig | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=certificates.pem_of(ca))
    if config is not None:
        try:
            context.load_cert_chain(config.certificate, config.private_key, password=_no_password)
        except (OSError, ValueError) as error:
            raise EnrolError("the agent's certificate and key do not match", "enrol again with a new token") from error
    return context


def _no_password() -> str:
    raise ValueError("an agent's key must not be encrypted")


def _connect(endpoint: EnrolmentEndpoint, context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
    try:
        plain = socket.create_connection((endpoint.bare, endpoint.port), timeout=_left(deadline, endpoint))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such host"
        raise EnrolError(
            f"cannot connect to {endpoint}: {reason}", "is Helen running there? see `scale0 helen --help`", True
        ) from error
    try:
        plain.settimeout(_left(deadline, endpoint))
        return context.wrap_socket(plain, server_hostname=endpoint.bare)
    except ssl.SSLCertVerificationError as error:
        raise EnrolError(
            f"the certificate of {endpoint} is not valid: {error.verify_message}",
            "use a name in Helen's certificate, or create one with `scale0 helen init DIR --name HOST`",
        ) from error
    except (OSError, ValueError) as error:
        raise EnrolError(f"no TLS 1.3 connection to {endpoint}: {_reason(error)}", "check the port", True) from error
    finally:
        # wrap_socket takes over the descriptor; if it raised, this closes it.
        plain.close()


def _presented_chain(connection: ssl.SSLSocket) -> list[bytes]:
    """The certificates of the other side, unverified, as DER."""
    shown = getattr(connection, "get_unverified_chain", None)  # public from Python 3.13 on
    if shown is not None:
        return [bytes(each) for each in shown()]
    inner: Any = getattr(connection, "_sslobj", None)
    return [each.public_bytes(_ssl.ENCODING_DER) for each in inner.get_unverified_chain() or ()]


def _request(endpoint: EnrolmentEndpoint, context: ssl.SSLContext, body: dict[str, str]) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    with _connect(endpoint, context, deadline) as connection:
        try:
            connection.sendall(encode(messages.Enrol(msgspec.json.encode(body))))
            return _receive(endpoint, connection, deadline)
        except TimeoutError as error:
            raise EnrolError(f"{endpoint} does not answer", "see Helen's log", True) from error
        except OSError as error:
            raise EnrolError(
                f"{endpoint} closed the connection: {_reason(error)}", "is the certificate revoked? see Helen's log"
            ) from error


def _receive(endpoint: EnrolmentEndpoint, connection: ssl.SSLSocket, deadline: float) -> str:
    parser = Parser(to_helen=False)
    received_bytes = 0
    while received_bytes <= MAX_CHAIN_BYTES:
        connection.settimeout(_left(deadline, endpoint))
        data = connection.recv(CHUNK_BYTES)
        if not data:
            raise EnrolError(f"{endpoint} closed the connection without an answer", "see Helen's log", True)
        received_bytes += len(data)
        for message in parser.feed(data):
            match message:
                case messages.Enrolled(chain):
                    return chain.decode("ascii", "replace")
                case messages.Error(text):
                    raise EnrolError(f"Helen refuses: {in_one_line(text)}")
                case ParseFault(reason):
                    raise EnrolError(f"{endpoint} does not speak Helen's protocol: {reason}", "check the port")
                case _:
                    pass
    raise EnrolError(f"{endpoint} sent more than a certificate chain", "check the port")


def _left(deadline: float, endpoint: EnrolmentEndpoint) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise EnrolError(f"{endpoint} does not answer within {DEADLINE_SECONDS:.0f} s", "see Helen's log", True)
    return left


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or "connection lost"


# ---- the certificate and the files


def _accept(chain: str, ca: x509.Certificate, key: certificates.PrivateKey, name: str) -> x509.Certificate:
    """The leaf of a chain, if it matches CA, key and name: nothing else may replace the old certificate."""
    try:
        leaf, *others = x509.load_pem_x509_certificates(chain.encode())
        signed = leaf
        for signer in (*(each for each in others if each != ca), ca):
            signed.verify_directly_issued_by(signer)
            signed = signer
    except (ValueError, TypeError, InvalidSignature) as error:
        raise EnrolError("Helen sent a certificate that her CA did not sign", "see Helen's log") from error
    if leaf.public_key() != key.public_key() or certificates.common_name_of(leaf) != name:
        raise EnrolError("Helen sent a certificate for another key or name", "see Helen's log")
    return leaf


def _prepare(folder: Path, replace: bool) -> None:
    found = [each for each in (KEY_FILE, CERTIFICATE_FILE) if (folder / each).exists()]
    if found and not replace:
        raise EnrolError(
            f"{folder} has {found[0]} already; nothing was changed",
            "name another folder with --dir, or replace its files with --force",
        )
    try:
        folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise EnrolError(f"cannot create {folder}: {error.strerror}", "name another folder with --dir") from error


def _config_text(endpoint: EnrolmentEndpoint, folder: Path) -> str:
    lines = (
        "# An agent: `scale0 agent --config` runs it. Every key is in docs/configuration.md.",
        f"helen = {_quoted(str(endpoint))}",
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
        raise EnrolError(
            f"{folder} cannot be in a configuration: {error.reasons[0]}", "choose another --dir"
        ) from error
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
        raise EnrolError(f"{path} is not valid PEM, or of an unknown type", "enrol again with a new token") from error


def main() -> int:
    """`python -m scale0.monitoring.pki.enrolment FILE`: renew if due, in a process of its own."""
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
