"""Certificates for tests, signed by hand and not by the product's authority, which is under test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
DAY = datetime.timedelta(days=1)
AGE_DAYS = 10
"""How long ago a certificate began."""
PEM = serialization.Encoding.PEM
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


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def subject(*common_names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])


def request_pem(common_name: str, key: Key) -> str:
    """A signing request, as `enrol` carries it."""
    request = x509.CertificateSigningRequestBuilder().subject_name(subject(common_name)).sign(key, hashes.SHA256())
    return request.public_bytes(PEM).decode()


class Authority:
    """A certificate authority; its files are in `folder`."""

    def __init__(self, folder: Path, common_name: str = "test authority") -> None:
        self._key = new_key()
        builder = _builder(subject(common_name), subject(common_name), self._key, 30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._use(folder, builder.add_extension(SIGNS, critical=True).sign(self._key, hashes.SHA256()))

    @classmethod
    def load(cls, folder: Path, certificate: Path, key: Path) -> Authority:
        """The authority whose files these are, so that a test can sign agents in its name."""
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        made = cls.__new__(cls)
        made._key = loaded
        made._use(folder, x509.load_pem_x509_certificate(certificate.read_bytes()))
        return made

    def _use(self, folder: Path, certificate: x509.Certificate) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._certificate = folder, certificate
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(certificate.public_bytes(PEM))

    def agent(self, *common_names: str, days: float = 300) -> CertificateFiles:
        """An agent's certificate, valid for so many days from now; below zero, it has expired."""
        return self._issue(common_names, days, is_helen=False)

    def helen(self) -> CertificateFiles:
        """The certificate of a Helen on loopback."""
        return self._issue(("helen",), 30, is_helen=True)

    def helen_context(self) -> ssl.SSLContext:
        """Of a Helen whose agents must show a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(*self.helen())
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _issue(self, names: tuple[str, ...], days: float, is_helen: bool) -> CertificateFiles:
        key = new_key()
        usage = ExtendedKeyUsageOID.SERVER_AUTH if is_helen else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(subject(*names), self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if is_helen:
            hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        stem = "-".join(names).replace("/", "_")[:40]
        files = CertificateFiles(self.folder / f"{stem}.pem", self.folder / f"{stem}-key.pem")
        files.certificate.write_bytes(signed.public_bytes(PEM))
        files.key.write_bytes(key_pem(key))
        files.key.chmod(0o600)
        return files


def _builder(name: x509.Name, issuer: x509.Name, key: Key, days: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - AGE_DAYS * DAY)
        .not_valid_after(now + days * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
