"""Which user listens at an address of this machine."""

# Promise: CURVE-26
from __future__ import annotations

import os
import socket

import pytest

from scale0.transport.edge.listeners import users_at
from tests.fakes.ports import free_port


@pytest.mark.parametrize(
    ("bind", "family"), [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)]
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_process_of_ours_is_found_at_every_address_that_it_listens_on(bind, family, host):
    with socket.create_server((bind, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        assert users_at(host, port) == frozenset({os.getuid()})
        assert users_at("127.0.0.2", port) == frozenset(() if bind == "127.0.0.1" else {os.getuid()})


def test_nobody_listens_at_a_free_port_and_a_connected_socket_does_not_listen():
    assert users_at("127.0.0.1", free_port()) == frozenset()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        assert users_at("127.0.0.1", client.getsockname()[1]) == frozenset()


@pytest.mark.parametrize("host", ["198.51.100.7", "broker.example.invalid", "0.0.0.0", "224.0.0.1"])
def test_another_machine_is_not_asked_about(host):
    assert users_at(host, 5700) is None
