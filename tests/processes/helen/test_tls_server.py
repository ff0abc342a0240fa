"""Helen's TLS socket with real clients: normal, slow and hostile ones."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scale0.monitoring.helen.core.socket_events import ConnectionClosed
from tests.fakes.certificates import AGE_DAYS, Authority
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.helen.echo_machine import EchoServer, echo_server, read

pytestmark = pytest.mark.processes

AT_ONCE = 2.0
"""Others are served within this, whatever goes on; the machine may be busy."""


@pytest.fixture
def helen(tmp_path: Path) -> Iterator[EchoServer]:
    with echo_server(tmp_path) as served:
        yield served


def reset(agent: socket.socket) -> None:
    """Close so that the other end gets a RST."""
    agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    agent.close()


# Promise: AGENT-15
def test_agent_is_identified_by_the_name_in_its_certificate(helen: EchoServer) -> None:
    with helen.connect() as agent:
        agent.sendall(b"hello 2 trial\n")
        assert read(agent, 14) == b"hello 2 trial\n"
        assert agent.version() == "TLSv1.3"
        agent.unwrap()
    [opened] = helen.machine.opened
    assert (opened.name, opened.address) == ("web-1", "127.0.0.1")
    assert int(opened.serial, 16) > 0
    assert opened.issued == pytest.approx(time.time() - AGE_DAYS * 86_400, abs=60)
    until(lambda: [closed.orderly for closed in helen.machine.gone] == [True])


def test_stranger_without_certificate_is_let_in_without_a_name(helen: EchoServer) -> None:
    with helen.connect(ssl.create_default_context(cafile=helen.authority.ca)) as agent:
        agent.sendall(b"enrol\n")
        assert read(agent, 6) == b"enrol\n"
    opened = helen.machine.opened[0]
    assert (opened.name, opened.serial) == ("", "")


def refused(helen: EchoServer, context: ssl.SSLContext) -> None:
    """In TLS 1.3 the client learns of it when it reads."""
    answer = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError), helen.connect(context) as agent:
        agent.sendall(b"hello\n")
        answer = agent.recv(1)
    assert answer == b""
    until(lambda: helen.socket.failed == 1)
    assert helen.machine.opened == []
    assert helen.says_back() < AT_ONCE


# Promise: AGENT-15
def test_certificate_of_another_authority_is_refused(helen: EchoServer, tmp_path: Path) -> None:
    refused(helen, helen.context(Authority(tmp_path / "other", "another CA").agent("web-1")))


# Promise: AGENT-15
def test_certificate_that_is_over_is_refused(helen: EchoServer) -> None:
    refused(helen, helen.context(helen.authority.agent("old", days=-1)))


# Promise: AGENT-15
@pytest.mark.parametrize("names", [(), ("one", "two"), ("no identity",)])
def test_certificate_that_names_nobody_is_refused(helen: EchoServer, names: tuple[str, ...]) -> None:
    refused(helen, helen.context(helen.authority.agent(*names)))


# Promise: AGENT-15
def test_old_tls_is_refused(helen: EchoServer) -> None:
    context = helen.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError, match=r"PROTOCOL_VERSION|reset"):
        helen.connect(context)
    assert helen.says_back() < AT_ONCE


# Promise: AGENT-14
@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"a" * 70_000])
def test_plain_bytes_end_the_connection_and_nothing_else(helen: EchoServer, data: bytes) -> None:
    with helen.plain() as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(data)
        while stranger.recv(1_000):
            pass
    until(lambda: helen.socket.failed == 1)
    assert helen.says_back() < AT_ONCE


def test_garbage_after_the_handshake_is_a_loss_with_a_reason(helen: EchoServer) -> None:
    agent = helen.connect()
    raw = socket.socket(fileno=agent.detach())
    with raw:
        raw.sendall(b"this is not a TLS record")
        until(lambda: helen.machine.gone)
    [closed] = helen.machine.gone
    assert not closed.orderly
    assert closed.reason == "wrong version number" or "record" in closed.reason


def test_last_words_arrive_before_the_end(helen: EchoServer) -> None:
    with helen.connect() as agent:
        # More than is read before the answer: a close with unread bytes would be a RST, and take the words along.
        agent.sendall(b"bye" + b"x" * 200_000)
        assert read(agent, 1_000) == b"error that will do\n"
    until(lambda: helen.socket.connections == 0)
    assert helen.machine.gone == []


def test_close_waits_for_what_was_promised_in_the_same_turn(helen: EchoServer) -> None:
    with helen.connect() as agent:
        agent.sendall(b"later")
        assert read(agent, 1_000) == b"stored\n"


def test_close_waits_for_bytes_that_do_not_fit_yet(helen: EchoServer) -> None:
    with helen.connect() as agent:
        agent.sendall(b"much 3000000")
        until(lambda: helen.machine.received_bytes == 12)
        agent.sendall(b"bye")
        assert read(agent, 4_000_000) == b"x" * 3_000_000 + b"error that will do\n"


@pytest.mark.slow
def test_who_does_not_hang_up_is_hung_up_on(helen: EchoServer) -> None:
    with helen.connect() as agent:
        agent.sendall(b"bye")
        until(lambda: helen.socket.connections == 0)


def test_reset_is_reported_as_gone(helen: EchoServer) -> None:
    agent = helen.connect()
    agent.sendall(b"a")
    assert read(agent, 1) == b"a"
    reset(agent)
    until(lambda: helen.machine.gone)
    assert helen.machine.peers == {}
    assert helen.socket.connections == 0


def test_half_close_ends_the_connection(helen: EchoServer) -> None:
    with helen.connect() as agent:
        agent.sendall(b"a")
        assert read(agent, 1) == b"a"
        agent.shutdown(socket.SHUT_WR)
        until(lambda: helen.machine.gone)
        assert len(read(agent, 1_000)) < 100  # an alert at the most, and then the end


def test_bytes_come_back_in_order_however_large(helen: EchoServer) -> None:
    data = bytes(range(256)) * 4_000
    with helen.connect() as agent:
        got = bytearray()
        for start in range(0, len(data), 100_000):
            part = data[start : start + 100_000]
            agent.sendall(part)
            got += read(agent, len(part))
    assert got == data


# Promise: AGENT-14
def test_one_byte_at_a_time_is_served_and_harms_nobody(helen: EchoServer) -> None:
    with helen.connect() as slow:
        for byte in b"slowly\n":
            slow.sendall(bytes([byte]))
            assert read(slow, 1) == bytes([byte])
            assert helen.says_back() < AT_ONCE


# Promise: AGENT-14
def test_a_client_that_never_reads_is_not_read_and_is_disconnected_at_the_limit(helen: EchoServer) -> None:
    with helen.connect() as deaf:
        for _ in range(20):
            deaf.sendall(b"much 500000")
            with contextlib.suppress(AssertionError):
                until(lambda: helen.machine.gone, seconds=0.02)
        # It asked for ten million bytes and reads none: after those that fit, it is not read any more.
        assert helen.machine.received_bytes < 20 * 11
        assert helen.says_back() < AT_ONCE
        deaf.settimeout(PATIENCE_SECONDS)
        assert read(deaf, 500_000) == b"x" * 500_000


def test_more_than_may_wait_is_a_loss(helen: EchoServer) -> None:
    with helen.connect() as deaf:
        deaf.sendall(b"much 30000000")
        until(lambda: helen.machine.gone)
    assert helen.machine.gone == [ConnectionClosed("the client does not read")]
    until(lambda: len(helen.machine.lost) == 1)


def test_beyond_the_most_connections_new_ones_are_refused(tmp_path: Path) -> None:
    with echo_server(tmp_path, max_connections=3) as helen, contextlib.ExitStack() as stack:
        agents = [stack.enter_context(helen.connect()) for _ in range(3)]
        with pytest.raises(OSError, match=r"EOF|reset"):
            helen.connect()
        agents.pop().close()
        until(lambda: helen.socket.connections == 2)
        assert helen.says_back() < AT_ONCE


# Promise: AGENT-14
@pytest.mark.slow
def test_silent_clients_are_disconnected_after_the_deadline_and_others_connect_at_once(helen: EchoServer) -> None:
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        silent = [stack.enter_context(helen.plain()) for _ in range(300)]
        for stranger in silent[:100]:
            stranger.sendall(b"\x16\x03\x01")
        assert helen.says_back() < AT_ONCE
        while helen.socket.connections:
            assert helen.says_back() < AT_ONCE
            assert time.monotonic() - began < PATIENCE_SECONDS
        assert time.monotonic() - began > 4.0
        assert silent[0].recv(1) == b""


# Promise: AGENT-14
@pytest.mark.slow
def test_two_thousand_silent_strangers_do_not_keep_others_out(helen: EchoServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2_000):
            stack.enter_context(helen.plain())
        times = [helen.says_back() for _ in range(20)]
        assert max(times) < AT_ONCE
        assert helen.socket.connections <= 1_001


# Promise: AGENT-14
@pytest.mark.slow
def test_two_thousand_agents_at_once_are_all_served(helen: EchoServer) -> None:
    context = helen.context()
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(helen.connect(context)) for _ in range(2_000)]
        for number, agent in enumerate(agents):
            agent.sendall(b"%d\n" % number)
        for number, agent in enumerate(agents):
            assert read(agent, len(b"%d\n" % number)) == b"%d\n" % number
        assert helen.socket.connections == 2_000
    until(lambda: helen.socket.connections == 0)
    assert len(helen.machine.gone) == 2_000
