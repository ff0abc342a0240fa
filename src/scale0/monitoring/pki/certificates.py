"""Keys, certificate signing requests (CSR) and certificates of Helen's CA.

Invariants: only the key and the name of a request reach a certificate; the certificate of an agent cannot be used as
Helen's, nor the other way round; each serial number contains the time of signing in microseconds.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity

MAX_CN_CHARS: Final = 64
"""X.509's limit for a common name, and so the limit for an agent's name."""
MAX_REQUEST_CHARS: Final = 16_384
"""Of a CSR in PEM: one with the largest accepted key has a quarter of it."""
MIN_RSA_BITS: Final = 2_048
MAX_RSA_BITS: Final = 4_096
"""Above it, verification costs too much."""

CA_DAYS: Final = 20 * 365
"""When a CA expires, all its agents lose access."""
HELEN_DAYS: Final = 730
AGENT_DAYS: Final = 30
"""Renewed when a third is left; a stolen key is useless afterwards."""
EARLY_SECONDS: Final = 3_600
"""Certificates are valid from an hour before they are signed, for clocks that are behind or go back."""

_TAG: Final = 0x5330
"""The first two bytes of our serial numbers."""
_TIME_BITS: Final = 64
_RANDOM_BITS: Final = 80
_WEAK_HASHES: Final = (hashes.MD5, hashes.SHA1)
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey


class SigningRequest(msgspec.Struct, frozen=True):
    """The fields of a CSR that are used."""

    name: str
    key: PublicKey


class Issuer(msgspec.Struct, frozen=True):
    """A CA: its certificate, and the key that signs."""

    certificate: x509.Certificate
    key: PrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> str:
    """A secret: write it only to files of mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def read_key(pem: bytes) -> PrivateKey:
    """A private key in PEM. ValueError: it cannot be used here."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("it is encrypted, or of an unknown kind") from error
    if not isinstance(key, PrivateKey):
        raise ValueError("it is not an ECDSA, RSA or Ed25519 key")
    return key


def pem_of(*certificates: x509.Certificate) -> str:
    """A chain, leaf first."""
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in certificates)


def fingerprint(der: bytes) -> bytes:
    """The SHA-256 of a certificate: it identifies a CA in a token."""
    return hashlib.sha256(der).digest()


def request_pem(key: PrivateKey, name: str) -> str:
    """A CSR for this key and name. ValueError: invalid name."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_common_name(name))
    return builder.sign(key, _hash_for(key)).public_bytes(serialization.Encoding.PEM).decode()


def read_request(pem: str) -> SigningRequest:
    """Validate a CSR from an untrusted client. Refusal says what is wrong with it."""
    if len(pem) > MAX_REQUEST_CHARS:
        raise Refusal(codes.TOO_BIG, f"the certificate request has more than {MAX_REQUEST_CHARS} characters")
    try:
        request = x509.load_pem_x509_csr(pem.encode("ascii"))
        names = [each.value for each in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        key = request.public_key()
        genuine = request.is_signature_valid
        weak = isinstance(request.signature_hash_algorithm, _WEAK_HASHES)
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm, InvalidSignature) as error:
        raise Refusal(codes.MALFORMED, "the certificate request cannot be parsed: PKCS #10 in PEM is needed") from error
    if not genuine or weak:
        raise Refusal(codes.MALFORMED, "the certificate request is not signed by its own key, or with a weak hash")
    if len(names) != 1 or not isinstance(names[0], str) or not _is_name(names[0]):
        raise Refusal(codes.MALFORMED, f"the certificate request must have one CN: {NAME_RULE}")
    return SigningRequest(names[0], _accepted(key))


NAME_RULE: Final = f"1 to {MAX_CN_CHARS} characters of A-Z a-z 0-9 . _ : -"


def _is_name(text: str) -> bool:
    return len(text) <= MAX_CN_CHARS and is_identity(text)


def check_name(name: str) -> None:
    """Raise ValueError if this is not a valid agent name."""
    if not _is_name(name):
        raise ValueError(f"an agent's name is {NAME_RULE}")


