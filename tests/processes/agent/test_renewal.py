"""A running agent renews its certificate when a third of its validity is left."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import pytest

from scale0.monitoring.agent.edge.certificate import read_certificate, renew
from scale0.monitoring.pki import certificates
from scale0.monitoring.pki.authority import CA_FILE, CertificateAuthority, create_authority
from tests.fakes.agent_process import AgentProcess
from tests.fakes.certificates import Authority
from tests.fakes.waiting import until
from tests.processes.pki.enrolment_helen import EnrolmentHelen

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


# Promise: AGENT-20
def test_a_certificate_near_its_end_is_renewed(tmp_path: Path):
    folder, now = tmp_path / "helen", time.time()
    authority = create_authority(folder, ["localhost", "127.0.0.1"], now - 25 * DAY)
    certificate, key = enrolled(authority, tmp_path, "web-1", now - 25 * DAY)
    old = read_certificate(certificate)
    files = {"certificate": str(certificate), "private_key": str(key), "server_ca": str(folder / CA_FILE)}
    with (
        EnrolmentHelen(authority, folder) as helen,
        AgentProcess(tmp_path, Authority(tmp_path / "unused"), helen.port, **files) as agent,
    ):
        agent.wait_log("renewed until")
        until(lambda: read_certificate(certificate).not_after > old.not_after + 20 * DAY)
        assert read_certificate(certificate).identity == "web-1"
