"""A running agent renews its certificate when a third of its validity is left."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scale0.kernel.errors import Refusal
from scale0.monitoring.agent.edge.certificate import read_certificate, renew
from scale0.monitoring.pki import certificates
from scale0.monitoring.pki.authority import CA_FILE, HELEN_FILE, HELEN_KEY_FILE, CertificateAuthority, create_authority
from tests.fakes.waiting import until
from tests.processes.agent.agents import AgentProcess
from tests.processes.agent.credentials import Credentials
from tests.processes.agent.helen_version_1 import Helen

DAY = 86_400.0

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_renewal_that_cannot_be_started_is_no_end_of_them(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    asyncio.run(renew(tmp_path / "agent.zpl"))
    assert "could not be started" in caplog.text


def enrolled(authority: CertificateAuthority, folder: Path, name: str, at: float) -> tuple[Path, Path]:
    """Certificate and key of an agent that was enrolled then."""
    key = certificates.new_key()
    token = authority.make_token(at, 10.0)
    body = msgspec.json.encode({"token": token.text(), "csr": certificates.request_pem(key, name)})
    chain = authority.enrol(body, None, at)
    assert isinstance(chain, bytes)
    (folder / "agent.pem").write_bytes(chain)
    (folder / "agent-key.pem").write_text(certificates.key_pem(key))
    return folder / "agent.pem", folder / "agent-key.pem"


def serve(helen: Helen, authority: CertificateAuthority, ended: threading.Event) -> None:
    """Renew whoever asks, and let everybody else wait."""
    helen.listener.settimeout(0.1)
    while not ended.is_set():
        try:
            raw, _ = helen.listener.accept()
        except TimeoutError:
            continue
        raw.settimeout(10)
        try:
            with helen.context.wrap_socket(raw, server_side=True) as tls, tls.makefile("rb") as file:
                words = file.readline().decode().split()
                if words[0] == "enrol":
                    chain = authority.enrol(file.read(int(words[1])), common_name(tls), time.time())
                    assert not isinstance(chain, Refusal)
                    tls.sendall(b"enrolled %d\n%s\n" % (len(chain), chain))
        except OSError:
            continue


def common_name(tls: ssl.SSLSocket) -> str:
    subject: Any = (tls.getpeercert() or {})["subject"]
    return str(dict(pairs[0] for pairs in subject)["commonName"])


# Promise: AGENT-20
def test_a_certificate_near_its_end_is_renewed(credentials: Credentials, tmp_path: Path):
    folder, now = tmp_path / "helen", time.time()
    authority = create_authority(folder, ["localhost", "127.0.0.1"], now - 25 * DAY)
    certificate, key = enrolled(authority, tmp_path, "web-1", now - 25 * DAY)
    old = read_certificate(certificate)
    helen = Helen(folder / HELEN_FILE, folder / HELEN_KEY_FILE, folder / CA_FILE)
    ended = threading.Event()
    thread = threading.Thread(target=serve, args=(helen, authority, ended), daemon=True)
    thread.start()
    files = {"certificate": str(certificate), "private_key": str(key), "server_ca": str(folder / CA_FILE)}
    try:
        with AgentProcess(tmp_path, credentials, [helen.port], **files) as agent:
            agent.wait_ready()
            agent.wait_log("renewed until")
            until(lambda: read_certificate(certificate).not_after > old.not_after + 20 * DAY)
            assert read_certificate(certificate).identity == "web-1"
    finally:
        ended.set()
        thread.join(10)
        helen.close()
