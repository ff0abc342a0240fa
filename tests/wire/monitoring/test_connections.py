"""Connections to Helen: limits, timeouts, and clients without a certificate (PROTOCOL 10)."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.fakes.certificates import Authority, CertificateFiles, key_pem, new_key, request_pem
from tests.fakes.fake_agent import FakeAgent, client_context
from tests.fakes.helen_process import HelenProcess
from tests.fakes.waiting import PATIENCE_SECONDS
from tests.wire.monitoring.network import MIB, Network, run, unique

pytestmark = pytest.mark.processes

DEADLINE_SECONDS = 5.0
SLACK_SECONDS = 1.5
"""The machine may be busy."""
SLOW_HELLO = b"hello 1 quite-a-long-name/1\n"


def enrolment(token: str, csr: str, **more: Any) -> bytes:
    blob = json.dumps({"token": token, "csr": csr, **more}).encode()
    return b"enrol %d\n%s\n" % (len(blob), blob)


def token_for(helen: HelenProcess, name: str) -> str:
    return str(json.loads(run("helen", "token", "--data-dir", str(helen.folder), "--name", name, "--json"))["token"])


def common_name(chain: bytes) -> str:
    first = x509.load_pem_x509_certificates(chain)[0]
    return str(first.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


# --- enrol


# Promise: AGENT-18
def test_a_token_buys_a_certificate_once_and_the_certificate_gets_in(
    network: Network, helen: HelenProcess, tmp_path
) -> None:
    name, key = unique("new"), new_key()
    words = enrolment(token_for(helen, name), request_pem(name, key))
    stranger = helen.connect(None)
    stranger.send(words)
    received = stranger.expect("enrolled")
    assert common_name(received.blob) == name
    assert stranger.read_to_end() == b""

    files = CertificateFiles(tmp_path / "a.pem", tmp_path / "a-key.pem")
    files.certificate.write_bytes(received.blob)
    files.key.write_bytes(key_pem(key))
    agent = helen.connect(files)
    agent.hello(2)
    agent.expect("accepted")

    again = helen.connect(None)
    again.send(words)
    again.expect_error()

    renewing = helen.connect(files)
    fresh = new_key()
    renewing.send(enrolment("", request_pem(name, fresh)))
    renewed = renewing.expect("enrolled").blob
    assert common_name(renewed) == name
    first = x509.load_pem_x509_certificates(renewed)[0]
    assert first.public_key() == fresh.public_key()
    assert renewing.read_to_end() == b""


# Promise: AGENT-20
def test_a_certificate_renews_its_own_name_and_no_other(helen: HelenProcess) -> None:
    name = unique("mine")
    agent = helen.agent(name)
    agent.send(enrolment("", request_pem("somebody-else", new_key())))
    received = agent.message()
    assert received.command in ("enrolled", "error")
    if received.command == "enrolled":
        assert common_name(received.blob) == name


# Promise: AGENT-18
def test_a_token_for_one_name_is_none_for_another(helen: HelenProcess) -> None:
    token = token_for(helen, unique("right"))
    stranger = helen.connect(None)
    stranger.send(enrolment(token, request_pem("wrong", new_key())))
    received = stranger.message()
    assert received.command == "error" or common_name(received.blob) != "wrong"


BAD_ENROLMENTS = {
    "wrong token": enrolment("nonsense", request_pem("a", new_key())),
    "empty token": enrolment("", request_pem("a", new_key())),
    "no request": enrolment("nonsense", ""),
    "no json": b"enrol 3\nabc\n",
    "no object": b"enrol 2\n[]\n",
    "nothing in it": b"enrol 2\n{}\n",
    "empty": b"enrol 0\n\n",
    "numbers": b'enrol 20\n{"token":1,"csr": 2}\n',
    "too long": b"enrol %d\n" % (MIB + 1),
    "bad number": b"enrol 01\nx\n",
    "no newline": b"enrol 2\n{}X",
    "deep": b"enrol 100000\n" + b"[" * 100_000 + b"\n",
}
OTHER_WORDS = {
    "hello": b"hello 1 raw/1\n",
    "hello 2": b"hello 2 raw/1\n",
    "ping": b"ping 1\n",
    "result": b"result 1 c 2\n{}\n",
    "report": b"report 1 c 2\n{}\n",
    "fetch": b"fetch 1 stage0\n",
    "unknown": b"frobnicate\n",
    "empty line": b"\n",
    "invalid utf-8": b"\xff\n",
    "long line": b"x" * 8_193,
}


# Promise: AGENT-18
@pytest.mark.parametrize("words", BAD_ENROLMENTS.values(), ids=BAD_ENROLMENTS)
def test_an_enrolment_that_is_not_in_order_is_refused(helen: HelenProcess, words: bytes) -> None:
    stranger = helen.connect(None)
    stranger.send(words)
    stranger.expect_error()


# Promise: AGENT-15
@pytest.mark.parametrize("words", OTHER_WORDS.values(), ids=OTHER_WORDS)
def test_without_a_certificate_nothing_but_enrol_may_be_sent(helen: HelenProcess, words: bytes) -> None:
    stranger = helen.connect(None)
    stranger.send(words)
    stranger.expect_error()


def test_enrol_after_hello_is_out_of_turn(agent_2: FakeAgent) -> None:
    """In place of hello it renews; after hello an agent_2 may be refused, but never left without an answer."""
    agent_2.send(enrolment("", request_pem(agent_2.name, new_key())))
    assert agent_2.message().command in ("enrolled", "error")


# --- certificates


def kept_out(helen: HelenProcess, files: CertificateFiles) -> None:
    """No word is received with these files: the handshake fails, now or (TLS 1.3) at the first read."""
    try:
        agent = helen.connect(files)
    except OSError:
        return
    agent.hello(1)
    rest = agent.read_to_end()
    assert rest == b"" or rest.startswith(b"error ")


# Promise: AGENT-15
def test_a_certificate_of_another_authority_is_kept_out(network: Network, helen: HelenProcess, tmp_path) -> None:
    name = unique("fake")
    kept_out(helen, Authority(tmp_path, "test authority").agent(name))
    assert not network.knows(name)


# Promise: AGENT-15
def test_an_expired_certificate_is_kept_out(network: Network, helen: HelenProcess) -> None:
    name = unique("past")
    kept_out(helen, helen.signer.agent(name, days=-1))
    assert not network.knows(name)


# Promise: AGENT-15
@pytest.mark.parametrize("name", ["two words", "a/b", "ümlaut", "x\ny"])
def test_a_name_that_is_no_identity_is_kept_out(network: Network, helen: HelenProcess, name: str) -> None:
    kept_out(helen, helen.signer.agent(name))
    assert not network.knows(name)


def test_a_certificate_that_ours_did_not_sign_is_kept_out(helen: HelenProcess, tmp_path) -> None:
    """Another authority's certificate that merely names ours as its issuer."""
    ours = x509.load_pem_x509_certificate((helen.folder / "ca.pem").read_bytes())
    forger = Authority(tmp_path, str(ours.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value))
    kept_out(helen, forger.agent(unique("forged")))


