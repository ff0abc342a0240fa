"""Helen's own authority: who becomes an agent, and who stops being one.

Lives here: `CertificateAuthority`, over the files in Helen's data folder. Never here: sockets. Invariants: a token is
used up before anything is signed for it; a certificate is on record before anybody gets it; nothing secret is in what
is returned, raised or logged. Any number of threads and processes may use one folder: a lock lets them sign in turn.

    ca.pem ca-key.pem           the authority            tokens/<sha256>.json   tokens that nobody has used
    helen.pem helen-key.pem     Helen's own              issued/<name>.json     certificates that still hold
    helen.zpl                   a file to start with     revoked/<name>.json    those that no longer count
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
from scale0.monitoring.pki.revocations import EVER_US, Revocations, plain_serial
from scale0.monitoring.pki.tokens import EnrolmentToken, EnrolmentTokens, new_token, read_token
from scale0.storage.data_dir import DIRECTORY_MODE, sync_directory

log = logging.getLogger(__name__)

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"
AGENTS_CA_FILE: Final = "agents-ca.pem"
"""What Helen trusts agents by: the authority that signs for them, and the one that signed it."""
AGENTS_CA_KEY_FILE: Final = "agents-ca-key.pem"
HELEN_FILE: Final = "helen.pem"
HELEN_KEY_FILE: Final = "helen-key.pem"
FILES: Final = (CA_FILE, CA_KEY_FILE, AGENTS_CA_FILE, AGENTS_CA_KEY_FILE, HELEN_FILE, HELEN_KEY_FILE)

MAX_ENROL_BYTES: Final = 32_768
"""Of the JSON that asks for a certificate."""
MAX_LIVE_CERTIFICATES: Final = 20
"""Of one name: two or three are usual, and a thief must not fill the disk by renewing."""
_LOCK_FILE: Final = "authority.lock"
_NEW_TOKEN: Final = "make another with `scale0 helen token`"
_NO_AUTHORITY: Final = "this Helen has no authority of her own: `scale0 helen init` makes one"


class AuthorityError(Scale0Error):
    """The authority's files cannot be made or used; the message says what to do."""


class CertificateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `enrol` carries."""

    csr: str
    token: str = ""


class Issued(msgspec.Struct, frozen=True):
    """A certificate on record."""

    serial: str
    issued: float
    expires: float
    """Wall clock, both."""


class IssuedRecord(msgspec.Struct, frozen=True):
    """The certificates of one name that have not expired, oldest first."""

    name: str
    certificates: tuple[Issued, ...] = ()


class CertificateAuthority:
    """The authority in one data folder. `revoked` and `refresh` are quick; all else may wait for a disk."""

    def __init__(self, folder: Path, agent_days: float = certificates.AGENT_DAYS) -> None:
        self._folder = folder
        self._agent_days = agent_days
        self._tokens = EnrolmentTokens(folder / "tokens")
        self._revocations = Revocations(folder / "revoked")
        self._now_revoked = Revocations(folder / "revoked")
        """A look of its own for what signs, within the lock: what it sees first must still be news to `refresh`."""

    # ---- the operator's side

    def make_token(self, now: float, minutes: float, name: str = "", place: str = "") -> EnrolmentToken:
        """A token for one agent. ValueError: no agent can have that name. AuthorityError: there is no authority."""
        if name:
            certificates.check_name(name)
        ca = _load_certificate(self._folder / CA_FILE)
        self._tokens.sweep(now)
        token = new_token(_fingerprint(ca), name, place)
        self._tokens.keep(token, now + minutes * 60)
        return token

    def revoke(self, name: str, now: float, serial: str = "") -> int:
        """Revoke every certificate of a name that was signed until now, or one. How many are known to be hit."""
        certificates.check_name(name)
        with self._locked():
            self._now_revoked.add(name, now, serial)
            live = self._record(name, now).certificates
        self.refresh()
        return sum(self.revoked(name, each.serial, each.issued) for each in live)

    # ---- what Helen asks on her loop

    def refresh(self) -> bool:
        """Look for new revocations: True if there are changes."""
        return self._revocations.refresh()

    def revoked(self, name: str, serial: str, issued: float) -> bool:
        """True if a certificate (CN, hexadecimal serial, notBefore as wall clock) no longer counts. No I/O."""
        return self._revocations.covers(name, serial, issued)

    # ---- what Helen asks off her loop

    def enrol(self, body: bytes, name: str | None, now: float, serial: str = "") -> bytes | Refusal:
        """The chain for what an `enrol` carried. `name` and `serial`: of the certificate that came with it, if any."""
        try:
            if len(body) > MAX_ENROL_BYTES:
                raise Refusal(codes.TOO_BIG, f"what asks for a certificate has more than {MAX_ENROL_BYTES} bytes")
            ask = _read_ask(body)
            return self._enrol(ask, now) if name is None else self._renew(ask, name, serial, now)
        except Refusal as refusal:
            return refusal
        except (OSError, ValueError, AuthorityError) as error:
            log.error("a certificate could not be made: %s", error, extra=about(agent=name))
            return Refusal(codes.NOT_SERVING, "no certificate can be made now: Helen's log says why")

    def renew_own(self, certificate: Path, now: float) -> bool:
        """Sign Helen's own certificate anew, if a third of its life is left, and it is one of ours. True: it was."""
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

    def _enrol(self, ask: CertificateRequest, now: float) -> bytes:
        token = read_token(ask.token)
        if token is None:
            raise Refusal(codes.WRONG_CREDENTIALS, f"that is no token: {_NEW_TOKEN}")
        issuer = self._issuer()
        root = _load_certificate(self._folder / CA_FILE)
        with self._locked():
            kept = self._tokens.find(token)
            if kept is None or token.authority != _fingerprint(root):
                raise Refusal(codes.WRONG_CREDENTIALS, f"the token is unknown, or was used: {_NEW_TOKEN}")
            if kept.expires <= now:
                raise Refusal(codes.WRONG_CREDENTIALS, f"the token has expired: {_NEW_TOKEN}")
            request = certificates.read_request(ask.csr)
            if kept.name and kept.name != request.name:
                raise Refusal(codes.NOT_ALLOWED, f"the token is for {kept.name}: enrol with --name {kept.name}")
            if not kept.name and self._lives(request.name, now):
                raise Refusal(
                    codes.IN_USE, f"{request.name} is enrolled already: revoke it, or make a token with --name"
                )
            if not self._tokens.use(token):
                raise Refusal(codes.WRONG_CREDENTIALS, f"the token was used: {_NEW_TOKEN}")
            return self._sign(issuer, request, now)

    def _renew(self, ask: CertificateRequest, name: str, serial: str, now: float) -> bytes:
        if ask.token:
            raise Refusal(codes.MALFORMED, "a renewal needs no token: the certificate says who asks")
        request = certificates.read_request(ask.csr)
        if request.name != name:
            raise Refusal(codes.NOT_ALLOWED, f"a renewal keeps its name, {name}; another name needs a token")
        issuer = self._issuer()
        with self._locked():
            self._now_revoked.refresh()
            # Without a serial nobody knows which certificate asks: one of the name must still count, then.
            over = self._now_revoked.covers(name, serial, 0.0) if serial else self._over(name, now)
            if over:
                raise Refusal(codes.NOT_ALLOWED, f"the certificate of {name} is revoked: enrol again with a token")
            return self._sign(issuer, request, now)

    def _sign(self, issuer: Issuer, request: SigningRequest, now: float) -> bytes:
        """Within the lock. The record first: what is not on record could not be shown to whoever revokes it."""
        self._now_revoked.refresh()
        before_us = self._now_revoked.before_us(request.name)
        if before_us >= EVER_US:
            raise Refusal(codes.NOT_ALLOWED, f"{request.name} is revoked, and Helen cannot read since when")
        record = self._record(request.name, now)
        if len(record.certificates) >= MAX_LIVE_CERTIFICATES:
            raise Refusal(codes.TOO_MANY, f"{request.name} has {MAX_LIVE_CERTIFICATES} certificates that still hold")
        # After the revocation whatever the clock says: a clock that went back must not make a new one stillborn.
        serial = certificates.new_serial(max(int(now * 1e6), before_us + 1))
        signed = certificates.agent_certificate(issuer, request, serial, now, self._agent_days)
        issued = Issued(f"{serial:X}", now, certificates.wall(signed.not_valid_after_utc))
        record = msgspec.structs.replace(record, certificates=(*record.certificates, issued))
        _write(self._record_path(request.name), msgspec.json.encode(record).decode())
        log.info(
            "signed a certificate for %s, serial %s",
            request.name,
            issued.serial,
            extra=about(agent=request.name, serial=issued.serial),
        )
        return certificates.pem_of(signed, issuer.certificate).encode()

    def _over(self, name: str, now: float) -> bool:
        """True if the name was revoked, and nothing was signed for it since."""
        return self._now_revoked.touches(name) and not self._lives(name, now)

    def _lives(self, name: str, now: float) -> bool:
        """True if somebody may hold a certificate of this name that still counts."""
        revoked = self._now_revoked
        revoked.refresh()
        return any(not revoked.covers(name, each.serial, each.issued) for each in self._record(name, now).certificates)

    def _record(self, name: str, now: float) -> IssuedRecord:
        """What is on record of a name and has not expired; what cannot be read is an error, not an empty record."""
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
        """One at a time over all threads and processes; a process that dies lets go by dying."""
        descriptor = os.open(self._folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def create_authority(folder: Path, names: Sequence[str], now: float) -> CertificateAuthority:
    """Make an authority, and Helen's certificate for these names. AuthorityError: there is one, or it cannot be."""
    found = [name for name in FILES if (folder / name).exists()]
    if found:
        raise AuthorityError(f"{folder} has {found[0]} already, and nothing was changed; choose another folder")
    places = certificates.places(names)
    issuer = certificates.new_issuer(now)
    agents = certificates.agents_issuer(issuer, now)
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


def _read_ask(body: bytes) -> CertificateRequest:
    try:
        return msgspec.json.decode(body, type=CertificateRequest, strict=True)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Refusal(codes.MALFORMED, "enrol carries a JSON object with `token` and `csr`") from error


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise AuthorityError(f"there is no {path.name} in {path.parent}; `scale0 helen init` makes one") from None
    except OSError as error:
        raise AuthorityError(f"cannot read {path}: {error.strerror}; check who owns it") from error
    except ValueError:
        raise AuthorityError(f"{path} is no certificate in PEM; bring back a copy of it") from None


def _fingerprint(certificate: x509.Certificate) -> bytes:
    return certificates.fingerprint(certificate.public_bytes(Encoding.DER))


def _write(path: Path, text: str) -> None:
    write_secret(path, text)
    sync_directory(path.parent)


__all__ = [
    "AGENTS_CA_FILE",
    "CA_FILE",
    "CA_KEY_FILE",
    "HELEN_FILE",
    "HELEN_KEY_FILE",
    "AuthorityError",
    "CertificateAuthority",
    "EnrolmentToken",
    "create_authority",
    "plain_serial",
]
