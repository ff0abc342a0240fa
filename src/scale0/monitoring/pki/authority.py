"""Helen's certificate authority (CA): it issues and revokes the certificates of agents.

It works on files in Helen's data folder. Any number of threads and processes may use one folder: a lock serializes
signing. Invariants: a token is consumed before anything is signed for it; a certificate is on record before it is sent;
nothing secret is returned, raised or logged.

    ca.pem ca-key.pem                  the root CA                 tokens/<sha256>.json   unused enrolment tokens
    agents-ca.pem agents-ca-key.pem    the CA of agents            issued/<name>.json     certificates not yet expired
    helen.pem helen-key.pem            Helen's own certificate     revoked/<name>.json    the revocation list
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from scale0.kernel import codes
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import Refusal, Scale0Error
from scale0.kernel.log_context import about
from scale0.monitoring.pki import certificates
from scale0.monitoring.pki.certificates import Issuer, SigningRequest
from scale0.monitoring.pki.revocations import FOREVER_US, RevocationList
from scale0.monitoring.pki.tokens import EnrolmentToken, EnrolmentTokens, new_token, read_token
from scale0.storage.data_dir import DIRECTORY_MODE, sync_directory

log = logging.getLogger(__name__)

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"
AGENTS_CA_FILE: Final = "agents-ca.pem"
"""What Helen trusts agents by: the CA of agents and the root CA that signed it."""
AGENTS_CA_KEY_FILE: Final = "agents-ca-key.pem"
HELEN_FILE: Final = "helen.pem"
HELEN_KEY_FILE: Final = "helen-key.pem"
FILES: Final = (CA_FILE, CA_KEY_FILE, AGENTS_CA_FILE, AGENTS_CA_KEY_FILE, HELEN_FILE, HELEN_KEY_FILE)

MAX_ENROL_BYTES: Final = 32_768
MAX_LIVE_CERTIFICATES: Final = 20
"""Of one name: two or three are usual, and an attacker must not fill the disk with renewals."""
_LOCK_FILE: Final = "authority.lock"
_NEW_TOKEN: Final = "create another with `scale0 helen token`"
_NO_AUTHORITY: Final = "this Helen has no certificate authority: `scale0 helen init` creates one"


class AuthorityError(Scale0Error):
    """The CA's files cannot be created or used; the message says what to do."""


class CertificateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of `enrol`."""

    csr: str
    token: str = ""


class Issued(msgspec.Struct, frozen=True):
    serial: str
    issued: float
    expires: float
    """Wall clock, both."""


class IssuedRecord(msgspec.Struct, frozen=True):
    """The certificates of one name that have not expired, oldest first. Revoked ones stay until the next is signed."""

    name: str
    certificates: tuple[Issued, ...] = ()


class CertificateAuthority:
    """The CA in one data folder. `revoked` and `refresh` are quick; everything else may wait for a disk."""

    def __init__(self, folder: Path, agent_days: float = certificates.AGENT_DAYS) -> None:
        self._folder = folder
        self._agent_days = agent_days
        self._tokens = EnrolmentTokens(folder / "tokens")
        self._revocations = RevocationList(folder / "revoked")
        self._signing_revocations = RevocationList(folder / "revoked")
        """For signing, under the lock: what it reads first must still be a change for `refresh`."""

    # ---- for the operator

    def make_token(self, now: float, minutes: float, name: str = "", address: str = "") -> EnrolmentToken:
        """A token for one agent. ValueError: invalid agent name. AuthorityError: there is no CA."""
        if name:
            certificates.check_name(name)
        ca = _load_certificate(self._folder / CA_FILE)
        self._tokens.remove_expired(now)
        token = new_token(_fingerprint(ca), name, address)
        self._tokens.store(token, now + minutes * 60)
        return token

    def revoke(self, name: str, now: float, serial: str = "") -> int:
        """Revoke all certificates of a name signed until now, or one serial. How many known certificates it revokes."""
        certificates.check_name(name)
        with self._locked():
            self._signing_revocations.add(name, now, serial)
            live = self._record(name, now).certificates
        self.refresh()
        return sum(self.revoked(name, each.serial, each.issued) for each in live)

    # ---- for Helen, in her event loop

    def refresh(self) -> bool:
        """Read new revocations: True if there are changes."""
        return self._revocations.refresh()

    def revoked(self, name: str, serial: str, issued: float) -> bool:
        """True if a certificate (CN, hexadecimal serial, notBefore as wall clock) is revoked. No I/O."""
        return self._revocations.revokes(name, serial, issued)

    # ---- for Helen, in a thread

    def enrol(self, body: bytes, name: str | None, now: float, serial: str = "") -> bytes | Refusal:
        """The chain for an `enrol` request. `name` and `serial`: of the certificate of the connection, if any."""
        try:
            if len(body) > MAX_ENROL_BYTES:
                raise Refusal(codes.TOO_BIG, f"the certificate request has more than {MAX_ENROL_BYTES} bytes")
            request = _decode_request(body)
            return self._enrol(request, now) if name is None else self._renew(request, name, serial, now)
        except Refusal as refusal:
            return refusal
        except (OSError, ValueError, AuthorityError) as error:
            log.error("cannot issue a certificate: %s", error, extra=about(agent=name))
            return Refusal(codes.NOT_SERVING, "no certificate can be issued now: see Helen's log for the reason")

    def renew_own(self, certificate: Path, now: float) -> bool:
        """Renew Helen's own certificate if a third of its validity is left, and this CA signed it. True: it was."""
        with contextlib.suppress(Refusal, AuthorityError):
            old = _load_certificate(certificate)
            issuer = self._issuer(CA_FILE, CA_KEY_FILE)
            key = old.public_key()
            names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            if old.issuer != issuer.certificate.subject or certificates.renewal_at(old) > now:
                return False
            if isinstance(key, certificates.PublicKey):
                new = certificates.helen_certificate(issuer, key, names, now)
                _write(certificate, certificates.pem_of(new, issuer.certificate))
                return True
        return False

    def _enrol(self, asked: CertificateRequest, now: float) -> bytes:
        token = read_token(asked.token)
        if token is None:
            raise Refusal(codes.WRONG_CREDENTIALS, f"this is not a token: {_NEW_TOKEN}")
        issuer = self._issuer()
        root = _load_certificate(self._folder / CA_FILE)
        with self._locked():
            kept = self._tokens.find(token)
            if kept is None or token.authority != _fingerprint(root):
                raise Refusal(codes.WRONG_CREDENTIALS, f"the token is unknown, or was used already: {_NEW_TOKEN}")
            if kept.expires <= now:
                raise Refusal(codes.WRONG_CREDENTIALS, f"the token has expired: {_NEW_TOKEN}")
            request = certificates.read_request(asked.csr)
            if kept.name and kept.name != request.name:
                raise Refusal(codes.NOT_ALLOWED, f"the token is for {kept.name}: enrol with --name {kept.name}")
            if not kept.name and self._has_valid(request.name, now):
                raise Refusal(
                    codes.IN_USE, f"{request.name} is enrolled already: revoke it, or make a token with --name"
                )
            record = self._record_with_room(request.name, now)
            if not self._tokens.use(token):
                raise Refusal(codes.WRONG_CREDENTIALS, f"the token was used already: {_NEW_TOKEN}")
            return self._sign(issuer, request, record, now)

    def _renew(self, asked: CertificateRequest, name: str, serial: str, now: float) -> bytes:
        if asked.token:
            raise Refusal(codes.MALFORMED, "a renewal needs no token: the certificate identifies the agent")
        request = certificates.read_request(asked.csr)
        if request.name != name:
            raise Refusal(codes.NOT_ALLOWED, f"a renewal keeps its name, {name}; another name needs a token")
        issuer = self._issuer()
        with self._locked():
            self._signing_revocations.refresh()
            # Without a serial it is unknown which certificate the agent has: one of the name must then be valid.
            revoked = self._signing_revocations.revokes(name, serial, 0.0) if serial else self._is_revoked(name, now)
            if revoked:
                raise Refusal(codes.NOT_ALLOWED, f"the certificate of {name} is revoked: enrol again with a token")
            return self._sign(issuer, request, self._record_with_room(name, now), now)

    def _record_with_room(self, name: str, now: float) -> IssuedRecord:
        """The valid certificates of a name, under the lock. Refusal: no other certificate may be signed for it."""
        revoked = self._signing_revocations
        revoked.refresh()
        if revoked.before_us(name) >= FOREVER_US:
            raise Refusal(codes.NOT_ALLOWED, f"{name} is revoked, and its revocation file is unreadable")
        known = self._record(name, now).certificates
        valid = tuple(each for each in known if not revoked.revokes(name, each.serial, each.issued))
        if len(valid) >= MAX_LIVE_CERTIFICATES:
            problem = f"{name} has {MAX_LIVE_CERTIFICATES} valid certificates already"
            raise Refusal(codes.TOO_MANY, f"{problem}: revoke them with `scale0 agent revoke {name}`")
        return IssuedRecord(name, valid)

    def _sign(self, issuer: Issuer, request: SigningRequest, record: IssuedRecord, now: float) -> bytes:
        """Sign under the lock. The record is written first: only recorded certificates can be listed and revoked."""
        before_us = self._signing_revocations.before_us(request.name)
        # Later than the revocation in any case: if the clock went back, a new certificate must not be revoked at once.
        serial = certificates.new_serial(max(int(now * 1e6), before_us + 1))
        signed = certificates.agent_certificate(issuer, request, serial, now, self._agent_days)
        issued = Issued(f"{serial:X}", now, signed.not_valid_after_utc.timestamp())
        record = msgspec.structs.replace(record, certificates=(*record.certificates, issued))
        _write(self._record_path(request.name), msgspec.json.encode(record).decode())
        log.info(
            "signed a certificate for %s, serial %s",
            request.name,
            issued.serial,
            extra=about(agent=request.name, serial=issued.serial),
        )
        return certificates.pem_of(signed, issuer.certificate).encode()

    def _is_revoked(self, name: str, now: float) -> bool:
        """True if the name was revoked, and nothing was signed for it since."""
        return self._signing_revocations.has_entry(name) and not self._has_valid(name, now)

    def _has_valid(self, name: str, now: float) -> bool:
        """True if there may be a valid certificate of this name."""
        revoked = self._signing_revocations
        revoked.refresh()
        return any(not revoked.revokes(name, each.serial, each.issued) for each in self._record(name, now).certificates)

    def _record(self, name: str, now: float) -> IssuedRecord:
        """The certificates of a name that have not expired. An unreadable file is an error, not an empty record."""
        try:
            record = msgspec.json.decode(self._record_path(name).read_bytes(), type=IssuedRecord)
        except FileNotFoundError:
            return IssuedRecord(name)
        live = tuple(each for each in record.certificates if each.expires > now)
        return IssuedRecord(name, live)

    def _record_path(self, name: str) -> Path:
        return self._folder / "issued" / f"{name}.json"

    def _issuer(self, certificate: str = AGENTS_CA_FILE, key_file: str = AGENTS_CA_KEY_FILE) -> Issuer:
        try:
            key = certificates.read_key((self._folder / key_file).read_bytes())
        except FileNotFoundError:
            raise Refusal(codes.NOT_SERVING, _NO_AUTHORITY) from None
        return Issuer(_load_certificate(self._folder / certificate), key)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one of all threads and processes at a time; the lock of a process that dies is released."""
        descriptor = os.open(self._folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def create_authority(folder: Path, names: Sequence[str], now: float) -> CertificateAuthority:
    """Create a CA, and Helen's certificate for these host names. AuthorityError: there is one, or it cannot be done."""
    found = [name for name in FILES if (folder / name).exists()]
    if found:
        raise AuthorityError(f"{folder} has {found[0]} already; nothing was changed. Choose another folder")
    places = certificates.subject_alternative_names(names)
    issuer = certificates.new_root_ca(now)
    agents = certificates.new_agents_ca(issuer, now)
    key = certificates.new_key()
    own = certificates.helen_certificate(issuer, key.public_key(), places, now)
    try:
        for each in (folder, folder / "tokens", folder / "issued", folder / "revoked"):
            each.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        _write(folder / CA_KEY_FILE, certificates.key_pem(issuer.key))
        _write(folder / CA_FILE, certificates.pem_of(issuer.certificate))
        _write(folder / AGENTS_CA_KEY_FILE, certificates.key_pem(agents.key))
        _write(folder / AGENTS_CA_FILE, certificates.pem_of(agents.certificate, issuer.certificate))
        _write(folder / HELEN_KEY_FILE, certificates.key_pem(key))
        _write(folder / HELEN_FILE, certificates.pem_of(own, issuer.certificate))
    except OSError as error:
        raise AuthorityError(f"cannot write to {folder}: {error.strerror}; choose another folder") from error
    return CertificateAuthority(folder)


def _decode_request(body: bytes) -> CertificateRequest:
    try:
        return msgspec.json.decode(body, type=CertificateRequest, strict=True)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Refusal(codes.MALFORMED, "enrol needs a JSON object with `token` and `csr`") from error


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise AuthorityError(f"there is no {path.name} in {path.parent}; `scale0 helen init` creates one") from None
    except OSError as error:
        raise AuthorityError(f"cannot read {path}: {error.strerror}; check its owner and permissions") from error
    except ValueError:
        raise AuthorityError(f"{path} is not a PEM certificate; restore it from a backup") from None


def _fingerprint(certificate: x509.Certificate) -> bytes:
    return certificates.fingerprint(certificate.public_bytes(Encoding.DER))


def _write(path: Path, text: str) -> None:
    write_secret(path, text)
    sync_directory(path.parent)