def _accepted(key: object) -> PublicKey:
    match key:
        case ec.EllipticCurvePublicKey() if isinstance(key.curve, _CURVES):
            return key
        case rsa.RSAPublicKey() if MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            return key
        case ed25519.Ed25519PublicKey():
            return key
    raise Refusal(
        codes.MALFORMED,
        f"the key is too weak or of an unsupported type: use P-256, Ed25519, or RSA with at least {MIN_RSA_BITS} bits",
    )


# ---- serial numbers


def new_serial(issued_us: int) -> int:
    """An unguessable serial number that contains the time of signing."""
    return ((_TAG << _TIME_BITS | issued_us) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


def issued_us_of(serial: int) -> int | None:
    """The time of signing of a serial number; None: it is not one of ours."""
    if serial >> (_TIME_BITS + _RANDOM_BITS) != _TAG:
        return None
    return (serial >> _RANDOM_BITS) & ((1 << _TIME_BITS) - 1)


# ---- certificates


def new_root_ca(now: float) -> Issuer:
    """A self-signed CA, for Helen's certificate and for the CA of agents."""
    key = new_key()
    name = _common_name(f"Scale0 authority {secrets.token_hex(4)}")
    return Issuer(_ca_certificate(name, name, key, key, 1, now), key)


def new_agents_ca(root: Issuer, now: float) -> Issuer:
    """The CA that signs the certificates of agents.

    It is not the root CA, so that it is not among those that an agent trusts: OpenSSL sends every certificate of the
    chain that it finds there, and Helen would keep it in memory for each connection.
    """
    key = new_key()
    name = _common_name(f"Scale0 agents {secrets.token_hex(4)}")
    return Issuer(_ca_certificate(name, root.certificate.subject, key, root.key, 0, now), key)


def _ca_certificate(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, signer: PrivateKey, path_length: int, now: float
) -> x509.Certificate:
    builder = _builder(subject, issuer, key.public_key(), new_serial(_us(now)), now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    return builder.sign(signer, _hash_for(signer))


def agent_certificate(
    issuer: Issuer, request: SigningRequest, serial: int, now: float, days: float
) -> x509.Certificate:
    builder = _leaf(issuer, _common_name(request.name), request.key, serial, now, days)
    return _signed(builder.add_extension(_purpose(ExtendedKeyUsageOID.CLIENT_AUTH), critical=False), issuer)


def helen_certificate(
    issuer: Issuer, key: PublicKey, names: Iterable[x509.GeneralName], now: float
) -> x509.Certificate:
    builder = _leaf(issuer, _common_name("helen"), key, new_serial(_us(now)), now, HELEN_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _signed(builder.add_extension(_purpose(ExtendedKeyUsageOID.SERVER_AUTH), critical=False), issuer)


def subject_alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
    """Host names and IP addresses, each once, as general names. ValueError names one that is neither."""
    found: dict[str, x509.GeneralName] = {}
    for name in names:
        try:
            found[name] = x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            if not name.isascii() or not name or not all(part for part in name.split(".")):
                raise ValueError(f"{name!r} is not a host name or an address") from None
            found[name] = x509.DNSName(name)
    return list(found.values())


def renewal_at(certificate: x509.Certificate) -> float:
    """When a third of its validity is left, in seconds since the epoch."""
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return end - (end - begin) / 3


def common_name_of(certificate: x509.Certificate) -> str:
    """Its CN; blank: it has none, or several."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _us(now: float) -> int:
    return int(now * 1e6)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _hash_for(key: PrivateKey) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, serial: int, now: float, days: float
) -> x509.CertificateBuilder:
    begin = datetime.datetime.fromtimestamp(int(now) - EARLY_SECONDS, datetime.UTC)
    end = datetime.datetime.fromtimestamp(int(now), datetime.UTC) + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _leaf(
    issuer: Issuer, subject: x509.Name, key: PublicKey, serial: int, now: float, days: float
) -> x509.CertificateBuilder:
    signer = issuer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = _builder(subject, issuer.certificate.subject, key, serial, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    return builder.add_extension(authority, critical=False)


def _signed(builder: x509.CertificateBuilder, issuer: Issuer) -> x509.Certificate:
    return builder.sign(issuer.key, _hash_for(issuer.key))


def _purpose(purpose: x509.ObjectIdentifier) -> x509.ExtendedKeyUsage:
    return x509.ExtendedKeyUsage([purpose])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
