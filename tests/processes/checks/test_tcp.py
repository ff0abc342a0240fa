"""The check `tcp`, against real sockets on loopback."""

from __future__ import annotations

import socket
import time

import pytest

from tests.processes.checks.servers import hold, metrics, run, tcp_server

pytestmark = pytest.mark.processes


def echo(connection):
    while data := connection.recv(100):
        connection.sendall(b"you said " + data)


def test_a_port_that_takes_connections_is_ok():
    with tcp_server(hold) as port:
        found = run("tcp", host="127.0.0.1", port=port)
    assert found.state == "ok"
    values = metrics(found)["connect_seconds"]
    assert 0 < values.value < 1
    assert (values.unit, values.warn, values.crit) == ("s", 1.0, 5.0)


def test_a_port_that_takes_none_is_critical():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    found = run("tcp", host="127.0.0.1", port=port)
    assert (found.state, found.message) == ("critical", f"127.0.0.1:{port}: connection refused")


def test_what_it_answers_is_compared():
    with tcp_server(echo) as port:
        assert run("tcp", host="127.0.0.1", port=port, send="hello\n", expect="said hello").state == "ok"
        wrong = run("tcp", timeout=0.5, host="127.0.0.1", port=port, send="hello\n", expect="goodbye")
    assert wrong.state == "critical"
    assert "you said hello" in wrong.message
    assert metrics(wrong)["answer_bytes"].value == len("you said hello\n")


def test_an_answer_in_many_small_pieces_is_one_answer():
    def drip(connection):
        for byte in b"220 ready":
            connection.sendall(bytes((byte,)))

    with tcp_server(drip) as port:
        assert run("tcp", host="127.0.0.1", port=port, expect="220 ready").state == "ok"


# Promise: CHECK-1
def test_a_server_that_never_says_it_ends_with_the_timeout():
    def babble(connection):
        while True:
            connection.sendall(b"x")
            time.sleep(0.01)

    with tcp_server(babble) as port:
        found = run("tcp", timeout=0.4, host="127.0.0.1", port=port, expect="never")
    assert found.state == "critical"
    assert found.seconds is not None
    assert found.seconds < 0.4 + 1


def test_a_server_that_never_stops_is_read_so_far_and_no_further():
    def flood(connection):
        while True:
            connection.sendall(bytes(100_000))

    with tcp_server(flood) as port:
        found = run("tcp", host="127.0.0.1", port=port, expect="never")
    assert metrics(found)["answer_bytes"].value == 65_536


def test_a_name_that_is_none_is_critical_and_not_a_crash():
    for host in ("no such host", "a" * 64 + ".x", "nul\0nul", "é" * 100):
        found = run("tcp", host=host, port=1)
        assert found.state == "critical", found
        assert "failed" not in found.message


def test_the_family_may_be_chosen():
    with tcp_server(hold) as port:
        assert run("tcp", host="127.0.0.1", port=port, family="ipv4").state == "ok"
        assert run("tcp", host="127.0.0.1", port=port, family="ipv6").state == "critical"
