"""Certificates for tests: a CA, a Helen and agents, made with `cryptography` alone, not by our authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOUR = datetime.timedelta(hours=1)


class Certificates:
    """A CA in a folder, and what it has signed."""

    def __init__(self, folder: Path, name: str = "trial CA") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = self._start(self._name, self._key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
        self.ca.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.helen = self.sign("helen")

    def sign(self, *names: str, hours: float = 24.0) -> tuple[Path, Path]:
        """The files of a certificate with these common names, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = (
            self._start(subject, key.public_key(), hours)
            .add_extension(x509.BasicConstraints(False, None), True)
            .add_extension(x509.SubjectAlternativeName(places), False)
        )
        certificate = built.sign(self._key, hashes.SHA256())
        stem = names[0] if names else "nameless"
        paths = self.folder / f"{stem}.pem", self.folder / f"{stem}-key.pem"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        return paths

    def _start(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, hours: float = 24.0
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * HOUR)
            .not_valid_after(now + hours * HOUR)
        )
