"""Certificates for tests, made by hand and not by the product's authority, which is under test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
DAY = datetime.timedelta(days=1)
SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""What RFC 5280 wants of an authority; strict verifiers insist."""


@dataclass(frozen=True)
class Papers:
    """A certificate chain and its key, as files."""

    certificate: Path
    key: Path


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def request_pem(common_name: str, key: Key) -> str:
    """A signing request, as `enrol` carries it."""
    request = x509.CertificateSigningRequestBuilder().subject_name(named(common_name)).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


class Authority:
    """Somebody who signs; its files are in `folder`."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: Key) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._certificate, self._key = folder, certificate, key
        self.file = folder / "ca.pem"
        self.file.write_bytes(certificate_pem(certificate))

    def agent(self, common_name: str, *, days: int = 300) -> Papers:
        """What an agent of this name shows, for so many days from now; below zero it is over already."""
        return self._issue(common_name, ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def helen(self, common_name: str = "helen") -> Papers:
        """What a Helen at 127.0.0.1 shows."""
        return self._issue(common_name, ExtendedKeyUsageOID.SERVER_AUTH, 30)

    def _issue(self, common_name: str, usage: x509.ObjectIdentifier, days: int) -> Papers:
        key = new_key()
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = _builder(common_name, self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if usage == ExtendedKeyUsageOID.SERVER_AUTH:
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        name = f"{common_name.replace('/', '_')[:40]}-{signed.serial_number:x}"
        papers = Papers(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")
        papers.certificate.write_bytes(certificate_pem(signed))
        papers.key.write_bytes(key_pem(key))
        papers.key.chmod(0o600)
        return papers


def new_authority(folder: Path, common_name: str = "test authority") -> Authority:
    key = new_key()
    builder = _builder(common_name, named(common_name), key, 30)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(SIGNS, critical=True)
    return Authority(folder, builder.sign(key, hashes.SHA256()), key)


def authority_from(folder: Path, certificate: Path, key: Path) -> Authority:
    """The authority whose files these are, so that a test can sign agents in its name."""
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return Authority(folder, x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)


def _builder(common_name: str, issuer: x509.Name, key: Key, days: int, age: int = 10) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(common_name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - age * DAY)
        .not_valid_after(now + days * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
