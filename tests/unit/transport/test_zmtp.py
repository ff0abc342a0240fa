"""ZMTP 3 on the server's side: frames, handshakes and their limits, without a socket."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.transport.core.zmtp import (
    EXCESS,
    MAX_HANDSHAKE_BYTES,
    ROUTER,
    XPUB,
    NullMechanism,
    ZmtpError,
    ZmtpSession,
    encode_plain,
)
from tests.fakes import zmtp_bytes as client

MAX_BYTES = 100_000
MAX_PARTS = 20


def session(socket_type: bytes = ROUTER) -> ZmtpSession:
    return ZmtpSession(socket_type, NullMechanism(socket_type), MAX_BYTES, MAX_PARTS)


def ready_session(socket_type: bytes = ROUTER, peer: bytes = b"DEALER") -> ZmtpSession:
    made = session(socket_type)
    assert made.receive(client.greeting() + client.ready(peer)) == []
    assert made.ready
    made.outgoing = []
    return made


FRAMES = st.lists(
    st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * 255, b"y" * 256, b"z" * 5_000])), min_size=1
)


# Promise: ZMTP-1
@given(st.lists(FRAMES.filter(lambda frames: len(frames) < MAX_PARTS), max_size=6), st.lists(st.integers(1, 70)))
def test_messages_arrive_whole_however_their_bytes_are_cut(messages: list[list[bytes]], cuts: list[int]) -> None:
    data = client.greeting() + client.ready() + b"".join(map(client.message, messages))
    made, found, position = session(), [], 0
    for size in itertools.chain(cuts, itertools.repeat(3_000)):
        if position >= len(data):
            break
        found += made.receive(data[position : position + size])
        position += size
    assert found == messages


@given(FRAMES)
def test_what_is_encoded_is_what_a_client_expects(frames: list[bytes]) -> None:
    assert b"".join(encode_plain(frames)) == client.message(frames)


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\n",
        b"\x01\x00" + client.message([b"hello"]),
        b"\xff" + bytes(8) + b"\x00",
        client.greeting(version=b"\x01\x00"),
        client.greeting(version=b"\x02\x00"),
        client.greeting(mechanism=b"CURVE"),
        client.greeting(mechanism=b"PLAIN"),
    ],
    ids=["HTTP", "ZMTP 1", "ZMTP 1, long", "version 1", "version 2", "CURVE", "PLAIN"],
)
# Promise: ZMTP-2
def test_other_protocols_versions_and_mechanisms_are_refused(data: bytes) -> None:
    with pytest.raises(ZmtpError):
        session().receive(data)


def test_a_first_byte_is_enough_to_refuse() -> None:
    with pytest.raises(ZmtpError):
        session().receive(b"P")


@pytest.mark.parametrize(
    "data",
    [
        client.message([b"too early"]),
        client.command(b"HELLO"),
        client.command(b"ERROR", b"\x00"),
        client.command(b"READY", client.property_of(b"Socket-Type", b"SUB")),
        client.command(b"READY"),
        client.command(b"READY", b"\xff"),
        client.command(b"READY", b"\x01a" + (1 << 31).to_bytes(4, "big")),
        client.frame(b"", 4),
        client.frame(b"\x05REA", 4),
        b"\x06" + (MAX_HANDSHAKE_BYTES + 1).to_bytes(8, "big"),
        b"\x06" + b"\xff" * 8,
    ],
)
# Promise: ZMTP-2
def test_a_handshake_that_is_wrong_ends_the_connection(data: bytes) -> None:
    made = session()
    made.receive(client.greeting())
    with pytest.raises(ZmtpError):
        made.receive(data)
    assert made.mechanism.ready is False or b"SUB" in data or data == client.command(b"READY")


# Promise: ZMTP-3
def test_a_frame_over_the_limit_ends_the_connection_before_it_arrives() -> None:
    made = ready_session()
    with pytest.raises(ZmtpError):
        made.receive(b"\x02" + (MAX_BYTES + 1).to_bytes(8, "big"))


# Promise: ZMTP-3
def test_of_a_message_with_endless_frames_no_more_than_the_limit_is_kept() -> None:
    made = ready_session()
    for _ in range(EXCESS * MAX_PARTS):
        assert made.receive(client.frame(b"x" * 1_000, 1)) == []
    [frames] = made.receive(client.frame(b"last"))
    assert len(frames) == MAX_PARTS
    many = ready_session()
    for _ in range(EXCESS * MAX_PARTS):
        many.receive(client.frame(b"x" * (MAX_BYTES // 2), 1))
    [frames] = many.receive(client.frame(b"last"))
    assert MAX_BYTES < sum(map(len, frames)) <= 2 * MAX_BYTES
    assert many.receive(client.message([b"next"])) == [[b"next"]]
    many.receive(client.frame(b"x", 1) * EXCESS * MAX_PARTS)
    with pytest.raises(ZmtpError, match=f"more than {EXCESS * MAX_PARTS} parts"):
        many.receive(client.frame(b"x", 1))


def test_a_large_frame_in_small_pieces_is_copied_a_bounded_number_of_times() -> None:
    made = ready_session()
    body = b"x" * MAX_BYTES
    data = client.message([body])
    joined = 0
    for start in range(0, len(data), 10):
        found = made.receive(data[start : start + 10])
        joined += len(made._chunks) == 1
    assert found == [[body]]
    assert joined < 10, "the pieces were joined again and again"


def test_a_ping_is_answered_with_its_context() -> None:
    made = ready_session()
    assert made.receive(client.command(b"PING", b"\x00\x0acontext")) == []
    assert made.outgoing == [client.command(b"PONG", b"context")]
    with pytest.raises(ZmtpError):
        made.receive(client.command(b"PING", b"\x00\x0a" + b"x" * 17))


def test_subscriptions_are_messages_in_both_minor_versions() -> None:
    made = ready_session(XPUB, b"SUB")
    assert made.receive(client.command(b"SUBSCRIBE", b"topic")) == [[b"\x01topic"]]
    assert made.receive(client.message([b"\x01other"])) == [[b"\x01other"]]
    assert made.receive(client.command(b"CANCEL", b"topic")) == [[b"\x00topic"]]


@given(st.binary(max_size=300), st.booleans())
def test_whatever_arrives_is_refused_or_understood(data: bytes, greeted: bool) -> None:
    made = ready_session() if greeted else session()
    try:
        messages = made.receive(data)
    except ZmtpError:
        return
    assert all(isinstance(frames, list) for frames in messages)
