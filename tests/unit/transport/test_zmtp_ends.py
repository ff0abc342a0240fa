"""Both ends of ZMTP 3 against each other, without a socket."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_scalarmult_base

from scale0.transport.core.zmtp import (
    DEALER,
    ROUTER,
    XPUB,
    Mechanism,
    MechanismError,
    NullMechanism,
    PeerRefusedError,
    ZmtpError,
    ZmtpSession,
)
from scale0.transport.core.zmtp_curve import REFUSED, CurveClient, CurveServer, KeyRefusedError
from tests.fakes import zmtp_bytes

SERVER_SECRET, CLIENT_SECRET = bytes(range(32)), bytes(range(1, 33))
SERVER_PUBLIC, CLIENT_PUBLIC = crypto_scalarmult_base(SERVER_SECRET), crypto_scalarmult_base(CLIENT_SECRET)


def ends(encrypted: bool, why_not: str = "", expected: bytes = SERVER_PUBLIC) -> tuple[ZmtpSession, ZmtpSession]:
    """A client and a server, that have not yet exchanged anything."""
    client: Mechanism = NullMechanism(DEALER, is_client=True)
    server: Mechanism = NullMechanism(ROUTER)
    if encrypted:
        client = CurveClient(CLIENT_PUBLIC, CLIENT_SECRET, expected, DEALER, os.urandom)
        server = CurveServer((SERVER_SECRET,), ROUTER, lambda _client, _server: why_not, os.urandom)
    return (
        ZmtpSession(DEALER, client, 100_000, 20, as_server=False),
        ZmtpSession(ROUTER, server, 100_000, 20),
    )


def sent(session: ZmtpSession) -> bytes:
    data, session.outgoing = b"".join(session.outgoing), []
    return data


def connect(client: ZmtpSession, server: ZmtpSession, size: int = 1_000) -> None:
    """Exchange the handshake, in pieces of this size."""
    for _ in range(10):
        for source, target in ((client, server), (server, client)):
            data = sent(source)
            for start in range(0, len(data), size):
                assert target.receive(data[start : start + size]) == []


# Promise: ZMTP-1
@given(
    st.booleans(),
    st.integers(1, 300),
    st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=5), max_size=5),
)
def test_both_ends_understand_each_other_however_bytes_are_cut(
    encrypted: bool, size: int, messages: list[list[bytes]]
) -> None:
    client, server = ends(encrypted)
    connect(client, server, size)
    assert client.ready
    assert server.ready
    for source, target in ((client, server), (server, client)):
        data = b"".join(itertools.chain.from_iterable(map(source.encode, messages)))
        found = []
        for start in range(0, len(data), size):
            found += target.receive(data[start : start + size])
        assert found == messages
        assert target.receive(source.ping()) == []
        assert source.receive(sent(target)) == []
    assert not encrypted or isinstance(server.mechanism, CurveServer)
    if isinstance(server.mechanism, CurveServer):
        assert server.mechanism.public_key == CLIENT_PUBLIC


# Promise: ZMTP-2
def test_a_client_knows_that_its_key_is_refused() -> None:
    client, server = ends(encrypted=True, why_not="nobody knows it")
    with pytest.raises(KeyRefusedError, match="nobody knows it"):
        connect(client, server)
    with pytest.raises(PeerRefusedError):
        client.receive(zmtp_bytes.frame(REFUSED, 4))


# Promise: ZMTP-2
def test_a_client_sends_nothing_to_a_server_with_another_key() -> None:
    client, server = ends(encrypted=True, expected=CLIENT_PUBLIC)
    with pytest.raises(ZmtpError, match="expects another server key"):
        connect(client, server)
    assert not client.ready
    client, _ = ends(encrypted=True, expected=CLIENT_PUBLIC)
    impostor = ends(encrypted=True)[1]
    connect(*ends(encrypted=True))
    client.receive(sent(impostor))
    # A WELCOME that is not made with the expected key.
    with pytest.raises(ZmtpError, match="cannot be decrypted"):
        client.receive(zmtp_bytes.command(b"WELCOME", bytes(160)))


@pytest.mark.parametrize(
    "data",
    [
        zmtp_bytes.command(b"READY", bytes(30)),
        zmtp_bytes.command(b"WELCOME", bytes(159)),
        zmtp_bytes.command(b"WELCOME", bytes(160)),
        zmtp_bytes.message([b"too early"]),
    ],
)
# Promise: ZMTP-2
def test_a_wrong_handshake_of_a_server_ends_the_connection(data: bytes) -> None:
    client, server = ends(encrypted=True)
    client.receive(sent(server))
    with pytest.raises(ZmtpError):
        client.receive(data)


def test_a_client_knows_that_the_server_uses_another_mechanism() -> None:
    for encrypted in (True, False):
        client, server = ends(encrypted)[0], ends(not encrypted)[1]
        with pytest.raises(MechanismError):
            client.receive(sent(server))


def test_a_repeated_frame_ends_an_encrypted_connection() -> None:
    client, server = ends(encrypted=True)
    connect(client, server)
    once = b"".join(client.encode([b"hello"]))
    assert server.receive(once) == [[b"hello"]]
    with pytest.raises(ZmtpError, match="repeated"):
        server.receive(once)


def test_a_client_accepts_only_the_sockets_that_zeromq_connects_to_its_own() -> None:
    client, _ = ends(encrypted=False)
    server = ZmtpSession(XPUB, NullMechanism(XPUB), 100_000, 20)
    client.receive(sent(server))
    with pytest.raises(ZmtpError, match="XPUB"):
        client.receive(zmtp_bytes.command(b"READY", zmtp_bytes.property_of(b"Socket-Type", XPUB)))