# Promise: AGENT-15
def test_tls_1_2_is_kept_out(helen: HelenProcess) -> None:
    context = client_context(helen.folder / "ca.pem", helen.signer.agent(unique("old")))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", helen.port), PATIENCE_SECONDS) as plain,
        pytest.raises(OSError),
        context.wrap_socket(plain, server_hostname="127.0.0.1"),
    ):
        pass


# --- those who do not come to the point


GARBAGE = {
    "a line of ours": b"hello 1 raw/1\n",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(10_000),
    "a huge record": b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
}


# Promise: AGENT-14
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_clear_is_closed_and_nobody_notices(network: Network, helen: HelenProcess, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", helen.port), PATIENCE_SECONDS) as plain:
        plain.sendall(data)
        reply = b""
        with contextlib.suppress(ConnectionResetError):
            while more := plain.recv(4_096):
                reply += more
        assert b"error" not in reply
        assert len(reply) < 100
    network.check_answers(network.join(unique("web")))


class Dawdler:
    """A connection that never comes to the point: `drip` is said byte by byte, one each half second."""

    def __init__(self, sock: socket.socket, drip: bytes) -> None:
        self.socket, self.drip = sock, drip
        self.began = time.monotonic()
        self.lasted: float | None = None
        self.data = b""

    def nudge(self) -> None:
        if self.drip and self.lasted is None:
            try:
                self.socket.sendall(self.drip[:1])
            except OSError:
                self.look()
            self.drip = self.drip[1:]

    def look(self) -> None:
        """Has the other side closed?"""
        if self.lasted is not None:
            return
        self.socket.settimeout(0.01)
        try:
            data = self.socket.recv(4_096)
        except TimeoutError:
            return
        except OSError:
            data = b""
        self.data += data
        if not data:
            self.lasted = time.monotonic() - self.began


def client_hello() -> bytes:
    """The first flight of a real TLS client."""
    out = ssl.MemoryBIO()
    session = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="x")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return out.read()


