"""Helen's own certificate, whoever made it, never ends her."""

from __future__ import annotations

import asyncio
import datetime
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from scale0.monitoring.helen.edge.process import OwnCertificate
from scale0.monitoring.pki.authority import create_authority


def nameless(path: Path) -> None:
    """A certificate of somebody else's, without any other name than that of its subject."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "helen")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 7, now, now + datetime.timedelta(days=1))
    path.write_bytes(built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


async def test_a_certificate_that_cannot_be_renewed_is_no_reason_to_end(tmp_path: Path, caplog: Any) -> None:
    authority = create_authority(tmp_path, ["localhost"], time.time())
    nameless(tmp_path / "own.pem")
    files = dict.fromkeys(("certificate", "private_key", "client_ca"), str(tmp_path / "own.pem"))
    socket: Any = None
    config: Any = SimpleNamespace(**files)
    keeping = asyncio.get_running_loop().create_task(OwnCertificate(config, socket, authority).keep_renewed())
    async with asyncio.timeout(10.0):
        while not caplog.records and not keeping.done():  # noqa: ASYNC110  # a log sets no event
            await asyncio.sleep(0.005)
    assert not keeping.done()
    keeping.cancel()
    assert "could not be renewed" in caplog.text
