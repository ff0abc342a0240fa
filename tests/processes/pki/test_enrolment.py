"""Enrolment over real TLS on loopback: who receives the token, which files are written, and renewal."""

from __future__ import annotations

import datetime
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
from cryptography import x509

from scale0.config import AgentConfig
from scale0.config.edge.files import read_config
from scale0.monitoring.pki import certificates, enrolment
from scale0.monitoring.pki.authority import CertificateAuthority, create_authority
from scale0.monitoring.pki.enrolment import EnrolError, EnrolmentEndpoint, enrol, renew, renew_if_due, renewal_at
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from tests.processes.pki.enrolment_helen import EnrolmentHelen

pytestmark = pytest.mark.processes


@pytest.fixture
def token(authority):
    return authority.make_token(time.time(), 60, "web-1")


@pytest.fixture
def files(helen, token, tmp_path):
    return enrol(helen.address, token, "web-1", tmp_path / "agent")


def refused(*args, **more) -> EnrolError:
    with pytest.raises(EnrolError) as found:
        enrol(*args, **more)
    return found.value


def test_enrolling_writes_a_file_that_is_ready_to_run(helen, files, tmp_path):
    config = read_config(files.config, AgentConfig)
    assert config.helen_addresses() == (("127.0.0.1", helen.address.port),)
    assert config.checks_dir == str(tmp_path / "agent" / "checks")
    assert (tmp_path / "agent" / "checks").is_dir()
    context = ssl.create_default_context(cafile=config.server_ca)
    context.load_cert_chain(config.certificate, config.private_key)
    with (
        socket.create_connection((helen.address.host, helen.address.port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        assert connection.version() == "TLSv1.3"
        connection.sendall(b"hello 2 x\n")
        assert connection.recv(100).startswith(b"error")
    assert helen.callers == [None, None, "web-1"]
    assert files.expires == pytest.approx(time.time() + 30 * 86_400, abs=60)


# Promise: AGENT-19
def test_every_file_of_an_agent_is_for_its_owner_alone(files, tmp_path):
    old = os.umask(0)
    os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "agent").iterdir() if path.is_file()}
    assert modes == dict.fromkeys(("agent.zpl", "agent.pem", "agent-key.pem", "ca.pem"), 0o600)


# Promise: AGENT-19
def test_the_key_never_leaves_the_machine(helen, files):
    key = files.key.read_text().splitlines()[1]
    assert all(key.encode() not in data for data in helen.received)


# Promise: AGENT-19
def test_a_helen_of_another_authority_receives_nothing(tmp_path, token, authority):
    other = create_authority(tmp_path / "other", ["127.0.0.1"], time.time())
    with EnrolmentHelen(other, tmp_path / "other") as stranger:
        error = refused(stranger.address, token, "web-1", tmp_path / "agent")
    assert "Nothing was sent" in str(error)
    assert stranger.received == []
    assert token.secret not in str(error) + error.next_step
    assert not (tmp_path / "agent" / "agent-key.pem").exists()
    assert not (tmp_path / "agent" / "agent-key.pem.new").exists()


# Promise: AGENT-19
def test_a_helen_that_shows_the_right_authority_beside_a_false_certificate_receives_nothing(
    tmp_path, token, authority, folder
):
    """Certificates are public: a thief can show the authority's, but has none that it signed."""
    other = create_authority(tmp_path / "other", ["127.0.0.1"], time.time())
    false = x509.load_pem_x509_certificates((tmp_path / "other" / "helen.pem").read_bytes())[0]
    chain = certificates.pem_of(false) + (folder / "ca.pem").read_text()
    (tmp_path / "other" / "helen.pem").write_text(chain)
    with EnrolmentHelen(other, tmp_path / "other") as thief:
        error = refused(thief.address, token, "web-1", tmp_path / "agent")
    assert "is not valid" in str(error)
    assert thief.received == []


# Promise: AGENT-19
def test_an_agents_certificate_cannot_play_helen(tmp_path, authority, folder, helen, files):
    trusted = (folder / "agents-ca.pem").read_bytes()
    (folder / "helen.pem").write_bytes(files.certificate.read_bytes() + trusted)
    (folder / "helen-key.pem").write_bytes(files.key.read_bytes())
    second = authority.make_token(time.time(), 60)
    with EnrolmentHelen(authority, folder) as thief:
        error = refused(thief.address, second, "web-2", tmp_path / "web-2")
    assert "is not valid" in str(error)
    assert thief.received == []


def test_a_name_that_helens_certificate_does_not_have_is_refused(tmp_path):
    small = create_authority(tmp_path / "small", ["helen.example"], time.time())
    token = small.make_token(time.time(), 60)
    with EnrolmentHelen(small, tmp_path / "small") as running:
        error = refused(running.address, token, "web-1", tmp_path / "agent")
        assert running.received == []
    assert "127.0.0.1" in str(error)
    assert "--name" in error.next_step


def test_a_refusal_of_helen_is_shown_with_its_next_step(helen, token, files, tmp_path):
    error = refused(helen.address, token, "web-1", tmp_path / "second")
    assert str(error).startswith("Helen refuses: the token is unknown, or was used")
    assert "scale0 helen token" in str(error)
    assert token.secret not in str(error)


def test_what_is_there_is_not_written_over_unless_one_says_so(helen, authority, files, tmp_path):
    key = files.key.read_bytes()
    again = authority.make_token(time.time(), 60, "web-1")
    error = refused(helen.address, again, "web-1", tmp_path / "agent")
    assert "nothing was changed" in str(error)
    assert files.key.read_bytes() == key
    files.config.write_text(files.config.read_text() + "labels\n    role = web\n")
    enrol(helen.address, again, "web-1", tmp_path / "agent", replace=True)
    assert files.key.read_bytes() != key
    assert read_config(files.config, AgentConfig).labels == {"role": "web"}


@pytest.mark.parametrize("name", ["", "web 1", "x" * 65])
def test_a_name_that_cannot_be_is_refused_before_anything_is_asked(token, tmp_path, name):
    assert "--name" in refused(EnrolmentEndpoint("127.0.0.1", 1), token, name, tmp_path / "agent").next_step


def test_nobody_there_is_unreachable(token, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = refused(EnrolmentEndpoint("127.0.0.1", port), token, "web-1", tmp_path / "agent")
    assert error.unreachable
    assert f"cannot connect to 127.0.0.1:{port}" in str(error)
    assert refused(EnrolmentEndpoint("no.such.host.invalid", 1), token, "web-1", tmp_path / "agent").unreachable


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_without_tls_is_reported_as_such(token, tmp_path, sent):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            plain, _ = listening.accept()
            with plain:
                plain.recv(100)
                plain.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        error = refused(EnrolmentEndpoint("127.0.0.1", listening.getsockname()[1]), token, "web-1", tmp_path / "agent")
        thread.join(5)
    assert "no TLS 1.3 connection" in str(error)


def test_a_silent_peer_is_given_up(token, tmp_path, monkeypatch):
    monkeypatch.setattr(enrolment, "DEADLINE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = refused(EnrolmentEndpoint("127.0.0.1", silent.getsockname()[1]), token, "web-1", tmp_path / "agent")
    assert error.unreachable


def chain_for(name: str, key: certificates.PrivateKey, authority: CertificateAuthority) -> bytes:
    body = json.dumps({"csr": certificates.request_pem(key, name)}).encode()
    found = authority.enrol(body, name, time.time())
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("kind", ["another key", "another authority", "no PEM", "endless", "strange", "fault"])
def test_an_answer_that_does_not_fit_is_not_taken(helen, token, authority, tmp_path, kind):
    key = certificates.new_key()
    other = create_authority(tmp_path / "other", ["localhost"], time.time())
    helen.reply = {
        "another key": encode(messages.Enrolled(chain_for("web-1", key, authority))),
        "another authority": encode(messages.Enrolled(chain_for("web-1", key, other))),
        "no PEM": encode(messages.Enrolled(b"hello")),
        "endless": b"pong 1\n" * 20_000,
        "strange": b"who are you\n",
        "fault": b"enrolled 99999999999\n",
    }[kind]
    error = refused(helen.address, token, "web-1", tmp_path / "agent")
    assert token.secret not in str(error)
    assert not (tmp_path / "agent" / "agent.pem").exists()


# ---- renewal


# Promise: AGENT-20
def test_a_renewal_changes_the_certificate_alone_and_keeps_name_and_key(helen, files):
    config = read_config(files.config, AgentConfig)
    old, key = files.certificate.read_bytes(), files.key.read_bytes()
    until = renew(config)
    new = x509.load_pem_x509_certificates(files.certificate.read_bytes())[0]
    assert files.certificate.read_bytes() != old
    assert files.key.read_bytes() == key
    assert certificates.common_name_of(new) == "web-1"
    assert until == new.not_valid_after_utc.timestamp()
    assert helen.callers[-1] == "web-1"
    assert b'"token"' not in helen.received[-1]


# Promise: AGENT-20
def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left(helen, files):
    config = read_config(files.config, AgentConfig)
    due = renewal_at(files.certificate)
    leaf = x509.load_pem_x509_certificates(files.certificate.read_bytes())[0]
    assert due == pytest.approx((leaf.not_valid_after_utc - datetime.timedelta(days=10)).timestamp(), abs=3_600)
    assert renew_if_due(config, due - 1) is None
    assert renew_if_due(config, due) is not None


def test_the_next_helen_is_asked_when_one_does_not_answer(helen, files):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    text = files.config.read_text()
    files.config.write_text(f"helen = 127.0.0.1:{port}\n" + text)
    assert renew(read_config(files.config, AgentConfig)) > time.time()


# Promise: AGENT-20
def test_a_revoked_agent_cannot_renew_and_keeps_what_it_had(helen, authority, files):
    authority.revoke("web-1", time.time())
    old = files.certificate.read_bytes()
    with pytest.raises(EnrolError, match="revoked"):
        renew(read_config(files.config, AgentConfig))
    assert files.certificate.read_bytes() == old


def test_files_that_are_gone_or_do_not_fit_are_named(helen, files):
    config = read_config(files.config, AgentConfig)
    files.key.write_text(certificates.key_pem(certificates.new_key()))
    with pytest.raises(EnrolError, match="do not match"):
        renew(config)
    files.key.write_text("no key")
    with pytest.raises(EnrolError, match=r"agent-key\.pem"):
        renew(config)
    files.certificate.unlink()
    with pytest.raises(EnrolError, match=r"agent\.pem"):
        renewal_at(files.certificate)


@pytest.mark.slow
def test_renewal_runs_in_a_process_of_its_own(helen, files):
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scale0.monitoring.pki.enrolment", str(files.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "not due\n", "")
    files.certificate.unlink()
    failed = run()
    assert failed.returncode == 1
    assert failed.stderr.startswith("the certificate was not renewed: cannot read")


def test_a_new_certificate_that_ends_sooner_does_not_take_the_place_of_the_old(helen, files, folder):
    """A Helen whose clock is behind would lock her agents out as soon as it is right again."""
    config = read_config(files.config, AgentConfig)
    before = files.certificate.read_bytes()
    key = certificates.read_key(files.key.read_bytes())
    body = json.dumps({"csr": certificates.request_pem(key, "web-1")}).encode()
    serial = f"{x509.load_pem_x509_certificate(before).serial_number:X}"
    chain = CertificateAuthority(folder).enrol(body, "web-1", time.time() - 40 * 86_400, serial)
    assert isinstance(chain, bytes)
    helen.reply = encode(messages.Enrolled(chain))
    with pytest.raises(EnrolError, match="ends before the old one"):
        renew(config)
    assert files.certificate.read_bytes() == before


def test_what_helen_sends_cannot_control_a_terminal(helen, token, tmp_path):
    helen.reply = b"error no\x1b]0;owned\x07\n"
    assert str(refused(helen.address, token, "web-1", tmp_path / "agent")) == "Helen refuses: no?]0;owned?"