@pytest.fixture(scope="module")
def dawdlers(wire_network: Network) -> Iterator[tuple[dict[str, Dawdler], list[float]]]:
    """All of them at once, until a while after the deadline; and how long honest agents took meanwhile."""
    helen = wire_network.helen
    open_: list[Any] = []

    def plain(first: bytes) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", helen.port), PATIENCE_SECONDS)
        made.sendall(first)
        open_.append(made)
        return made

    def shaken(first: bytes, files: CertificateFiles | None) -> socket.socket:
        made = FakeAgent(helen.port, helen.folder / "ca.pem", files)
        made.send(first)
        open_.append(made)
        return made.socket

    hello = client_hello()
    found = {f"silent {n}": Dawdler(plain(b""), b"") for n in range(30)}
    found["half a handshake"] = Dawdler(plain(hello[:100]), b"")
    found["a handshake byte by byte"] = Dawdler(plain(b""), hello)
    found["silent after the handshake"] = Dawdler(shaken(b"", helen.signer.agent(unique("mute"))), b"")
    found["silent without a certificate"] = Dawdler(shaken(b"", None), b"")
    found["a hello byte by byte"] = Dawdler(shaken(b"", helen.signer.agent(unique("slow"))), SLOW_HELLO)
    found["half an enrolment"] = Dawdler(shaken(b"enrol 100\n", None), b"x" * 99)
    honest: list[float] = []
    try:
        end = time.monotonic() + DEADLINE_SECONDS + SLACK_SECONDS
        turn = 0
        while time.monotonic() < end and any(one.lasted is None for one in found.values()):
            turn += 1
            if turn % 5 == 1:
                for one in found.values():
                    one.nudge()
            if turn % 10 == 2:
                began = time.monotonic()
                agent = helen.agent(unique("quick"), 2)
                agent.expect("accepted")
                honest.append(time.monotonic() - began)
                helen.close_agents()
            readable = {s.fileno() for s in select.select([o.socket for o in found.values()], [], [], 0.1)[0]}
            for one in found.values():
                if one.lasted is None and one.socket.fileno() in readable:
                    one.look()
            if readable:
                time.sleep(0.02)
        yield found, honest
    finally:
        for one in open_:
            one.close()


DAWDLERS = (
    "silent 0",
    "silent 29",
    "half a handshake",
    "a handshake byte by byte",
    "silent after the handshake",
    "silent without a certificate",
    "a hello byte by byte",
    "half an enrolment",
)


# Promise: AGENT-14
@pytest.mark.slow
@pytest.mark.parametrize("which", DAWDLERS)
def test_who_does_not_come_to_the_point_is_closed_after_five_seconds(dawdlers: Any, which: str) -> None:
    """FAULTS: slow TLS handshakes, silent connections, 1 byte per second: deadline 5 s."""
    one = dawdlers[0][which]
    assert one.lasted is not None, f"still open after {DEADLINE_SECONDS + SLACK_SECONDS} s"
    assert one.lasted > 1, f"closed after {one.lasted} s already: {one.said!r}"


# Promise: AGENT-14
@pytest.mark.slow
def test_others_connect_at_once_meanwhile(dawdlers: Any) -> None:
    took = dawdlers[1]
    assert len(took) >= 3
    assert max(took) < 1


def test_helens_certificate_names_her_address(helen: HelenProcess) -> None:
    """`connect` checks the name; here is what it checks."""
    made = helen.agent(unique("web")).socket.getpeercert()
    assert made is not None
    assert ("IP Address", "127.0.0.1") in made["subjectAltName"]


# Promise: AGENT-17
def test_a_revoked_agent_is_kept_out(network: Network, helen: HelenProcess) -> None:
    name, key = unique("gone"), new_key()
    stranger = helen.connect(None)
    stranger.send(enrolment(token_for(helen, name), request_pem(name, key)))
    chain = stranger.expect("enrolled").blob
    files = CertificateFiles(helen.folder / f"{name}.pem", helen.folder / f"{name}-key.pem")
    files.certificate.write_bytes(chain)
    files.key.write_bytes(key_pem(key))
    agent = helen.connect(files)
    agent.hello(2)
    agent.expect("accepted")
    run("agent", "revoke", name, "--data-dir", str(helen.folder))
    assert agent.read_to_end().count(b"error ") <= 1
    kept_out(helen, files)
    assert not network.knows(name)
