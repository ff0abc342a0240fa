"""Certificates for a fleet: a CA, Helen's, and as many agents' as wanted, quickly."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 2


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


class Ca:
    """Signs for two days."""

    def __init__(self, folder: Path, file: str) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name(f"benchmark {file}")
        self.now = datetime.datetime.now(datetime.UTC)
        self.certificate = self._builder(self.name, self.key.public_key(), ca=True).sign(self.key, hashes.SHA256())
        (folder / file).write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - datetime.timedelta(hours=1))
            .not_valid_after(self.now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
        )

    def issue(self, name: str, certificate: Path, key_file: Path, server: bool = False) -> None:
        """A certificate and its key, in one file or two."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key.public_key(), ca=False)
        if server:
            names: list[x509.GeneralName] = [
                x509.DNSName("localhost"),
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pem = builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        if certificate == key_file:
            certificate.write_bytes(pem + _key_pem(key))
        else:
            certificate.write_bytes(pem)
            key_file.write_bytes(_key_pem(key))
        key_file.chmod(0o600)
